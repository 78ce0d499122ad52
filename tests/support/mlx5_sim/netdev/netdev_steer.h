/* SPDX-License-Identifier: BSD-2-Clause */
/* What the netdev wire and its BPF programs share: the table of rules, in memory that both write and read.
 * Plain C. */
#ifndef MLX5_SIM_NETDEV_STEER_H
#define MLX5_SIM_NETDEV_STEER_H

#include <linux/types.h>

/* The fields of a frame that rules look at, all in network byte order. Four words for comparing. */
struct netdev_steer_key {
    __u8 dst_mac[6];
    __u8 src_mac[6];
    __u16 tci;
    __u16 ether_type; /* behind a tag */
    __u32 src_ip;
    __u32 dst_ip;
    __u16 src_port;
    __u16 dst_port;
    __u8 protocol;
    __u8 has; /* NETDEV_STEER_* */
    __u8 zero[2];
};
#define NETDEV_STEER_TAG 1
#define NETDEV_STEER_IPV4 2
#define NETDEV_STEER_PORTS 4

struct netdev_steer_rule {
    __u64 value[4];
    __u64 mask[4];
    __u64 used; /* written last when a rule comes, first when it goes */
};

#define NETDEV_STEER_MAX_RULES 4096
struct netdev_steer_table {
    __u32 count;    /* rules up to here may be used */
    __u32 take_all; /* more rules than fit: everything is taken, and what no rule wants comes back */
    __u32 netdev;   /* interface indices */
    __u32 tap;
    __u32 returned; /* skb->mark of frames that come back from the tap */
    __u32 copies;   /* every process with a rule for a frame gets it; else the first one alone */
    struct netdev_steer_rule rules[NETDEV_STEER_MAX_RULES];
};
/* skb->mark of a frame of which somebody has a copy: not for the kernel. */
#define NETDEV_STEER_TAKEN 0x6d35ffffu
#define NETDEV_STEER_RETURNED 0x6d350000u /* and the tap's index */

#endif
