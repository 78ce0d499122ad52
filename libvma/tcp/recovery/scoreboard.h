// SPDX-License-Identifier: BSD-2-Clause
// What of the data in flight has arrived, what is lost, and what to send again: the scoreboard of RFC 2018
// and RFC 6675, on which RACK (rack.h) finds what is lost; and for a peer without SACK what NewReno (RFC
// 6582) makes of duplicate ACKs.
//
// The marks live in the segments, which belong to somebody else (lwIP's list of unacknowledged segments): a
// list in the order of sequence numbers that one can only walk forwards. Walking all of it for every ACK
// would be quadratic in the window, so sums are kept as marks change and pointers into the list say where
// work left off:
//   highest_   the last segment reported by SACK; new reports usually begin there
//   cursor_    the last one found elsewhere, where retransmissions fill holes one after the other
//   edge_      everything before it is sacked, lost, or sent again
//   again_     nothing before it was sent again and is on its way
//   resend_    nothing before it needs to be sent again
// What was sent once lies in the order of its times, so RACK looks from edge_ on until a segment is too
// young. Retransmissions lie in that order, too, until one is lost and leaves behind later ones; from then on
// RACK looks at all of them, but only when the oldest may be due. A block that the previous ACK carried
// already is not looked at again. So a segment is passed about once by each pointer. A peer whose reports
// jump about would make each ACK cost a walk through the list; so an ACK has kMostSteps segments to pass that
// it does not change. What it reports beyond that is left to later ACKs, for which the walk goes on where it
// ended: reports are advice, and a segment that is not marked costs at most a needless retransmission.
//
// The counts treat a segment as one: sacked when all of it is, acknowledged when all of it is. Whoever
// changes the list must tell: on_cumulative_ack() before segments go from its front, on_split() after one has
// become two, forget() when all go. Segments may be appended at any time. Not locked: it belongs to its
// connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/tcp/recovery/rack.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// A block of a SACK option (RFC 2018): [left, right) in host byte order.
struct SackBlock {
    std::uint32_t left = 0;
    std::uint32_t right = 0;
    friend bool operator==(const SackBlock&, const SackBlock&) = default;
};

// What an ACK's SACK option changed.
struct SackOutcome {
    std::uint32_t newly_sacked = 0;   // bytes
    unsigned dsacks = 0;              // blocks that report duplicates (RFC 2883): 0 or 1
    std::uint32_t duplicate_end = 0;  // where that ends
    unsigned invalid = 0;             // blocks that were ignored
    // How far before the end of what had been reported a segment lies that was sent once and arrived now:
    // bytes.
    std::uint32_t reordered = 0;
    bool original = false;  // one of them was sent once, before recovery_point()
};

enum class RecoveryPhase : std::uint8_t { open, recovery, timeout };

// What a cumulative ACK covered.
struct AckOutcome {
    std::uint32_t bytes = 0;      // of whole segments
    std::uint32_t delivered = 0;  // of these, what no SACK had reported
    unsigned segments = 0;
    bool retransmitted = false;   // one of them was sent more than once: no round trip may be measured (Karn)
    bool recovered = false;       // ended the recovery, or the time after a timeout
    bool reneged = false;         // the peer had reported the next segment and yet does not acknowledge it
    std::uint32_t reordered = 0;  // as in SackOutcome
    bool original = false;        // as there
    RecoveryPhase was = RecoveryPhase::open;  // before it
};

// What RACK made of an ACK, or of the time that has passed.
struct LossOutcome {
    std::uint32_t lost = 0;       // bytes
    bool retransmission = false;  // some of them had been sent again
    bool more = false;            // not all could be looked at
    Usec wait{};                  // until more may be lost; 0: nothing is waited for
};

// `Access` says how to reach a segment:
//   using Segment = ...;
//   static Segment* next(const Segment*);           // nullptr after the last
//   static std::uint32_t seq(const Segment*);       // first sequence number, host byte order
//   static std::uint32_t len(const Segment*);       // sequence numbers it takes, with SYN and FIN; not 0
//   static Usec sent(const Segment*);               // when it was sent for the last time
//   static std::uint8_t flags(const Segment*);
//   static void set_flags(Segment*, std::uint8_t);  // only the four bits below are changed
//   static constexpr std::uint8_t kSacked, kLost;
//   static constexpr std::uint8_t kRetransmitted;   // sent again, and that is on its way or has arrived
//   static constexpr std::uint8_t kResent;          // was ever sent again
// `head` is always the first unacknowledged segment, nullptr when there is none.
template <class Access>
class Scoreboard {
  public:
    using Segment = typename Access::Segment;
    static constexpr unsigned kDupThresh = 3;  // RFC 5681, RFC 6675
    // Segments that one ACK, or one look for what to send again, may pass without a change.
    static constexpr unsigned kMostSteps = 1024;

    // `sack`: whether both sides offered SACK. `mss`: bytes of a full segment. `first`: the initial sequence
    // number.
    void init(bool sack, std::uint32_t mss, std::uint32_t first) noexcept {
        *this = Scoreboard{};
        sack_ = sack;
        mss_ = std::max(mss, 1u);
        recovery_point_ = undo_from_ = first;
    }
    void set_mss(std::uint32_t mss) noexcept { mss_ = std::max(mss, 1u); }
    bool uses_sack() const noexcept { return sack_; }

    // Sums in bytes. Without SACK a duplicate ACK counts as a full segment that has arrived.
    std::uint32_t sacked_bytes() const noexcept { return counts_.sacked_bytes + counts_.reno_bytes; }
    std::uint32_t lost_bytes() const noexcept { return counts_.lost_bytes; }  // without those sacked since
    std::uint32_t retrans_bytes() const noexcept {
        return counts_.retrans_bytes;
    }  // sent again, not sacked since
    unsigned sacked_segments() const noexcept { return counts_.sacked_segments + dupacks_; }
    unsigned lost_segments() const noexcept { return counts_.lost_segments; }
    unsigned retrans_segments() const noexcept { return counts_.retrans_segments; }
    std::uint64_t dsacks() const noexcept { return dsacks_; }
    std::uint64_t invalid_blocks() const noexcept { return invalid_; }
    unsigned dupacks() const noexcept { return dupacks_; }

    // Bytes believed to be on their way (RFC 6675 section 4). `outstanding`: SND.NXT minus the first
    // segment's sequence number. A connection sends while pipe() is less than cwnd by a segment; that is also
    // limited transmit (RFC 3042), as the first duplicate ACKs lower pipe and leave cwnd.
    std::uint32_t pipe(std::uint32_t outstanding) const noexcept {
        const std::uint64_t gone = std::uint64_t{sacked_bytes()} + counts_.lost_bytes;
        const std::uint64_t sent = std::uint64_t{outstanding} + counts_.retrans_bytes;
        return sent > gone ? static_cast<std::uint32_t>(std::min<std::uint64_t>(sent - gone, UINT32_MAX)) : 0;
    }

    // The end of the highest sequence reported by SACK, or `una` when there is none above it.
    std::uint32_t highest_sacked(std::uint32_t una) const noexcept {
        return highest_ == nullptr ? una : end(highest_);
    }

    RecoveryPhase phase() const noexcept { return phase_; }
    // What SND.UNA must reach for the recovery to end.
    std::uint32_t recovery_point() const noexcept { return recovery_point_; }

    // Nothing is missing, and nothing was.
    bool calm() const noexcept {
        return phase_ == RecoveryPhase::open &&
               (counts_.sacked_segments | counts_.lost_segments | counts_.retrans_segments | dupacks_) == 0;
    }

    void enter_recovery(std::uint32_t nxt) noexcept {
        phase_ = RecoveryPhase::recovery;
        recovery_point_ = nxt;
    }
    // After a timeout new data is sent, to see whether it was spurious (F-RTO).
    void move_recovery_point(std::uint32_t nxt) noexcept { recovery_point_ = nxt; }

    // Takes an acceptable ACK's SACK blocks, in their order, after on_cumulative_ack(). `ack`: the ACK's own
    // acknowledgement number, before SND.UNA when it was overtaken; `una`, `nxt`: SND.UNA and SND.NXT. Blocks
    // that no receiver may send are ignored and counted. delivered(segment, flags) hears of each segment that
    // is reported for the first time.
    template <class Delivered>
    SackOutcome on_sack(Segment* head, std::span<const SackBlock> blocks, std::uint32_t ack,
                        std::uint32_t una, std::uint32_t nxt, Delivered&& delivered) noexcept {
        SackOutcome out;
        if (!sack_) return out;
        blocks = blocks.first(std::min(blocks.size(), kMaxBlocks));
        SackBlock seen[kMaxBlocks];
        std::size_t seen_count = 0;
        steps_left_ = kMostSteps;
        const std::uint32_t top = highest_sacked(una);
        const auto mark = [&](Segment* segment) {
            const std::uint8_t flags = Access::flags(segment);
            if (!(flags & Access::kResent)) note_original(segment, top, out);
            delivered(segment, flags);
        };
        for (std::size_t i = 0; i < blocks.size(); i++) {
            const SackBlock block = blocks[i];
            if (i == 0 && is_dsack(blocks, ack, nxt)) {
                out.dsacks++;
                out.duplicate_end = block.right;
                note_dsack(block);
                continue;
            }
            // A block that begins at SND.UNA would have been acknowledged.
            if (!seq_before(block.left, block.right) || !seq_before(una, block.left) ||
                seq_before(nxt, block.right)) {
                const bool late = seq_before(ack, block.left) && seq_before(block.left, block.right) &&
                                  seq_at_or_before(block.right, una) && una - block.left <= kMaxWindow;
                if (!late) out.invalid++;  // late: of an ACK that was overtaken, and acknowledged since
                continue;
            }
            out.newly_sacked += mark_new_parts(head, block, mark);
            if (steps_left_ != 0) seen[seen_count++] = block;
        }
        std::copy_n(seen, seen_count, cache_);
        cached_ = static_cast<std::uint8_t>(seen_count);
        invalid_ += out.invalid;
        return out;
    }

    // What is lost by now (RACK), with SACK: what was sent before something that has arrived, and long enough
    // ago. At most kMostSteps segments are passed; the next call goes on.
    LossOutcome find_lost(Segment* head, const Rack& rack, Usec window, Usec now) noexcept {
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

    // A duplicate ACK (RFC 5681 section 2) of a peer without SACK. True when it is the one that shows a loss:
    // the first segment is now marked lost.
    bool on_duplicate_ack(Segment* head, std::uint32_t una, std::uint32_t outstanding) noexcept {
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

    // SND.UNA moves to `una`. Called before the segments that this acknowledges are freed; their counts go.
    // delivered(segment, flags) hears of each that no SACK had reported. `next` becomes the first segment
    // that stays.
    template <class Delivered>
    [[gnu::always_inline]] AckOutcome on_cumulative_ack(Segment* head, std::uint32_t una, Segment*& next,
                                                        Delivered&& delivered) noexcept {
        AckOutcome out;
        out.was = phase_;
        Segment* segment = head;
        const std::uint32_t first_len = head == nullptr ? 0 : Access::len(head);
        const bool plain = highest_ == nullptr && phase_ == RecoveryPhase::open;
        const std::uint32_t top = highest_ != nullptr ? end(highest_) : una - kMaxWindow;
        for (; segment != nullptr && seq_at_or_before(end(segment), una); segment = Access::next(segment)) {
            const std::uint8_t flags = Access::flags(segment);
            const std::uint32_t len = Access::len(segment);
            out.bytes += len;
            out.segments++;
            if (!(flags & Access::kSacked)) {
                out.delivered += len;
                if (flags & Access::kResent)
                    out.retransmitted = true;
                else if (!plain)
                    note_original(segment, top, out);
                delivered(segment, flags);
            }
            if (flags & kAnyMark) uncount(flags, len);
        }
        next = segment;
        if (out.segments != 0) drop_pointers(una);
        drop_old_cache(una);
        if (out.segments != 0 && !sack_) {
            // The hole and what had arrived behind it.
            const std::uint32_t behind = out.bytes - std::min(out.bytes, first_len);
            out.delivered = std::max(out.bytes - std::min(out.bytes, counts_.reno_bytes), first_len);
            counts_.reno_bytes -= std::min(counts_.reno_bytes, behind);
            if (phase_ != RecoveryPhase::recovery) counts_.reno_bytes = 0;
            dupacks_ = phase_ == RecoveryPhase::recovery ? counts_.reno_bytes / mss_ : 0;
        }
        if (phase_ != RecoveryPhase::open) {
            if (!seq_before(una, recovery_point_)) {
                phase_ = RecoveryPhase::open;
                guarded_ = true;
                dupacks_ = 0;
                counts_.reno_bytes = 0;
                out.recovered = true;
            } else if (out.segments != 0) {
                // RFC 6582 section 3.2 step 3: what begins now is missing too.
                if (!sack_ && phase_ == RecoveryPhase::recovery && segment != nullptr) mark_lost(segment);
            }
        } else if (seq_before(recovery_point_, una)) {
            guarded_ = false;
            recovery_point_ = una;  // so that it never gets so old that the comparison turns around
        }
        out.reneged = segment != nullptr && (Access::flags(segment) & Access::kSacked) != 0 &&
                      Access::seq(segment) == una;
        return out;
    }

    // The segment to send again now: the first one that is lost and was not sent again since. nullptr: none,
    // send new data. Call on_retransmitted() when it has been sent.
    Segment* next_to_retransmit(Segment* head) noexcept {
        if (counts_.lost_segments == counts_.lost_retrans_segments) return nullptr;
        Segment* segment = resend_ == nullptr ? head : resend_;
        constexpr std::uint8_t mask = Access::kLost | Access::kRetransmitted | Access::kSacked;
        unsigned steps = 0;
        while (segment != nullptr && (Access::flags(segment) & mask) != Access::kLost) {
            segment = Access::next(segment);
            if (++steps == kMostSteps) break;
        }
        resend_ = segment;
        return steps < kMostSteps ? segment : nullptr;
    }

    // `segment`, which is lost, was sent again.
    void on_retransmitted(Segment* segment) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        const std::uint32_t len = Access::len(segment);
        undo_bytes_ += len;
        undo_possible_ = true;
        Access::set_flags(segment, flags | Access::kRetransmitted | Access::kResent);
        if (flags & (Access::kSacked | Access::kRetransmitted)) return;
        if (counts_.retrans_segments == 0) {
            again_.scan = nullptr;
            again_.first = segment;
            again_.end = end(segment);
            again_.mixed = false;
        } else if (seq_before(Access::seq(segment), again_.end)) {
            if (!again_.mixed) again_.oldest_known = false;
            again_.mixed = true;
            if (again_.first != nullptr && seq_before(Access::seq(segment), Access::seq(again_.first)))
                again_.first = segment;
        } else {
            again_.end = end(segment);
        }
        counts_.retrans_bytes += len;
        counts_.retrans_segments++;
        if (flags & Access::kLost) counts_.lost_retrans_segments++;
    }
    // `segment`, which may have arrived, was sent again as a tail loss probe. Nothing counts it, but a round
    // trip must not be measured by it.
    void on_probed(Segment* segment) noexcept {
        Access::set_flags(segment, Access::flags(segment) | Access::kResent);
    }

    // The retransmission timer expired: what is not reported by SACK is lost, and what was sent again is lost
    // as well. Not so what was sent less than a round trip ago, but for the first segment, or with `all`. A
    // first segment that was reported shows that the peer has thrown data away (RFC 2018 section 8): then the
    // reports are void.
    void on_rto(Segment* head, std::uint32_t nxt, const Rack& rack, Usec now, bool all) noexcept {
        const bool reneged = head != nullptr && (Access::flags(head) & Access::kSacked) != 0;
        if (reneged || !sack_) forget_reports();
        for (Segment* segment = head; segment != nullptr; segment = Access::next(segment)) {
            std::uint8_t flags = Access::flags(segment);
            if (reneged)
                flags &= static_cast<std::uint8_t>(~Access::kSacked);
            else if (flags & Access::kSacked)
                continue;
            else if (!all && sack_ && segment != head &&
                     rack.remaining(Access::sent(segment), Usec(0), now) > 0)
                continue;
            uncount(Access::flags(segment) & static_cast<std::uint8_t>(~Access::kSacked),
                    Access::len(segment));
            flags = static_cast<std::uint8_t>(flags & ~Access::kRetransmitted) | Access::kLost;
            counts_.lost_bytes += Access::len(segment);
            counts_.lost_segments++;
            Access::set_flags(segment, flags);
        }
        edge_ = resend_ = again_.first = again_.scan = nullptr;
        phase_ = RecoveryPhase::timeout;
        recovery_point_ = nxt;
    }

    // From here on what is sent again can turn out to have been needless. `una`: SND.UNA; `probed`: bytes of
    // a tail loss probe on its way. Retransmissions under way count, since they may be reported later.
    void begin_undo(std::uint32_t una, std::uint32_t probed) noexcept {
        undo_from_ = una;
        undo_bytes_ = counts_.retrans_bytes + probed;
        undo_possible_ = undo_bytes_ != 0;
        undo_armed_ = true;
    }
    bool undo_armed() const noexcept { return undo_armed_; }

    // True when the peer has reported (RFC 2883) every byte sent again since the recovery or timeout began as
    // a duplicate: nothing was lost, and undo() is due.
    bool all_retransmissions_needless() const noexcept {
        return undo_armed_ && undo_possible_ && undo_bytes_ == 0;
    }

    // The recovery or timeout was spurious: nothing is lost any more, and the phase is open.
    void undo(Segment* head) noexcept {
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

    // `first` was cut and `second`, now following it, is its rest: that gets the same marks.
    void on_split(Segment* first, Segment* second) noexcept {
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

    // All segments go at once, or are handed to somebody else.
    void forget() noexcept {
        counts_ = {};
        forget_reports();
        edge_ = resend_ = again_.first = again_.scan = nullptr;
        phase_ = RecoveryPhase::open;
        undo_armed_ = undo_possible_ = false;
    }

  private:
    // Behind the first segment that may yet be lost so many are asked how long that takes; beyond them a
    // longer time is good enough.
    static constexpr unsigned kLookAhead = 64;
    static constexpr unsigned kMostAgain = 256;            // segments that a look at retransmissions passes
    static constexpr std::uint32_t kMaxWindow = 1u << 30;  // RFC 7323 section 2.3
    static constexpr std::size_t kMaxBlocks = 4;           // what fits into 40 bytes of options
    static constexpr std::uint8_t kAnyMark =
        Access::kSacked | Access::kLost | Access::kRetransmitted | Access::kResent;

    static std::uint32_t end(const Segment* segment) noexcept {
        return Access::seq(segment) + Access::len(segment);
    }

    // RFC 2883: only the first block, below the ACK's own number (an overtaken ACK's ordinary blocks lie
    // below SND.UNA as well) or within the second block.
    static bool is_dsack(std::span<const SackBlock> blocks, std::uint32_t ack, std::uint32_t nxt) noexcept {
        const SackBlock a = blocks[0];
        if (!seq_before(a.left, a.right)) return false;
        // No window reaches back further than the largest one.
        if (seq_at_or_before(a.right, ack)) return ack - a.left <= kMaxWindow;
        if (blocks.size() < 2) return false;
        const SackBlock b = blocks[1];
        return seq_at_or_before(b.left, a.left) && seq_at_or_before(a.right, b.right) &&
               seq_at_or_before(a.right, nxt) && seq_before(ack, b.left);
    }

    void note_dsack(const SackBlock& block) noexcept {
        dsacks_++;
        // Duplicates of older data say nothing about this recovery.
        if (undo_possible_ && !seq_before(block.left, undo_from_))
            undo_bytes_ -= std::min(undo_bytes_, block.right - block.left);
    }

    // A segment that was sent once has arrived; `top`: the end of what had been reported before.
    template <class Outcome>
    void note_original(const Segment* segment, std::uint32_t top, Outcome& out) noexcept {
        if (seq_before(Access::seq(segment), top))
            out.reordered = std::max(out.reordered, top - Access::seq(segment));
        if (seq_at_or_before(end(segment), recovery_point_)) out.original = true;
    }

    // The part of `block` that the last ACK did not carry. What it did carry is marked: all its segments
    // existed then.
    template <class Mark>
    std::uint32_t mark_new_parts(Segment* head, const SackBlock& block, Mark& mark) noexcept {
        std::uint32_t marked = 0;
        std::uint32_t from = block.left;
        while (seq_before(from, block.right) && steps_left_ != 0) {
            std::uint32_t to = block.right;
            std::uint32_t skip_to = from;
            for (std::size_t i = 0; i < cached_; i++) {
                const SackBlock& old = cache_[i];
                if (seq_at_or_before(old.left, from)) {
                    if (seq_before(from, old.right)) skip_to = seq_max(skip_to, old.right);
                } else if (seq_before(old.left, to)) {
                    to = old.left;
                }
            }
            if (skip_to != from) {
                from = skip_to;
                continue;
            }
            marked += mark_range(head, from, to, block, mark);
            from = to;
        }
        return marked;
    }

    // Marks the segments that touch [from, to) and lie in `block` as a whole: one may lie across the border
    // of what the last ACK reported.
    template <class Mark>
    std::uint32_t mark_range(Segment* head, std::uint32_t from, std::uint32_t to, const SackBlock& block,
                             Mark& mark) noexcept {
        Segment* segment = head;
        if (cursor_ != nullptr && seq_at_or_before(Access::seq(cursor_), from)) segment = cursor_;
        bool at_highest = false;
        if (highest_ != nullptr && seq_at_or_before(Access::seq(highest_), from) &&
            !seq_before(Access::seq(highest_), Access::seq(segment))) {
            segment = highest_;
            at_highest = true;
        }
        std::uint32_t marked = 0;
        Segment* last = segment;
        for (; segment != nullptr && seq_before(Access::seq(segment), to); segment = Access::next(segment)) {
            last = segment;
            const bool whole = seq_at_or_before(block.left, Access::seq(segment)) &&
                               seq_at_or_before(end(segment), block.right);
            const std::uint32_t bytes = whole ? mark_sacked(segment, mark) : 0;
            marked += bytes;
            if (bytes == 0 && --steps_left_ == 0) break;
        }
        if (last != nullptr && (!at_highest || steps_left_ == 0)) cursor_ = last;
        return marked;
    }

    template <class Mark>
    std::uint32_t mark_sacked(Segment* segment, Mark& mark) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        if (flags & Access::kSacked) return 0;
        mark(segment);
        const std::uint32_t len = Access::len(segment);
        uncount(flags, len);
        Access::set_flags(
            segment,
            static_cast<std::uint8_t>(flags & ~(Access::kLost | Access::kRetransmitted)) | Access::kSacked);
        counts_.sacked_bytes += len;
        counts_.sacked_segments++;
        if (highest_ == nullptr || seq_before(Access::seq(highest_), Access::seq(segment)))
            highest_ = segment;
        return len;
    }

    // Takes a segment out of the sums.
    void uncount(std::uint8_t flags, std::uint32_t len) noexcept {
        if (flags & Access::kSacked) {
            counts_.sacked_bytes -= len;
            counts_.sacked_segments--;
            return;
        }
        if (flags & Access::kRetransmitted) {
            counts_.retrans_bytes -= len;
            counts_.retrans_segments--;
            if (flags & Access::kLost) counts_.lost_retrans_segments--;
        }
        if (flags & Access::kLost) {
            counts_.lost_bytes -= len;
            counts_.lost_segments--;
        }
    }

    std::uint32_t mark_lost(Segment* segment) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        if (flags & (Access::kLost | Access::kSacked)) return 0;
        Access::set_flags(segment, flags | Access::kLost);
        counts_.lost_bytes += Access::len(segment);
        counts_.lost_segments++;
        if (flags & Access::kRetransmitted) counts_.lost_retrans_segments++;
        if (resend_ != nullptr && seq_before(Access::seq(segment), Access::seq(resend_))) resend_ = segment;
        return Access::len(segment);
    }

    // What was sent once lies in the order of its times.
    void find_lost_originals(Segment* head, const Rack& rack, Usec window, Usec now, unsigned& steps,
                             LossOutcome& out) noexcept {
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
    void find_lost_again(Segment* head, const Rack& rack, Usec window, Usec now, unsigned& steps,
                         LossOutcome& out) noexcept {
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
    std::uint32_t lose_again(Segment* segment) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        const std::uint32_t len = Access::len(segment);
        uncount(flags, len);
        Access::set_flags(segment,
                          static_cast<std::uint8_t>(flags & ~Access::kRetransmitted) | Access::kLost);
        counts_.lost_bytes += len;
        counts_.lost_segments++;
        if (resend_ != nullptr && seq_before(Access::seq(segment), Access::seq(resend_))) resend_ = segment;
        return len;
    }

    // Segments up to `una` are about to go.
    void drop_pointers(std::uint32_t una) noexcept {
        for (Segment** p : {&highest_, &cursor_, &edge_, &resend_, &again_.first, &again_.scan})
            if (*p != nullptr && seq_before(Access::seq(*p), una)) *p = nullptr;
    }

    void drop_old_cache(std::uint32_t una) noexcept {
        std::uint8_t kept = 0;
        for (std::uint8_t i = 0; i < cached_; i++)
            if (seq_before(una, cache_[i].right)) cache_[kept++] = cache_[i];
        cached_ = kept;
    }

    void forget_reports() noexcept {
        counts_.sacked_bytes = counts_.sacked_segments = counts_.reno_bytes = 0;
        dupacks_ = 0;
        cached_ = 0;
        highest_ = cursor_ = nullptr;
    }

    Segment* highest_ = nullptr;
    Segment* cursor_ = nullptr;
    Segment* edge_ = nullptr;    // nullptr: the first segment
    Segment* resend_ = nullptr;  // nullptr: the first segment
    struct Counts {
        std::uint32_t sacked_bytes = 0, lost_bytes = 0, retrans_bytes = 0, reno_bytes = 0;
        std::uint32_t sacked_segments = 0, lost_segments = 0, retrans_segments = 0;
        std::uint32_t lost_retrans_segments = 0;  // lost and sent again
    } counts_;
    struct Again {                 // retransmissions under way
        Segment* first = nullptr;  // nullptr: the first segment
        Segment* scan = nullptr;   // where the look at them goes on; nullptr: at `first`
        std::uint32_t end = 0, oldest_end = 0;
        Usec oldest{};
        bool mixed = false, oldest_known = false;
    } again_;
    std::uint32_t mss_ = 536;
    std::uint32_t dupacks_ = 0;
    unsigned steps_left_ = kMostSteps;  // of the ACK that is looked at
    std::uint32_t recovery_point_ = 0;
    std::uint32_t undo_from_ = 0, undo_bytes_ = 0;
    SackBlock cache_[kMaxBlocks];
    std::uint64_t dsacks_ = 0, invalid_ = 0;
    std::uint8_t cached_ = 0;
    RecoveryPhase phase_ = RecoveryPhase::open;
    bool sack_ = false;
    bool guarded_ = false;  // no cumulative ACK yet beyond the end of the last recovery
    bool undo_armed_ = false, undo_possible_ = false;
};

}  // namespace vma::tcp
