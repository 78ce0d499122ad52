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
 * rules costs no look into the maps of rules, and a count never misses a rule. */
struct steer_ports {
    __u64 rules[2][65536];
};
#define steer_table(protocol) ((protocol) == 6 ? 1 : 0) /* TCP, UDP */

#define STEER_MAX_REFUSED 16
#define STEER_MAX_SOURCES 65536

struct steer_config {
    /* In memory order. Frames for other stations stay with the kernel. */
    __u16 mac[3];
    /* Not 0: 3-tuple rules take frames from the sources in the map only; 0: from all but `refused`. */
    __u16 listed_sources_only;
    /* Longer UDP frames are super-frames (UDP_SEGMENT): only the kernel can split them. */
    __u32 max_udp_frame;
    __u32 refused[STEER_MAX_REFUSED]; /* unused ones are 0, which is never a source */
};

/* A rule's value is a slot; the socket for a frame is at index slot + receive queue. Each process gets its
 * own slot. */
#define STEER_MAX_QUEUES 64
#define STEER_MAX_SLOTS 16
#define STEER_MAX_XSKS (STEER_MAX_QUEUES * STEER_MAX_SLOTS)
#define STEER_MAX_FLOWS 65536

#endif
