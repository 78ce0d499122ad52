// SPDX-License-Identifier: BSD-2-Clause
// The tcx program, which receives by copy (CopyRings). The end of steer.bpf.c, whose rules it follows.

// What `memory` and `wakes` hold are maps of their own: the chunks, and for each slot the ring buffer by
// which its reader wakes.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, STEER_RINGS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct steer_ring);
} rings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, __u64);
} posted SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct xdp_desc);
} received SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} memory SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, STEER_MAX_SLOTS);
    __type(key, __u32);
    __type(value, __u32);
} wakes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} busy SEC(".maps");

#define TCX_NEXT -1 /* of the kernel's enumeration: the kernel gets the frame */
#define TCX_DROP 2  /* it is taken */
#define WAITS 96    /* looks at a lock, 30 us and more: its owner copies one frame */
#define PAUSES 12   /* calls between two looks */

// The chunk that was posted as the `index`th, and its number; null: there is none.
static __always_inline char* posted_chunk(void* chunks, const struct steer_ring* free, __u32 index,
                                          __u32* number) {
    __u32 place = index & free->mask;
    const __u64* offset = bpf_map_lookup_elem(&posted, &place);
    if (!offset) return 0;
    *number = *offset / STEER_CHUNK;
    return bpf_map_lookup_elem(chunks, number);
}

// Writes the `index`th descriptor of the ring. False: it has no place.
static __always_inline int give(const struct steer_ring* ring, __u32 index, __u32 number, __u32 length,
                                __u32 options) {
    __u32 place = ring->first + (index & ring->mask);
    struct xdp_desc* out = bpf_map_lookup_elem(&received, &place);
    if (!out) return 0;
    out->addr = (__u64)number * STEER_CHUNK + STEER_HEADROOM;
    out->len = length;
    out->options = options;
    return 1;
}

// The checksum of a header with one more 16-bit word in it (RFC 1624); as the kernel's csum_fold().
static __always_inline __u16 folded(__u64 sum) {
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

// Bytes of the headers of a TCP frame of more than 64 KiB (BIG TCP), which has a length of 0 in its IP
// header; 0: it is none. Only the kernel makes such frames.
static __always_inline __u32 headers_of_big(struct __sk_buff* skb, const struct iphdr* ip) {
    struct tcphdr tcp;
    if (ip->tot_len || ip->protocol != IPPROTO_TCP || skb->gso_segs < 2) return 0;
    if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof *ip, &tcp, sizeof tcp)) return 0;
    const __u32 headers = sizeof(struct ethhdr) + sizeof *ip + tcp.doff * 4;
    return tcp.doff >= 5 && skb->len > headers ? headers : 0;
}

// What the turns of a loop share. The kernel's loop (bpf_loop) calls a function for each turn, which the
// verifier follows once. It would follow each turn of an ordinary loop, which made the start of each program
// 50 ms longer.
struct copying {
    struct __sk_buff* skb;
    const struct steer_ring *ring, *free;
    void* chunks;
    __u32 at, taken; /* of the ring's descriptors and of the chunks, the first to use */
    __u32 headers;   /* 0, or the bytes of headers that each segment gets (BIG TCP) */
    __u32 each;      /* of a super-frame of UDP: bytes of its datagrams */
    __u32 done;
};
struct locking {
    __u32* lock;
    __u64 mine;
};
#define TURN static __attribute__((noinline, section("tcx"))) long
TURN copy_turn(__u64 i, struct copying* c);
TURN lock_turn(__u64 i, struct locking* l);

// Takes the frame for this slot's ring. The kernel runs the program on several processors at once. A host may
// stop the processor that has the lock. Nobody sends a datagram again, so its socket in the kernel gets it
// then; a TCP segment is lost, for the kernel has no such connection.
static __always_inline int take(struct __sk_buff* skb, __u32 slot, __u16 each, __u32 big, int is_udp) {
    __u32 zero = 0, number = STEER_POSTED;
    struct steer_ring* ring = bpf_map_lookup_elem(&rings, &slot);
    struct steer_ring* free = bpf_map_lookup_elem(&rings, &number);
    __u32* lock = bpf_map_lookup_elem(&busy, &zero);
    void* chunks = bpf_map_lookup_elem(&memory, &zero);
    if (!ring || !free || !lock || !chunks || !ring->mask) return TCX_NEXT;
    __u32 wanted =
        big ? (skb->len - big + STEER_SEGMENT - 1) / STEER_SEGMENT : (skb->len + STEER_ROOM - 1) / STEER_ROOM;

    struct locking locking = {.lock = lock, .mine = __sync_val_compare_and_swap(lock, 0, 1) == 0};
    if (!locking.mine) bpf_loop(WAITS, lock_turn, &locking, 0);
    if (!locking.mine) {
        if (is_udp) return TCX_NEXT;
        __sync_fetch_and_add(&ring->dropped, 1);
        return TCX_DROP;
    }
    __u32 at = ring->producer, taken = free->consumer;
    // Each look at user space's index costs a cache line's way between processors.
    if (free->seen - taken < wanted) free->seen = *(volatile __u32*)&free->producer;
    if (at - ring->seen + wanted > ring->mask + 1) ring->seen = *(volatile __u32*)&ring->consumer;
    struct copying copying = {.skb = skb,
                              .ring = ring,
                              .free = free,
                              .chunks = chunks,
                              .at = at,
                              .taken = taken,
                              .headers = big,
                              .each = each};
    if (free->seen - taken >= wanted && at - ring->seen + wanted <= ring->mask + 1 &&
        (big || wanted <= STEER_MOST_CHUNKS))
        bpf_loop(wanted, copy_turn, &copying, 0);
    if (copying.done) {
        // x86 keeps the order of stores.
        *(volatile __u32*)&free->consumer = taken + wanted;
        *(volatile __u32*)&ring->producer = at + wanted;
    } else {
        __sync_fetch_and_add(&ring->dropped, 1);
    }
    // A full barrier: the producer is visible before `armed` is read. The reader does the opposite.
    __sync_lock_test_and_set(lock, 0);
    if (*(volatile __u32*)&ring->armed && __sync_lock_test_and_set(&ring->armed, 0)) {
        void* wake = bpf_map_lookup_elem(&wakes, &slot);
        if (wake) bpf_ringbuf_output(wake, &zero, sizeof zero, BPF_RB_FORCE_WAKEUP);
    }
    return TCX_DROP;
}

SEC("tcx")
int vma_steer_copy(struct __sk_buff* skb) {
    // The kernel has taken the tag off the frame. VLAN 0 is a priority tag, which belongs to this interface.
    if (skb->vlan_present && (skb->vlan_tci & 0xfff) != 0) return TCX_NEXT;
    const __u32 headers = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr);
    if ((void*)(long)skb->data + headers > (void*)(long)skb->data_end) bpf_skb_pull_data(skb, headers);
    void* end = (void*)(long)skb->data_end;
    struct ethhdr* eth = (void*)(long)skb->data;
    struct iphdr* ip = (void*)(eth + 1);
    struct udphdr* udp = (void*)(ip + 1);
    if ((void*)(udp + 1) > end) return TCX_NEXT;
    const struct steer_config* cfg = 0;
    __u32 found = rule_of(skb, eth, end, &cfg);
    if (!found) return TCX_NEXT;
    __u16 each = 0;
    __u32 big = skb->len > STEER_MOST_FRAME ? headers_of_big(skb, ip) : 0;
    const int is_udp = ip->protocol == IPPROTO_UDP;
    if (is_udp) {
        each = skb->gso_segs > 1 ? skb->gso_size : 0;
        if (!each && skb->len > cfg->max_udp_frame) return TCX_NEXT;
    }
    return take(skb, (found - 1) / STEER_MAX_QUEUES, each, big, is_udp);
}

// The functions of the loops stand behind the program, which begins the section. They return 1 to end their
// loop.

TURN lock_turn(__u64 i, struct locking* l) {
#pragma unroll
    for (int pause = 0; pause < PAUSES; pause++) bpf_ktime_get_ns();
    l->mine = __sync_val_compare_and_swap(l->lock, 0, 1) == 0;
    return l->mine;
}

// Makes a segment of the headers of a BIG TCP frame, which are those of the whole. Its sums are as partial as
// the frame's own. `from`: bytes of payload before it.
static __always_inline void make_segment(char* frame, __u32 length, __u32 from, int last) {
    struct iphdr* ip = (void*)(frame + sizeof(struct ethhdr));
    struct tcphdr* tcp = (void*)(ip + 1);
    ip->tot_len = bpf_htons(length);
    ip->check = ~folded((__u64)(__u16)~ip->check + ip->tot_len);
    tcp->seq = bpf_htonl(bpf_ntohl(tcp->seq) + from);
    if (from) tcp->cwr = 0;
    if (!last) tcp->fin = tcp->psh = 0;
    tcp->check =
        folded((__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_TCP) + bpf_htons(length - sizeof *ip));
}

// Copies a chunk's part of the frame: the next bytes, or the next segment.
TURN copy_turn(__u64 i, struct copying* c) {
    const __u32 headers = c->headers, room = headers ? STEER_SEGMENT : STEER_ROOM, from = (__u32)i * room;
    if (headers > STEER_MOST_HEADERS) return 1;
    __u32 number = 0;
    char* to = posted_chunk(c->chunks, c->free, c->taken + (__u32)i, &number);
    if (!to) return 1;
    to += STEER_HEADROOM;
    __u32 part = c->skb->len - headers - from;
    const int last = part <= room;
    if (!last) part = room;
    if (headers && bpf_skb_load_bytes(c->skb, 0, to, STEER_MOST_HEADERS)) return 1;
    // Without the barrier clang merges these comparisons, and the verifier does not follow.
    asm volatile("" : "+r"(part));
    if (part > (headers ? STEER_SEGMENT : STEER_ROOM)) return 1;
    if (part == 0 || bpf_skb_load_bytes(c->skb, headers + from, to + headers, part)) return 1;
    if (headers) {
        make_segment(to, headers - sizeof(struct ethhdr) + part, from, last);
    } else if (c->each && i == 0) {
        struct ethhdr* eth = (void*)to;
        struct udphdr* udp = (void*)((char*)(eth + 1) + sizeof(struct iphdr));
        eth->h_proto = bpf_htons(STEER_DATAGRAMS);
        udp->check = c->each;
    }
    if (!give(c->ring, c->at + (__u32)i, number, headers + part, headers || last ? 0 : STEER_CONTINUED))
        return 1;
    c->done = last;
    return last;
}
