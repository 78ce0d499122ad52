/* SPDX-License-Identifier: BSD-2-Clause */
/* What the XDP program and the library agree on: map keys and values. Plain C, included by both. */
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

/* A prefix of source addresses, as BPF_MAP_TYPE_LPM_TRIE wants it. */
struct steer_source {
    __u32 prefix;
    __u32 address;
};

#define STEER_MAX_REFUSED 16
#define STEER_MAX_SOURCES 65536

struct steer_config {
    __u16 mac[3]; /* in memory order; frames for other stations stay with the kernel, which knows what to do
                     with them */
    __u16 listed_sources_only; /* not 0: 3-tuple rules take frames from what the map of sources holds, else
                                  from all but `refused` */
    __u32 max_udp_frame; /* longer UDP frames are super-frames (UDP_SEGMENT): only the kernel can split them
                            again */
    __u32 refused[STEER_MAX_REFUSED]; /* unused ones are 0, which is no source anyway */
};

/* A rule's value is a slot; the socket for a frame is at index slot + receive queue. Each process gets its
 * own slot. */
#define STEER_MAX_QUEUES 64
#define STEER_MAX_SLOTS 16
#define STEER_MAX_XSKS (STEER_MAX_QUEUES * STEER_MAX_SLOTS)
#define STEER_MAX_FLOWS 65536

#endif
