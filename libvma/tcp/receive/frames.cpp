// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/frames.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/options.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxMerged = 60000;  // lwIP counts a segment's bytes in 16 bits

struct RxPbuf {
    pbuf_custom storage;
};
static_assert(sizeof(RxPbuf) <= sizeof(ring::RxBuffer::user));

void release_buffer(pbuf* p) {
    auto* storage = reinterpret_cast<std::byte*>(p);
    auto* buffer = reinterpret_cast<ring::RxBuffer*>(storage - offsetof(ring::RxBuffer, user));
    buffer->more = nullptr;
    buffer->release();
}

pbuf* wrap(ring::RxBuffer* buffer, std::uint32_t offset, std::uint32_t length) noexcept {
    auto* storage = new (buffer->user) pbuf_custom{};
    return lwip::received(*storage, &release_buffer, buffer->frame + offset,
                          static_cast<std::uint16_t>(length));
}

// Tells each pbuf of a chain how much there is from it on.
void set_total(pbuf* head) noexcept {
    std::uint32_t total = 0;
    for (pbuf* p = head; p != nullptr; p = p->next) total += p->len;
    for (pbuf* p = head; p != nullptr; p = p->next) {
        p->tot_len = static_cast<u16_t>(total);
        total -= p->len;
    }
}

// The TCP part of a frame, from its byte `from` to `end`, copied into one piece.
pbuf* copy_of(ring::RxBuffer* first, std::uint32_t from, std::uint32_t end) noexcept {
    const std::uint32_t total = end - from;
    pbuf* p = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(total), PBUF_RAM);
    if (p != nullptr) {
        std::uint32_t at = 0, skip = from;
        for (ring::RxBuffer* b = first; b != nullptr && at < total; b = b->more) {
            if (skip >= b->length) {
                skip -= b->length;
                continue;
            }
            const std::uint32_t n = std::min(b->length - skip, total - at);
            std::memcpy(static_cast<std::uint8_t*>(p->payload) + at, b->frame + skip, n);
            at += n;
            skip = 0;
        }
    }
    first->release();
    return p;
}

// The TCP part of a frame (from `skip` bytes behind the start of its header on) as a chain of pbufs, one for
// each buffer.
pbuf* chain_of(ring::RxBuffer* first, std::uint32_t from) noexcept {
    const std::uint32_t end =
        first->payload_offset + first->payload_length;  // Ethernet may have padded the frame
    const std::uint32_t header_end = first->payload_offset;
    // Options beyond the first buffer: no device that is known splits frames there.
    if (first->length < header_end) return copy_of(first, from, end);
    pbuf* head = nullptr;
    pbuf* last = nullptr;
    std::uint32_t position = 0, skip = from;
    ring::RxBuffer* b = first;
    while (b != nullptr) {
        ring::RxBuffer* more = b->more;
        const std::uint32_t left = end > position ? end - position : 0;
        const std::uint32_t in_here = std::min(b->length, left);
        position += b->length;
        if (in_here > skip) {
            pbuf* p = wrap(b, skip, in_here - skip);
            if (head == nullptr)
                head = p;
            else
                last->next = p;
            last = p;
            skip = 0;
        } else {
            skip -= std::min(skip, in_here);
            b->more = nullptr;
            b->release();
        }
        b = more;
    }
    set_total(head);
    return head;
}

bool plain_options(const net::TcpHeader& h, unsigned length) noexcept {
    if (length == 20) return true;
    const auto* o = reinterpret_cast<const std::uint8_t*>(&h + 1);
    return length == 32 && o[0] == 1 && o[1] == 1 && o[2] == 8 && o[3] == 10;
}

bool merges(const ring::RxBuffer& a, const ring::RxBuffer& b, std::uint32_t next_seq) noexcept {
    const unsigned length_a = a.payload_offset - a.l4_offset, length_b = b.payload_offset - b.l4_offset;
    if (length_a != length_b || b.payload_length == 0 || a.payload_length == 0) return false;
    if (a.length < a.payload_offset || b.length < b.payload_offset) return false;
    const net::TcpHeader &x = header_of(a), &y = header_of(b);
    constexpr std::uint8_t kPush = TCP_PSH;
    if ((x.flags & ~kPush) != TCP_ACK || (y.flags & ~kPush) != TCP_ACK) return false;
    return ntohl(y.seq) == next_seq && plain_options(x, length_a) && plain_options(y, length_b);
}

// Cuts off the front of `list` what continues `first`, which becomes the first of that. Returns its last.
ring::RxBuffer* take_run(ring::RxBuffer* first, ring::RxBuffer*& list) noexcept {
    std::uint32_t total = first->payload_length;
    std::uint32_t next_seq = ntohl(header_of(*first).seq) + first->payload_length;
    ring::RxBuffer* last = first;
    while (list != nullptr && total + list->payload_length <= kMaxMerged && merges(*last, *list, next_seq)) {
        total += list->payload_length;
        next_seq += list->payload_length;
        last->next = list;
        last = list;
        list = list->next;
        last->next = nullptr;
    }
    return last;
}

}  // namespace

pbuf* tcp_part(ring::RxBuffer* buffer) noexcept { return chain_of(buffer, buffer->l4_offset); }

pbuf* merged_part(ring::RxBuffer* first, ring::RxBuffer*& list, std::uint64_t& merged) noexcept {
    if (list == nullptr || first->payload_length == 0) return tcp_part(first);
    const ring::RxBuffer* last = take_run(first, list);
    if (last == first) return tcp_part(first);
    // The last one's word counts for ACK, window and time stamp; a PSH of any counts.
    auto& to = const_cast<net::TcpHeader&>(header_of(*first));
    const net::TcpHeader& from = header_of(*last);
    std::uint8_t flags = to.flags;
    for (ring::RxBuffer* b = first; b != nullptr; b = b->next) flags |= header_of(*b).flags;
    to.flags = flags;
    to.ack = from.ack;
    to.window = from.window;
    const unsigned options = first->payload_offset - first->l4_offset - sizeof(net::TcpHeader);
    if (options != 0) std::memcpy(&to + 1, &from + 1, options);
    pbuf* head = nullptr;
    pbuf* tail = nullptr;
    for (ring::RxBuffer* b = first; b != nullptr;) {
        ring::RxBuffer* next = b->next;
        b->next = nullptr;
        pbuf* p = chain_of(b, head == nullptr ? b->l4_offset : b->payload_offset);
        if (head == nullptr)
            head = p;
        else
            tail->next = p;
        for (tail = p; tail->next != nullptr; tail = tail->next) {
        }
        merged++;
        b = next;
    }
    set_total(head);
    return head;
}

bool hide_options(tcp_hdr& header, unsigned option_bytes, const Options& wanted) noexcept {
    auto* options = reinterpret_cast<std::uint8_t*>(&header + 1);
    for (unsigned at = 0; at < option_bytes && options[at] != 0;) {
        if (options[at] == 1) {
            at++;
            continue;
        }
        if (at + 1 >= option_bytes || options[at + 1] < 2 || at + options[at + 1] > option_bytes) {
            std::memset(options + at, 0, option_bytes - at);
            return false;
        }
        const unsigned kind = options[at], size = options[at + 1];
        const bool no_mss = kind == 2 && size == 4 && options[at + 2] == 0 && options[at + 3] == 0;
        if ((kind == 8 && !wanted.timestamps) || (kind == 4 && !wanted.sack) ||
            (kind == 3 && !wanted.window_scaling) || no_mss)
            std::memset(options + at, 1, size);
        at += size;
    }
    return true;
}

}  // namespace vma::tcp
