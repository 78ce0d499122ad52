// SPDX-License-Identifier: BSD-2-Clause
// lwIP's segments as the scoreboard sees them. Three bits of their flags are free, and hold its marks.
#pragma once

#include <netinet/in.h>

#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/recovery/scoreboard.h"

namespace vma::tcp {

struct SegmentAccess {
    using Segment = tcp_seg;
    static Segment* next(const Segment* s) noexcept { return s->next; }
    static std::uint32_t seq(const Segment* s) noexcept { return ntohl(s->tcphdr->seqno); }
    static std::uint32_t len(const Segment* s) noexcept { return TCP_TCPLEN(s); }
    static std::uint8_t flags(const Segment* s) noexcept { return s->flags; }
    static void set_flags(Segment* s, std::uint8_t flags) noexcept { s->flags = flags; }
    // When it was sent first, in microseconds that wrap. Kept where lwIP has an acknowledgement number: each
    // frame gets a fresh one of those, and in the segment nobody reads it.
    static std::uint32_t sent_us(const Segment* s) noexcept { return s->tcphdr->ackno; }
    static void set_sent_us(Segment* s, std::uint32_t us) noexcept { s->tcphdr->ackno = us; }
    static constexpr std::uint8_t kSacked = 0x20, kLost = 0x40, kRetransmitted = 0x80;
};

// A class of its own, so that loss_recovery.h need not know lwIP's types.
struct SegmentBoard : Scoreboard<SegmentAccess> {};

}  // namespace vma::tcp
