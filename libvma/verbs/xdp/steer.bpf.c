// SPDX-License-Identifier: BSD-2-Clause
// The programs that steer. An XDP program sends IPv4 UDP and TCP frames that match a flow rule to the rule's
// AF_XDP socket, and passes all others to the kernel. It is the software counterpart of a bifurcated NIC's
// flow steering, so it must never drop a frame. The tcx program does the same where the kernel has a frame
// as an skb anyway (veth): it copies the frame to the rule's ring itself. Generic XDP copies such a frame
// twice.
//
// The program leaves some frames to the kernel on purpose. Fragments have no ports: the kernel reassembles
// them, and the shadow receives the datagram. The kernel also gets frames with IP options, for another
// station or with a wrong group's station address, or from a source that the kernel may refuse (martians,
// rp_filter). UDP super-frames (UDP_SEGMENT) have no sign of their datagrams' boundaries in them. There are
// two programs: vma_steer leaves such frames to the kernel, too. vma_steer_split reads the boundaries from
// the kernel's own description of the frame, and marks it (STEER_DATAGRAMS). It needs CAP_PERFMON and generic
// mode, where a frame has such a description.
//
// The driver, or a veth device's peer, may have taken a VLAN's tag off a frame and keep it beside the frame.
// Such a frame looks untagged, but belongs to the VLAN's interface or to nobody. vma_steer_tags asks the
// driver (Linux 6.8; the program is loaded for one device), and the tcx program reads it. Generic XDP cannot.
#include "steer.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_xdp.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, STEER_MAX_XSKS);
    __type(key, __u32);
    __type(value, __u32);
} xsks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2 * 65536);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

// An element for each bucket: without CAP_PERFMON the verifier refuses an index into one value.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, STEER_BUCKETS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct steer_bucket);
} rules SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, STEER_MAX_FLOWS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct steer_five_tuple);
    __type(value, __u32);
} flows5 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, STEER_MAX_FLOWS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct steer_three_tuple);
    __type(value, __u32);
} flows3 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct steer_config);
} config SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, STEER_MAX_SOURCES);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct steer_source);
    __type(value, __u32);
} sources SEC(".maps");

struct ports {
    __be16 src;
    __be16 dst;
};

// The slot + 1 of a rule in the mapped table, or 0.
static __always_inline __u32 slot_in_table(const struct steer_config* cfg, struct steer_key key) {
    __u64 hash = steer_hash(cfg->seeds, key);
    __u32 place = steer_bucket_of(hash);
    const struct steer_bucket* bucket = bpf_map_lookup_elem(&rules, &place);
    if (!bucket) return 0;
#pragma unroll
    for (int i = 0; i < STEER_WAYS; i++) {
        __u64 mark = *(const volatile __u64*)&bucket->mark[i];
        if (mark >> 32 == steer_tag_of(hash) && bucket->addresses[i] == key.addresses &&
            bucket->ports[i] == key.ports && (__u32)mark)
            return mark;
    }
    return 0;
}

// The slot + 1 of the rule for exactly this peer, or 0. `counted`: see steer_ports.
static __always_inline __u32 slot_of_five(const struct steer_config* cfg, const struct steer_five_tuple* five,
                                          __u64 counted) {
    __u32 found = slot_in_table(cfg, steer_key_of(STEER_FIVE, five->src_addr, five->dst_addr, five->src_port,
                                                  five->dst_port, five->protocol));
    if (found || counted < STEER_HASHED) return found;
    const __u32* slot = bpf_map_lookup_elem(&flows5, five);
    return slot ? *slot + 1 : 0;
}

// The same for any peer.
static __always_inline __u32 slot_of_three(const struct steer_config* cfg,
                                           const struct steer_five_tuple* five, __u64 counted) {
    __u32 found =
        slot_in_table(cfg, steer_key_of(STEER_THREE, 0, five->dst_addr, 0, five->dst_port, five->protocol));
    if (found || counted < STEER_HASHED) return found;
    struct steer_three_tuple three = {
        .dst_addr = five->dst_addr,
        .dst_port = five->dst_port,
        .protocol = five->protocol,
    };
    const __u32* slot = bpf_map_lookup_elem(&flows3, &three);
    return slot ? *slot + 1 : 0;
}

// A listener's rule also matches frames of connections. A connection that the library has handed over to the
// kernel, behind the same port, must stay with the kernel.
static __always_inline int kernel_has_connection(void* ctx, const struct steer_five_tuple* five) {
    struct bpf_sock_tuple tuple = {};
    tuple.ipv4.saddr = five->src_addr;
    tuple.ipv4.daddr = five->dst_addr;
    tuple.ipv4.sport = five->src_port;
    tuple.ipv4.dport = five->dst_port;
    struct bpf_sock* socket = bpf_skc_lookup_tcp(ctx, &tuple, sizeof tuple.ipv4, BPF_F_CURRENT_NETNS, 0);
    if (!socket) return 0;
    int connected = socket->state != BPF_TCP_LISTEN;
    bpf_sk_release(socket);
    return connected;
}

// Does the kernel surely accept packets from this address here? The program passes doubtful frames to the
// kernel. The kernel drops martians and frames from a wrong interface (rp_filter), and gives the rest to its
// socket on the same port.
static __always_inline int surely_accepted(const struct steer_config* cfg, __be32 source) {
    __u32 address = bpf_ntohl(source);
    if (address == 0 || address >> 24 == 127 || address >> 28 == 0xe || address == 0xffffffff) return 0;
    if (cfg->listed_sources_only) {
        struct steer_source key = {.prefix = 32, .address = source};
        return bpf_map_lookup_elem(&sources, &key) != 0;
    }
#pragma unroll
    for (int i = 0; i < STEER_MAX_REFUSED; i++)
        if (cfg->refused[i] == source) return 0;
    return 1;
}

// Is the frame for this station? A group's frame carries the address that the group has (RFC 1112, section
// 6.4). What the kernel loops back to this host carries none, and a generic program sees it.
static __always_inline int for_this_station(const struct steer_config* cfg, const struct ethhdr* eth,
                                            const struct iphdr* ip) {
    const __u16* to = (const __u16*)eth->h_dest;
    if ((ip->daddr & bpf_htonl(0xf0000000)) != bpf_htonl(0xe0000000))
        return to[0] == cfg->mac[0] && to[1] == cfg->mac[1] && to[2] == cfg->mac[2];
    __u32 group = bpf_ntohl(ip->daddr);
    return to[0] == bpf_htons(0x0100) && to[1] == bpf_htons(0x5e00 | (group >> 16 & 0x7f)) &&
           to[2] == bpf_htons(group & 0xffff) && ip->ttl != 0;
}

// The parts of the kernel's structures that the program reads. The kernel says where they are (CO-RE).
struct xdp_buff {
    void* data_hard_start;
    __u32 frame_sz;
} __attribute__((preserve_access_index));
struct skb_shared_info {
    __u16 gso_size;
    __u32 gso_type;
} __attribute__((preserve_access_index));
#define GSO_UDP_L4 (1 << 17) /* SKB_GSO_UDP_L4, of an enumeration without a name */
#define CACHE_LINE 64

// Bytes of payload of a super-frame's datagrams; 0: it is none. A super-frame has the pseudo header's sum
// only, so most frames of other senders cost no look at the kernel's description.
static __always_inline __u16 datagram_length(struct xdp_md* ctx, const struct iphdr* ip,
                                             const struct udphdr* udp) {
    __u64 sum = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP) + udp->len;
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    if (sum != udp->check) return 0;

    const struct xdp_buff* buff = (const void*)ctx;
    __u64 from_start[4];  // of xdp_buff, from data_hard_start on
    if (bpf_core_read(from_start, sizeof from_start, &buff->data_hard_start)) return 0;
    __u32 between = bpf_core_field_offset(struct xdp_buff, frame_sz) -
                    bpf_core_field_offset(struct xdp_buff, data_hard_start);
    __u32 room = *(__u32*)((char*)from_start + between);
    // As the kernel's xdp_data_hard_end().
    __u32 at_end = (bpf_core_type_size(struct skb_shared_info) + CACHE_LINE - 1) & ~(CACHE_LINE - 1);
    const struct skb_shared_info* shared = (void*)from_start[0] + room - at_end;
    __u16 size = 0;
    if (bpf_core_read(&size, sizeof size, &shared->gso_size) || !size) return 0;
    __u32 type = 0;
    if (bpf_core_read(&type, sizeof type, &shared->gso_type)) return 0;
    return type & GSO_UDP_L4 ? size : 0;
}

// The index + 1 of the frame's rule's slot, 0: the frame is the kernel's. `ctx`: the program's. A rule
// gives the configuration, too; frames to ports without rules do not cost that look.
static __always_inline __u32 rule_of(void* ctx, const struct ethhdr* eth, const void* end,
                                     const struct steer_config** cfg_out) {
    const struct iphdr* ip = (const void*)(eth + 1);
    const struct ports* ports = (const void*)(ip + 1);
    if ((const void*)(ports + 1) > end) return 0;
    if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl != 5) return 0;
    if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP) return 0;
    if (ip->frag_off & bpf_htons(0x3fff)) return 0;  // MF or an offset

    /* An element for each port, for the same reason as above. */
    __u32 place = steer_table(ip->protocol) << 16 | ports->dst;
    const __u64* count = bpf_map_lookup_elem(&counts, &place);
    if (!count) return 0;
    __u64 counted = *(const volatile __u64*)count;
    if (!counted) return 0;

    struct steer_five_tuple five = {
        .src_addr = ip->saddr,
        .dst_addr = ip->daddr,
        .src_port = ports->src,
        .dst_port = ports->dst,
        .protocol = ip->protocol,
    };
    __u32 zero = 0;
    const struct steer_config* cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg) return 0;
    *cfg_out = cfg;
    __u32 found = slot_of_five(cfg, &five, counted);
    if (!found) {
        // The library checked the peer of a 5-tuple rule when it made the rule.
        found = slot_of_three(cfg, &five, counted);
        if (!found) return 0;
        if (!surely_accepted(cfg, ip->saddr)) return 0;
        if (ip->protocol == IPPROTO_TCP && kernel_has_connection(ctx, &five)) return 0;
    }
    return for_this_station(cfg, eth, ip) ? found : 0;
}

// Is the frame one of a VLAN, by a tag that it carries no more? VLAN 0 is a priority tag, which belongs to
// this interface.
static __always_inline int of_vlan(const struct xdp_md* ctx) {
    __be16 protocol = 0;
    __u16 tag = 0;
    int error;
    // A declaration of the function would be in the types, which the kernel would refuse as they are.
    asm volatile(
        "r1 = %[ctx]\n"
        "r2 = %[protocol]\n"
        "r3 = %[tag]\n"
        "call bpf_xdp_metadata_rx_vlan_tag\n"
        "%[error] = r0"
        : [error] "=r"(error)
        : [ctx] "r"(ctx), [protocol] "r"(&protocol), [tag] "r"(&tag)
        : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
    return error == 0 && (tag & 0xfff) != 0;
}

static __always_inline int steer(struct xdp_md* ctx, int splits, int asks_tag) {
    void* end = (void*)(long)ctx->data_end;
    struct ethhdr* eth = (void*)(long)ctx->data;
    struct iphdr* ip = (void*)(eth + 1);
    struct udphdr* udp = (void*)(ip + 1);
    if ((void*)(&udp->len) > end) return XDP_PASS;
    const struct steer_config* cfg = 0;
    __u32 found = rule_of(ctx, eth, end, &cfg);
    if (!found) return XDP_PASS;
    if (asks_tag && of_vlan(ctx)) return XDP_PASS;

    __u16 each = 0;
    if (ip->protocol == IPPROTO_UDP) {
        if (splits && (void*)(udp + 1) <= end) each = datagram_length(ctx, ip, udp);
        if (!each && bpf_xdp_get_buff_len(ctx) > cfg->max_udp_frame) return XDP_PASS;
    }
    // Further queues have no socket: the next index is another slot's.
    if (ctx->rx_queue_index >= STEER_MAX_QUEUES) return XDP_PASS;
    // Without a socket at this index (its process has just ended) the kernel gets the frame.
    long action = bpf_redirect_map(&xsks, found - 1 + ctx->rx_queue_index, XDP_PASS);
    if (each && action == XDP_REDIRECT) {
        eth->h_proto = bpf_htons(STEER_DATAGRAMS);
        udp->check = each;
    }
    return action;
}

SEC("xdp.frags")
int vma_steer(struct xdp_md* ctx) { return steer(ctx, 0, 0); }

SEC("xdp.frags/tags")
int vma_steer_tags(struct xdp_md* ctx) { return steer(ctx, 0, 1); }

SEC("xdp.frags/split")
int vma_steer_split(struct xdp_md* ctx) { return steer(ctx, 1, 0); }

#include "steer_copy.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";
