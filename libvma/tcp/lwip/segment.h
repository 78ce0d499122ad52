// SPDX-License-Identifier: BSD-2-Clause
// A segment of the send queue: lwIP's tcp_seg, which lwIP frees when it is acknowledged.
//
// Its data lies in one block behind a TCP header of lwIP's, of which sequence number and flags count. That of
// a long segment, which may leave as a super-frame, lies in a SendBlock, and the header apart from it.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "libvma/net/frame.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/lwip/send_block.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp::lwip {

class Segment : tcp_seg {
  public:
    // For the sources of this folder: the same segment as lwIP knows it.
    static Segment* of(tcp_seg* segment) noexcept { return static_cast<Segment*>(segment); }
    static tcp_seg* raw(Segment* segment) noexcept { return segment; }

    // An empty segment with room for `room` bytes of data. Ports in network byte order. Null without memory.
    static Segment* make(std::uint32_t room, std::uint32_t seq, in_port_t from, in_port_t to) noexcept;
    // An empty long segment, whose data will lie in `block` from `data` on; the reference to it stays the
    // caller's. Null without memory.
    static Segment* make_long(SendBlock* block, std::uint8_t* data, std::uint32_t seq, in_port_t from,
                              in_port_t to) noexcept;
    // Cuts the segment behind `length` bytes of data. Returns what is cut off, which follows it in the list;
    // null without memory.
    Segment* split(std::uint32_t length) noexcept;
    bool is_long() const noexcept { return (p->flags & PBUF_FLAG_IS_CUSTOM) != 0; }
    // Takes the first `length` bytes, which are not all, off a long segment.
    void trim_front(std::uint32_t length) noexcept {
        p->payload = data() + length;
        p->len = p->tot_len = len = static_cast<std::uint16_t>(len - length);
        tcphdr->seqno = htonl(seq() + length);
    }

    // Frees it. There is one reference to its data.
    inline void free() noexcept;

    Segment* next() const noexcept { return of(tcp_seg::next); }
    void set_next(Segment* segment) noexcept { tcp_seg::next = segment; }
    // Its first sequence number, how many it takes with SYN and FIN, and the one behind it.
    std::uint32_t seq() const noexcept { return ntohl(tcphdr->seqno); }
    std::uint32_t span() const noexcept { return TCP_TCPLEN(this); }
    std::uint32_t end() const noexcept { return seq() + span(); }
    // TCP_SYN, TCP_FIN and the like.
    std::uint8_t control() const noexcept { return TCPH_FLAGS(tcphdr); }
    bool syn() const noexcept { return (control() & TCP_SYN) != 0; }
    bool fin() const noexcept { return (control() & TCP_FIN) != 0; }
    void add_ack() noexcept { TCPH_SET_FLAG(tcphdr, TCP_ACK); }

    std::uint8_t* data() const noexcept {
        return is_long() ? static_cast<std::uint8_t*>(p->payload)
                         : reinterpret_cast<std::uint8_t*>(tcphdr) + sizeof(net::TcpHeader);
    }
    std::uint32_t size() const noexcept { return len; }  // bytes of data
    // `length` bytes have been written behind the data.
    void grow(std::uint32_t length) noexcept {
        len = static_cast<std::uint16_t>(len + length);
        p->len = p->tot_len = static_cast<std::uint16_t>(p->len + length);
    }

    // Marks for the scoreboard, in bits of lwIP's flags that are free. The fourth says of a SYN that it
    // offers SACK; a SYN has no marks.
    static constexpr std::uint8_t kMarks[] = {0x20, 0x40, 0x80, 0x10};
    std::uint8_t marks() const noexcept { return flags; }
    void set_marks(std::uint8_t marks) noexcept { flags = marks; }
    // When it was sent for the last time, in microseconds that wrap. Kept where lwIP has an acknowledgement
    // number: each frame gets a fresh one of those, and nothing reads the segment's.
    Usec sent() const noexcept { return Usec(tcphdr->ackno); }
    void set_sent(Usec at) noexcept { tcphdr->ackno = at.count(); }

  private:
    static Segment* make_of(pbuf* block, tcp_hdr* header, std::uint32_t seq, in_port_t from,
                            in_port_t to) noexcept;
    inline SendBlock* block() const noexcept;
};
static_assert(sizeof(Segment) == sizeof(tcp_seg) && std::is_standard_layout_v<Segment> &&
              std::is_trivial_v<Segment>);

// What a long segment has beside its data.
struct LongPart {
    pbuf_custom piece;
    SendBlock* block;
    tcp_hdr header;
};
static_assert(std::is_standard_layout_v<LongPart>);  // piece is first

inline void free_long_part(pbuf* piece) noexcept {
    auto* part = reinterpret_cast<LongPart*>(piece);
    part->block->unref();
    deallocate(part, sizeof *part);
}

inline void Segment::free() noexcept {
    if (is_long())
        free_long_part(p);
    else
        mem_free(p);
    deallocate(static_cast<tcp_seg*>(this), sizeof(tcp_seg));
}

inline SendBlock* Segment::block() const noexcept { return reinterpret_cast<LongPart*>(p)->block; }

inline Segment* Segment::make_of(pbuf* block, tcp_hdr* header, std::uint32_t seq, in_port_t from,
                                 in_port_t to) noexcept {
    Segment* made = of(static_cast<tcp_seg*>(memp_malloc(MEMP_TCP_SEG)));
    if (made == nullptr) {
        pbuf_free(block);
        return nullptr;
    }
    made->set_next(nullptr);
    made->p = block;
    made->len = 0;
    made->flags = 0;
    made->tcphdr = header;
    header->src = from;
    header->dest = to;
    header->seqno = htonl(seq);
    TCPH_HDRLEN_FLAGS_SET(header, 5, TCP_ACK);
    header->urgp = 0;
    return made;
}

inline Segment* Segment::make(std::uint32_t room, std::uint32_t seq, in_port_t from, in_port_t to) noexcept {
    pbuf* block = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(sizeof(net::TcpHeader) + room), PBUF_RAM);
    if (block == nullptr) return nullptr;
    block->len = block->tot_len = sizeof(net::TcpHeader);
    return make_of(block, static_cast<tcp_hdr*>(block->payload), seq, from, to);
}

inline Segment* Segment::make_long(SendBlock* block, std::uint8_t* data, std::uint32_t seq, in_port_t from,
                                   in_port_t to) noexcept {
    auto* part = static_cast<LongPart*>(allocate(sizeof(LongPart)));
    if (part == nullptr) return nullptr;
    part->block = block;
    block->ref();
    part->piece.custom_free_function = &free_long_part;
    pbuf* piece = pbuf_alloced_custom(PBUF_RAW, 0, PBUF_REF, &part->piece, nullptr, 0);
    piece->payload = data;
    return make_of(piece, &part->header, seq, from, to);
}

inline Segment* Segment::split(std::uint32_t length) noexcept {
    const std::uint32_t left = size() - length;
    const bool shares = is_long();
    Segment* rest = shares ? make_long(block(), data() + length, seq() + length, tcphdr->src, tcphdr->dest)
                           : make(left, seq() + length, tcphdr->src, tcphdr->dest);
    if (rest == nullptr) return nullptr;
    if (!shares) std::memcpy(rest->data(), data() + length, left);
    rest->grow(left);
    rest->flags = flags;
    rest->set_sent(sent());
    if (fin()) {
        TCPH_SET_FLAG(rest->tcphdr, TCP_FIN);
        TCPH_FLAGS_SET(tcphdr, control() & ~TCP_FIN);
    }
    len = static_cast<u16_t>(length);
    p->len = p->tot_len = static_cast<u16_t>(shares ? length : sizeof(net::TcpHeader) + length);
    rest->set_next(next());
    set_next(rest);
    return rest;
}

}  // namespace vma::tcp::lwip
