// SPDX-License-Identifier: BSD-2-Clause
// The TCP header of the segment that lwIP processes. lwIP has turned its numbers to host byte order.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <type_traits>

#include "libvma/tcp/lwip/input_state.h"

namespace vma::tcp::lwip {

class ReceivedHeader : tcp_hdr {
  public:
    // For the sources of this folder: the same header as lwIP knows it.
    static ReceivedHeader* of(tcp_hdr* header) noexcept { return static_cast<ReceivedHeader*>(header); }

    std::uint32_t seq() const noexcept { return seqno; }
    std::uint32_t ack() const noexcept { return ackno; }
    std::uint16_t window() const noexcept { return wnd; }  // not scaled
    std::uint8_t flags() const noexcept { return TCPH_FLAGS(this); }
    // TCP's two flags that lwIP does not know (ecn.h).
    std::uint8_t ecn_flags() const noexcept {
        return static_cast<std::uint8_t>(ntohs(_hdrlen_rsvd_flags) & 0xc0);
    }
    std::uint16_t urgent_offset() const noexcept { return ntohs(urgp); }
    // Where the options begin.
    const std::uint8_t* options() const noexcept { return reinterpret_cast<const std::uint8_t*>(this + 1); }
    std::uint8_t* options() noexcept { return reinterpret_cast<std::uint8_t*>(this + 1); }
    // Makes it an ACK and nothing else, which begins at `seq`.
    void make_ack(std::uint32_t seq) noexcept {
        TCPH_FLAGS_SET(this, TCP_ACK);
        seqno = seq;
    }

    // lwIP shall see neither data nor FIN in the segment, only what it acknowledges.
    static void drop_text() noexcept { vma_lwip_drop_text(); }
    // lwIP shall take the segment for one that begins at `seq`.
    static void begin_at(std::uint32_t seq) noexcept { vma_lwip_begin_at(seq); }
    // lwIP shall read no options.
    static void drop_options() noexcept { vma_lwip_drop_options(); }
};
static_assert(sizeof(ReceivedHeader) == sizeof(tcp_hdr) && std::is_standard_layout_v<ReceivedHeader> &&
              std::is_trivial_v<ReceivedHeader>);

}  // namespace vma::tcp::lwip
