/* SPDX-License-Identifier: BSD-2-Clause */
/* Map keys and values that the XDP program and the library share. Plain C, included by both. */
#ifndef VMA_VERBS_XDP_STEER_H
#define VMA_VERBS_XDP_STEER_H

#include <linux/types.h>

/* Addresses and ports in network order; padding is part of the key and stays zero. */
struct steer_five_tuple {
    __u32 src_addr;
    __u32 dst_addr;
    __u16 src_port;
    __u16 dst_port;
    __u32 protocol;
};

struct steer_three_tuple {
    __u32 dst_addr;
    __u16 dst_port;
    __u16 protocol;
};

/* A prefix of source addresses in the form of BPF_MAP_TYPE_LPM_TRIE. */
struct steer_source {
    __u32 prefix;
    __u32 address;
};

/* How many rules there are for a local port, in network order, by steer_table(). The library counts in its
 * own mapping of this map, before it makes a rule and after it has removed one. So a frame to a port without
 * rules costs no look into the maps of rules, and a count never misses a rule. The upper 32 bits count those
 * of them that are in the hash maps. */
struct steer_ports {
    __u64 rules[2][65536];
};
#define steer_table(protocol) ((protocol) == 6 ? 1 : 0) /* TCP, UDP */
#define STEER_HASHED ((__u64)1 << 32)

/* The rules of both kinds, which the library writes in its own mapping of this map, so that a rule costs no
 * system call. A rule lies in the bucket that the hash of its key says. One that finds its bucket full is in
 * a hash map instead.
 *
 * The mark is written last, and removed first: a tag of the key in the upper half, slot + 1 in the lower one.
 * A lower half of 0 is no rule. While an entry changes hands, the program may read one half of the old key
 * and one of the new key. It takes that for a third key only if the tag fits, which is once in 2^32 races. */
#define STEER_BUCKET_BITS 13
#define STEER_BUCKETS (1 << STEER_BUCKET_BITS)
#define STEER_WAYS 5
struct steer_bucket {
    __u64 mark[STEER_WAYS];
    __u64 addresses[STEER_WAYS];
    __u64 ports[STEER_WAYS];
    __u64 unused;
};

/* A key in two words; a 3-tuple has no source. */
struct steer_key {
    __u64 addresses, ports;
};
#define STEER_FIVE 1
#define STEER_THREE 2
#define steer_key_of(kind, src, dst, sport, dport, protocol)                                       \
    ((struct steer_key){(__u64)(src) | (__u64)(dst) << 32, (__u64)(sport) | (__u64)(dport) << 16 | \
                                                               (__u64)(protocol) << 32 |           \
                                                               (__u64)(kind) << 40})

/* Peers choose their ports. So the hash depends on a secret, and they cannot fill one bucket. It is NH (RFC
 * 4418) over two pairs of words, then a multiplication that makes its upper bits depend on all others. The
 * ports of one peer follow one another: without the shift their sums are multiples of one number, which can
 * meet. */
#define STEER_SEEDS 3
static inline __attribute__((always_inline)) __u64 steer_hash(const __u64* seeds, struct steer_key key) {
    __u64 addresses =
        (__u64)(__u32)(key.addresses + seeds[0]) * (__u32)((key.addresses >> 32) + (seeds[0] >> 32));
    __u64 ports = (__u64)(__u32)(key.ports + seeds[1]) * (__u32)((key.ports >> 32) + (seeds[1] >> 32));
    __u64 sum = addresses + ports;
    return (sum ^ sum >> 32) * (seeds[2] | 1);
}
#define steer_bucket_of(hash) ((__u32)((hash) >> (64 - STEER_BUCKET_BITS)))
#define steer_tag_of(hash) ((hash) << STEER_BUCKET_BITS >> 32)

#define STEER_MAX_REFUSED 16
#define STEER_MAX_SOURCES 65536

struct steer_config {
    /* In memory order. Frames for other stations stay with the kernel. */
    __u16 mac[3];
    /* Not 0: 3-tuple rules take frames from the sources in the map only; 0: from all but `refused`. */
    __u16 listed_sources_only;
    /* Longer UDP frames are super-frames (UDP_SEGMENT). */
    __u32 max_udp_frame;
    __u32 refused[STEER_MAX_REFUSED]; /* unused ones are 0, which is never a source */
    __u64 seeds[STEER_SEEDS];         /* of steer_hash() */
};

/* The Ethernet type of a super-frame that the program has marked (IEEE 802: for local experiments). Its UDP
 * checksum field says, in the host's byte order, how many bytes of payload the datagrams have, but for the
 * last one. No other frame with this type reaches a socket. */
#define STEER_DATAGRAMS 0x88b5

/* A rule's value is a slot; the socket for a frame is at index slot + receive queue. Each process gets its
 * own slot. */
#define STEER_MAX_QUEUES 64
#define STEER_MAX_SLOTS 16
#define STEER_MAX_XSKS (STEER_MAX_QUEUES * STEER_MAX_SLOTS)
#define STEER_MAX_FLOWS 65536

/* ---- receiving by the tcx program ---- */

/* What user space and the program share of a ring; each writes one index. Both run freely. */
struct steer_ring {
    __u32 producer;
    __u32 unused1[15];
    __u32 consumer;
    __u32 flags; /* as of an XSK's ring: none */
    __u32 unused2[14];
    __u32 first; /* the ring's first entry in its map */
    __u32 mask;  /* entries - 1; 0: there is no such ring */
    __u32 armed; /* the next frame wakes whoever polls the slot's descriptor */
    __u32 unused3;
    __u64 dropped; /* frames that found the ring full, or no posted chunk */
    __u32 unused4[10];
    __u32 seen; /* the program's alone: user space's index when the program last had to look */
    __u32 unused5[15];
};
/* A ring of received frames for each slot; behind these the ring of posted chunks, which all share. */
#define STEER_POSTED STEER_MAX_SLOTS
#define STEER_RINGS (STEER_MAX_SLOTS + 1)

/* A received frame is a struct xdp_desc. XDP_PKT_CONTD is newer than Debian 12's headers. */
#define STEER_CONTINUED 1

/* Bytes of a chunk, and where the frame begins in it. */
#define STEER_CHUNK 2048
#define STEER_HEADROOM 256
#define STEER_ROOM (STEER_CHUNK - STEER_HEADROOM)
#define STEER_MOST_CHUNKS 40 /* of a frame: 64 KiB and its headers */
#define STEER_MOST_FRAME (14 + 65535)

/* A longer TCP frame (BIG TCP) becomes segments, a chunk each: their payload behind the longest headers. */
#define STEER_MOST_HEADERS (14 + 20 + 60)
#define STEER_SEGMENT (STEER_ROOM - STEER_MOST_HEADERS - 2)

#endif
