// SPDX-License-Identifier: BSD-2-Clause
// The programs that catch a segment of an offloaded connection which has reached the kernel. The kernel has
// no such connection, and would answer with a reset.
//
// vma_strays runs in the network namespace when the kernel looks for a listener (sk_lookup), so after it has
// found no connection of its own. It gives a segment of a listed tuple to one silent listener of the library.
// vma_take is the socket filter of that listener. It copies the segment into the ring buffer and drops it.
// The filter runs before the kernel verifies the checksum, so the library does that.
//
// A tuple has all four numbers: the first program does not see whether a segment is a SYN, and others' SYNs
// are the kernel's.
#include "strays.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>
#include <linux/in.h>

#define AF_INET 2

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, STRAYS_BUCKETS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct stray_bucket);
} tuples SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct strays_config);
} config SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} listener SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, STRAYS_RING);
} segments SEC(".maps");

static __always_inline int listed(__u32 place, __u32 src, __u32 dst, __u16 sport, __u16 dport) {
    const struct stray_bucket* bucket = bpf_map_lookup_elem(&tuples, &place);
    if (!bucket) return 0;
#pragma unroll
    for (int i = 0; i < STRAYS_WAYS; i++) {
        const volatile struct stray_tuple* t = &bucket->tuples[i];
        if (t->users && t->src_addr == src && t->dst_addr == dst && t->src_port == sport &&
            t->dst_port == dport)
            return 1;
    }
    return 0;
}

SEC("sk_lookup")
int vma_strays(struct bpf_sk_lookup* ctx) {
    if (ctx->family != AF_INET || ctx->protocol != IPPROTO_TCP) return SK_PASS;
    __u32 zero = 0;
    const struct strays_config* cfg = bpf_map_lookup_elem(&config, &zero);
    if (!cfg) return SK_PASS;
    __u32 dst = ctx->local_ip4, port = ctx->local_port;
    // A program that connects to the silent listener is refused, as where nothing listens.
    if (dst == cfg->own_addr && port == cfg->own_port) return SK_DROP;
    __u32 src = ctx->remote_ip4;
    __u16 sport = ctx->remote_port, dport = bpf_htons(port);
    __u64 hash = strays_hash(cfg->seeds, src, dst, sport, dport);
    if (!listed(strays_first(hash), src, dst, sport, dport) &&
        !listed(strays_second(hash), src, dst, sport, dport))
        return SK_PASS;
    struct bpf_sock* socket = bpf_map_lookup_elem(&listener, &zero);
    if (!socket) return SK_PASS;
    bpf_sk_assign(ctx, socket, BPF_SK_LOOKUP_F_REPLACE);
    bpf_sk_release(socket);
    return SK_PASS;
}

// Records have a few sizes: what is reserved must be a constant for the verifier of kernels before 5.19.
// Without the barrier clang merges the comparison with the one before, which the verifier does not follow.
#define TAKE(size)                                                                                 \
    static __always_inline void take_##size(struct __sk_buff* skb, __u32 length) {                 \
        struct stray_segment* to = bpf_ringbuf_reserve(&segments, sizeof *to + size, 0);           \
        if (!to) return;                                                                           \
        to->length = length;                                                                       \
        __builtin_memset(to->ethernet, 0, sizeof to->ethernet);                                    \
        bpf_skb_load_bytes_relative(skb, 0, to->ethernet, sizeof to->ethernet, BPF_HDR_START_MAC); \
        asm volatile("" : "+r"(length));                                                           \
        if (length < 20 || length > size ||                                                        \
            bpf_skb_load_bytes_relative(skb, 0, to->ip, sizeof to->ip, BPF_HDR_START_NET) < 0 ||   \
            bpf_skb_load_bytes(skb, 0, to + 1, length) < 0)                                        \
            bpf_ringbuf_discard(to, 0);                                                            \
        else                                                                                       \
            bpf_ringbuf_submit(to, 0);                                                             \
    }
TAKE(128)
TAKE(1536)
TAKE(16384)
TAKE(65536)

SEC("socket")
int vma_take(struct __sk_buff* skb) {
    __u32 length = skb->len;
    if (length <= 128)
        take_128(skb, length);
    else if (length <= 1536)
        take_1536(skb, length);
    else if (length <= 16384)
        take_16384(skb, length);
    else
        take_65536(skb, length);
    return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
