// SPDX-License-Identifier: BSD-2-Clause
// The scoreboard finds what is lost: by time, and at a timeout. A part of scoreboard.h, which includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "libvma/tcp/recovery/scoreboard.h"

namespace vma::tcp {

template <class Access>
LossOutcome Scoreboard<Access>::find_lost(Segment* head, const Rack& rack, Usec window, Usec now) noexcept {
    LossOutcome out;
    unsigned steps = kMostSteps;
    find_lost_originals(head, rack, window, now, steps, out);
    out.more = steps == 0;
    steps = std::min(steps, kMostAgain);
    if (counts_.retrans_segments != 0) find_lost_again(head, rack, window, now, steps, out);
    out.more = out.more || steps == 0;
    if (out.more) out.wait = std::max(out.wait, Usec(1));
    return out;
}

template <class Access>
void Scoreboard<Access>::on_rto(Segment* head, std::uint32_t nxt, const Rack& rack, Usec now,
                                bool all) noexcept {
    const bool reneged = head != nullptr && (Access::flags(head) & Access::kSacked) != 0;
    if (reneged || !sack_) forget_reports();
    for (Segment* segment = head; segment != nullptr; segment = Access::next(segment)) {
        std::uint8_t flags = Access::flags(segment);
        if (reneged)
            flags &= static_cast<std::uint8_t>(~Access::kSacked);
        else if (flags & Access::kSacked)
            continue;
        else if (!all && sack_ && segment != head && rack.remaining(Access::sent(segment), Usec(0), now) > 0)
            continue;
        uncount(Access::flags(segment) & static_cast<std::uint8_t>(~Access::kSacked), Access::len(segment));
        flags = static_cast<std::uint8_t>(flags & ~Access::kRetransmitted) | Access::kLost;
        counts_.lost_bytes += Access::len(segment);
        counts_.lost_segments++;
        Access::set_flags(segment, flags);
    }
    edge_ = resend_ = again_.first = again_.scan = nullptr;
    phase_ = RecoveryPhase::timeout;
    recovery_point_ = nxt;
}

template <class Access>
void Scoreboard<Access>::undo(Segment* head) noexcept {
    for (Segment* segment = head; segment != nullptr && counts_.lost_segments != 0;
         segment = Access::next(segment)) {
        const std::uint8_t flags = Access::flags(segment);
        if (!(flags & Access::kLost)) continue;
        Access::set_flags(segment, flags & static_cast<std::uint8_t>(~Access::kLost));
        counts_.lost_segments--;
    }
    counts_.lost_bytes = 0;
    counts_.lost_segments = counts_.lost_retrans_segments = 0;
    edge_ = resend_ = nullptr;
    undo_armed_ = undo_possible_ = false;
    phase_ = RecoveryPhase::open;
    dupacks_ = 0;
    counts_.reno_bytes = 0;
}

// What was sent once lies in the order of its times.
template <class Access>
void Scoreboard<Access>::find_lost_originals(Segment* head, const Rack& rack, Usec window, Usec now,
                                             unsigned& steps, LossOutcome& out) noexcept {
    Segment* segment = edge_ == nullptr ? head : edge_;
    Segment* first_kept = nullptr;
    Segment* last = nullptr;  // at the end of the list the edge stays there: more may follow
    unsigned ahead = kLookAhead;
    for (; segment != nullptr && steps != 0; segment = Access::next(segment)) {
        if (first_kept != nullptr && ahead-- == 0) {
            out.wait = std::max(out.wait, rack.longest(window, now));
            break;
        }
        last = segment;
        constexpr std::uint8_t known = Access::kSacked | Access::kLost | Access::kRetransmitted;
        if (Access::flags(segment) & known) {
            steps--;
            continue;
        }
        const Usec sent = Access::sent(segment);
        if (!rack.overtaken(sent, end(segment))) break;
        const std::int64_t wait = rack.remaining(sent, window, now);
        steps--;
        if (wait <= 0) {
            out.lost += mark_lost(segment);
            continue;
        }
        if (first_kept == nullptr) first_kept = segment;
        out.wait = std::max(out.wait, Usec(static_cast<std::uint32_t>(wait)));
    }
    edge_ = first_kept != nullptr ? first_kept : segment != nullptr ? segment : last;
}

// Retransmissions lie in the order of their times until one is sent a second time.
template <class Access>
void Scoreboard<Access>::find_lost_again(Segment* head, const Rack& rack, Usec window, Usec now,
                                         unsigned& steps, LossOutcome& out) noexcept {
    if (again_.mixed && again_.oldest_known && !rack.overtaken(again_.oldest, again_.oldest_end)) return;
    constexpr std::uint8_t mask = Access::kRetransmitted | Access::kSacked;
    const bool whole = again_.scan == nullptr;
    Segment* segment = !whole ? again_.scan : again_.first != nullptr ? again_.first : head;
    bool first = whole;
    again_.scan = nullptr;
    again_.oldest_known = false;
    for (; segment != nullptr && seq_before(Access::seq(segment), again_.end);
         segment = Access::next(segment)) {
        if (steps == 0) {  // the rest is for the next ACK
            again_.scan = segment;
            again_.oldest_known = false;
            return;
        }
        steps--;
        if ((Access::flags(segment) & mask) != Access::kRetransmitted) continue;
        const Usec sent = Access::sent(segment);
        const bool overtaken = rack.overtaken(sent, end(segment));
        const std::int64_t wait = overtaken ? rack.remaining(sent, window, now) : 0;
        if (overtaken && wait <= 0) {
            out.lost += lose_again(segment);
            out.retransmission = true;
            continue;
        }
        if (first) again_.first = segment;
        first = false;
        if (overtaken) out.wait = std::max(out.wait, Usec(static_cast<std::uint32_t>(wait)));
        if (!overtaken && !again_.mixed) return;
        if (!again_.oldest_known || static_cast<std::int32_t>((sent - again_.oldest).count()) < 0) {
            again_.oldest = sent;
            again_.oldest_end = end(segment);
            again_.oldest_known = true;
        }
    }
    if (!whole) again_.oldest_known = false;
}

// A retransmission is lost: it is to be sent once more.
template <class Access>
std::uint32_t Scoreboard<Access>::lose_again(Segment* segment) noexcept {
    const std::uint8_t flags = Access::flags(segment);
    const std::uint32_t len = Access::len(segment);
    uncount(flags, len);
    Access::set_flags(segment, static_cast<std::uint8_t>(flags & ~Access::kRetransmitted) | Access::kLost);
    counts_.lost_bytes += len;
    counts_.lost_segments++;
    if (resend_ != nullptr && seq_before(Access::seq(segment), Access::seq(resend_))) resend_ = segment;
    return len;
}

template <class Access>
std::uint32_t Scoreboard<Access>::mark_lost(Segment* segment) noexcept {
    const std::uint8_t flags = Access::flags(segment);
    if (flags & (Access::kLost | Access::kSacked)) return 0;
    Access::set_flags(segment, flags | Access::kLost);
    counts_.lost_bytes += Access::len(segment);
    counts_.lost_segments++;
    if (flags & Access::kRetransmitted) counts_.lost_retrans_segments++;
    if (resend_ != nullptr && seq_before(Access::seq(segment), Access::seq(resend_))) resend_ = segment;
    return Access::len(segment);
}

template <class Access>
bool Scoreboard<Access>::on_duplicate_ack(Segment* head, std::uint32_t una,
                                          std::uint32_t outstanding) noexcept {
    if (sack_ || head == nullptr) return false;
    // After a timeout, and at the very end of a recovery, duplicates are echoes of what was sent
    // needlessly (RFC 6582 section 3.2 step 1).
    if (phase_ == RecoveryPhase::timeout ||
        (phase_ == RecoveryPhase::open && guarded_ && una == recovery_point_))
        return false;
    dupacks_++;
    // All but the first segment may have arrived, not more.
    const std::uint32_t rest = outstanding > Access::len(head) ? outstanding - Access::len(head) : 0;
    counts_.reno_bytes = std::min(counts_.reno_bytes + mss_, rest);
    if (phase_ != RecoveryPhase::open || dupacks_ != kDupThresh) return false;
    return mark_lost(head) != 0;
}

template <class Access>
void Scoreboard<Access>::on_split(Segment* first, Segment* second) noexcept {
    const std::uint8_t flags = Access::flags(first);
    Access::set_flags(second,
                      static_cast<std::uint8_t>(Access::flags(second) & ~kAnyMark) | (flags & kAnyMark));
    if (flags & Access::kSacked) counts_.sacked_segments++;
    if (flags & Access::kLost) counts_.lost_segments++;
    if (!(flags & Access::kSacked) && (flags & Access::kRetransmitted)) {
        counts_.retrans_segments++;
        if (flags & Access::kLost) counts_.lost_retrans_segments++;
    }
    if (highest_ == first) highest_ = second;
    cached_ = 0;  // a piece of what a block covered in part may be covered now
}

}  // namespace vma::tcp
