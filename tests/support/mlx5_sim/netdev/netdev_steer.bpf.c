// SPDX-License-Identifier: BSD-2-Clause
// What makes a netdev look like a port of an adapter with flow steering: frames that match a rule leave for
// the tap of the process that made it, the rest stays with the kernel. Frames are sent to the tap, so the
// kernel completes their sums and cuts super-frames up, as they would have left the peer's adapter. Three
// programs:
//   take    at the head of the netdev's ingress: frames that match a rule. Of a frame to a group each process
//   gets a copy. drop    at the tail of it: frames to groups that were copied give    at the tap's ingress:
//   frames that were taken for a rule that went meanwhile, back to the netdev
#include "netdev_steer.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>

#define TCX_NEXT (-1)
#define TCX_DROP 2

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct netdev_steer_table);
} table SEC(".maps");

struct search {
    struct netdev_steer_table* table;
    __u64 key[4];
    __u32 found;
};

static long try_rule(__u32 index, void* context) {
    struct search* search = context;
    if (index >= NETDEV_STEER_MAX_RULES) return 1;
    struct netdev_steer_rule* rule = &search->table->rules[index];
    if (!rule->used) return 0;
    if (((search->key[0] ^ rule->value[0]) & rule->mask[0]) ||
        ((search->key[1] ^ rule->value[1]) & rule->mask[1]) ||
        ((search->key[2] ^ rule->value[2]) & rule->mask[2]) ||
        ((search->key[3] ^ rule->value[3]) & rule->mask[3]))
        return 0;
    search->found = 1;
    return 1;
}

static __always_inline int read_key(struct __sk_buff* skb, struct netdev_steer_key* key) {
    struct ethhdr eth;
    if (bpf_skb_load_bytes(skb, 0, &eth, sizeof eth)) return -1;
    __builtin_memcpy(key->dst_mac, eth.h_dest, 6);
    __builtin_memcpy(key->src_mac, eth.h_source, 6);
    key->ether_type = eth.h_proto;
    if (skb->vlan_present) {  // the kernel has taken the tag out of the frame
        key->tci = bpf_htons(skb->vlan_tci);
        key->has |= NETDEV_STEER_TAG;
    }
    struct iphdr ip;
    if (eth.h_proto != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, sizeof eth, &ip, sizeof ip)) return 0;
    if (ip.version != 4 || ip.ihl < 5) return 0;
    key->has |= NETDEV_STEER_IPV4;
    key->src_ip = ip.saddr;
    key->dst_ip = ip.daddr;
    key->protocol = ip.protocol;
    if ((ip.protocol != IPPROTO_UDP && ip.protocol != IPPROTO_TCP) || (ip.frag_off & bpf_htons(0x3fff)))
        return 0;
    __be16 ports[2];
    if (bpf_skb_load_bytes(skb, sizeof eth + ip.ihl * 4, ports, sizeof ports)) return 0;
    key->has |= NETDEV_STEER_PORTS;
    key->src_port = ports[0];
    key->dst_port = ports[1];
    return 0;
}

SEC("tc")
int take(struct __sk_buff* skb) {
    __u32 zero = 0;
    struct netdev_steer_table* rules = bpf_map_lookup_elem(&table, &zero);
    if (!rules) return TCX_NEXT;
    if (skb->mark == rules->returned) {
        skb->mark = 0;
        return TCX_NEXT;
    }
    union {
        struct netdev_steer_key fields;
        __u64 words[4];
    } key = {};
    if (read_key(skb, &key.fields)) return TCX_NEXT;
    if (!rules->take_all) {
        struct search search = {.table = rules, .found = 0};
        __builtin_memcpy(search.key, key.words, sizeof search.key);
        bpf_loop(rules->count, try_rule, &search, 0);
        if (!search.found) return TCX_NEXT;
    }
    if (!(key.fields.dst_mac[0] & 1) && !rules->copies) return bpf_redirect(rules->tap, 0);
    bpf_clone_redirect(skb, rules->tap, 0);
    skb->mark = NETDEV_STEER_TAKEN;
    return TCX_NEXT;
}

SEC("tc")
int drop(struct __sk_buff* skb) { return skb->mark == NETDEV_STEER_TAKEN ? TCX_DROP : TCX_NEXT; }

SEC("tc")
int give(struct __sk_buff* skb) {
    __u32 zero = 0;
    struct netdev_steer_table* rules = bpf_map_lookup_elem(&table, &zero);
    if (!rules) return TCX_DROP;
    skb->mark = rules->returned;
    return bpf_redirect(rules->netdev, BPF_F_INGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
