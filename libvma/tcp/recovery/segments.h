// SPDX-License-Identifier: BSD-2-Clause
// The segments of the send queue as the scoreboard sees them.
#pragma once

#include "libvma/tcp/lwip/segment.h"
#include "libvma/tcp/recovery/scoreboard.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct SegmentAccess {
    using Segment = lwip::Segment;
    static Segment* next(const Segment* s) noexcept { return s->next(); }
    static std::uint32_t seq(const Segment* s) noexcept { return s->seq(); }
    static std::uint32_t len(const Segment* s) noexcept { return s->span(); }
    static Usec sent(const Segment* s) noexcept { return s->sent(); }
    static std::uint8_t flags(const Segment* s) noexcept { return s->marks(); }
    static void set_flags(Segment* s, std::uint8_t marks) noexcept { s->set_marks(marks); }
    static constexpr std::uint8_t kSacked = Segment::kMarks[0], kLost = Segment::kMarks[1],
                                  kRetransmitted = Segment::kMarks[2], kResent = Segment::kMarks[3];
};

// A class of its own, so that loss_recovery.h need not know lwIP's types.
struct SegmentBoard : Scoreboard<SegmentAccess> {};

}  // namespace vma::tcp
