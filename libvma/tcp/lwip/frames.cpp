// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/frames.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "libvma/tcp/ecn.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/lwip/received_header.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxMerged = 60000;  // lwIP counts a segment's bytes in 16 bits

using lwip::Piece;

// Tells each piece of a chain how much there is from it on.
void set_total(Piece* head) noexcept {
    std::uint32_t total = 0;
    for (Piece* p = head; p != nullptr; p = p->next()) total += p->size();
    for (Piece* p = head; p != nullptr; p = p->next()) {
        p->set_total(total);
        total -= p->size();
    }
}

// The TCP part of a frame, from its byte `from` to `end`, copied into one piece.
Piece* copy_of(ring::RxBuffer* first, std::uint32_t from, std::uint32_t end) noexcept {
    const std::uint32_t total = end - from;
    Piece* p = Piece::block(total);
    if (p != nullptr) {
        std::uint32_t skip = from;
        for (ring::RxBuffer* b = first; b != nullptr && p->size() < total; b = b->more) {
            if (skip >= b->length) {
                skip -= b->length;
                continue;
            }
            p->append(b->frame + skip, std::min(b->length - skip, total - p->size()));
            skip = 0;
        }
    }
    first->release();
    return p;
}

// The TCP part of a frame (from `skip` bytes behind the start of its header on) as a chain of pieces, one for
// each buffer.
Piece* chain_of(ring::RxBuffer* first, std::uint32_t from) noexcept {
    // Ethernet may have padded the frame.
    const std::uint32_t end = first->payload_offset + first->payload_length;
    // Nearly always it is in one buffer.
    if (first->more == nullptr && first->length >= end && end > from)
        return Piece::of_buffer(first, from, end - from);
    const std::uint32_t header_end = first->payload_offset;
    // Options beyond the first buffer: no device that is known splits frames there.
    if (first->length < header_end) return copy_of(first, from, end);
    Piece* head = nullptr;
    Piece* last = nullptr;
    std::uint32_t position = 0, skip = from;
    ring::RxBuffer* b = first;
    while (b != nullptr) {
        ring::RxBuffer* more = b->more;
        const std::uint32_t left = end > position ? end - position : 0;
        const std::uint32_t in_here = std::min(b->length, left);
        position += b->length;
        if (in_here > skip) {
            Piece* p = Piece::of_buffer(b, skip, in_here - skip);
            if (head == nullptr)
                head = p;
            else
                last->set_next(p);
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
    return length == sizeof h ||
           usual_stamp(reinterpret_cast<const std::uint8_t*>(&h + 1), length - sizeof h);
}

bool merges(const ring::RxBuffer& a, const ring::RxBuffer& b, std::uint32_t next_seq) noexcept {
    const unsigned length_a = a.payload_offset - a.l4_offset, length_b = b.payload_offset - b.l4_offset;
    if (length_a != length_b || b.payload_length == 0 || a.payload_length == 0) return false;
    if (a.length < a.payload_offset || b.length < b.payload_offset) return false;
    if (((a.tos ^ b.tos) & Ecn::kIpBits) != 0) return false;
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

Piece* tcp_part(ring::RxBuffer* buffer) noexcept { return chain_of(buffer, buffer->l4_offset); }

Piece* merged_part(ring::RxBuffer* first, ring::RxBuffer*& list, std::uint64_t& merged) noexcept {
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
    Piece* head = nullptr;
    Piece* tail = nullptr;
    for (ring::RxBuffer* b = first; b != nullptr;) {
        ring::RxBuffer* next = b->next;
        b->next = nullptr;
        Piece* p = chain_of(b, head == nullptr ? b->l4_offset : b->payload_offset);
        if (head == nullptr)
            head = p;
        else
            tail->set_next(p);
        for (tail = p; tail->next() != nullptr; tail = tail->next()) {
        }
        merged++;
        b = next;
    }
    set_total(head);
    return head;
}

bool hide_options(lwip::ReceivedHeader& header, unsigned option_bytes, const Options& wanted) noexcept {
    std::uint8_t* options = header.options();
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
