/* SPDX-License-Identifier: BSD-2-Clause */
/* What the programs of strays.bpf.c and the library share. Plain C, included by both. */
#ifndef VMA_RING_STRAYS_STRAYS_H
#define VMA_RING_STRAYS_STRAYS_H

#include <linux/types.h>

/* A connection of the library, or one that is half open. Addresses and ports in network order. `users` is
 * written last and cleared first; 0: the place is free. While a place changes hands, the program may read a
 * mixture. At worst one segment of a third connection is lost then, which its peer repeats. */
struct stray_tuple {
    __u32 src_addr; /* the peer's */
    __u32 dst_addr;
    __u16 src_port;
    __u16 dst_port;
    __u32 users;
};

/* A tuple lies in one of two buckets that its hash names, in the emptier one. So some
 * three quarters of the table can be filled. */
#define STRAYS_BUCKET_BITS 12
#define STRAYS_BUCKETS (1 << STRAYS_BUCKET_BITS)
#define STRAYS_WAYS 8
struct stray_bucket {
    struct stray_tuple tuples[STRAYS_WAYS];
};

#define STRAYS_SEEDS 3
struct strays_config {
    __u64 seeds[STRAYS_SEEDS]; /* of strays_hash() */
    __u32 own_addr;            /* the silent listener's, in network order */
    __u32 own_port;            /* in host order */
};

/* Peers choose their ports, so the hash depends on a secret. It is NH (RFC 4418) over two pairs of words,
 * then a multiplication that makes its upper bits depend on all others. */
static inline __attribute__((always_inline)) __u64 strays_hash(const __u64* seeds, __u32 src, __u32 dst,
                                                               __u16 sport, __u16 dport) {
    __u64 addresses = (__u64)(__u32)(src + seeds[0]) * (__u32)(dst + (seeds[0] >> 32));
    __u64 ports = (__u64)(__u32)(sport + seeds[1]) * (__u32)(dport + (seeds[1] >> 32));
    __u64 sum = addresses + ports;
    return (sum ^ sum >> 32) * (seeds[2] | 1);
}
#define strays_first(hash) ((__u32)((hash) >> (64 - STRAYS_BUCKET_BITS)))
#define strays_second(hash) ((__u32)((hash) >> (64 - 2 * STRAYS_BUCKET_BITS)) & (STRAYS_BUCKETS - 1))

/* A record of the ring buffer: this, and the TCP segment behind it. So from `ethernet` on it is a frame, but
 * for the options of its IP header. */
struct stray_segment {
    __u32 length; /* bytes of the segment */
    __u8 unused[2];
    __u8 ethernet[14]; /* as the kernel has it: 0 for a frame without one */
    __u8 ip[20];       /* without options; of a reassembled segment, its first fragment's */
};

/* Bytes of the ring buffer. A full one loses segments, and no more. */
#define STRAYS_RING (1 << 20)

#endif
