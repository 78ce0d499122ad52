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
#include "libvma/tcp/recovery/sack.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

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
                        std::uint32_t una, std::uint32_t nxt, Delivered&& delivered) noexcept;

    // What is lost by now (RACK), with SACK: what was sent before something that has arrived, and long enough
    // ago. At most kMostSteps segments are passed; the next call goes on.
    LossOutcome find_lost(Segment* head, const Rack& rack, Usec window, Usec now) noexcept;

    // A duplicate ACK (RFC 5681 section 2) of a peer without SACK. True when it is the one that shows a loss:
    // the first segment is now marked lost.
    bool on_duplicate_ack(Segment* head, std::uint32_t una, std::uint32_t outstanding) noexcept;

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
    void on_rto(Segment* head, std::uint32_t nxt, const Rack& rack, Usec now, bool all) noexcept;

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
    void undo(Segment* head) noexcept;

    // `first` was cut and `second`, now following it, is its rest: that gets the same marks.
    void on_split(Segment* first, Segment* second) noexcept;

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

    static bool is_dsack(std::span<const SackBlock> blocks, std::uint32_t ack, std::uint32_t nxt) noexcept;

    void note_dsack(const SackBlock& block) noexcept;

    template <class Outcome>
    void note_original(const Segment* segment, std::uint32_t top, Outcome& out) noexcept;

    template <class Mark>
    std::uint32_t mark_new_parts(Segment* head, const SackBlock& block, Mark& mark) noexcept;

    template <class Mark>
    std::uint32_t mark_range(Segment* head, std::uint32_t from, std::uint32_t to, const SackBlock& block,
                             Mark& mark) noexcept;

    template <class Mark>
    std::uint32_t mark_sacked(Segment* segment, Mark& mark) noexcept;

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

    std::uint32_t mark_lost(Segment* segment) noexcept;

    void find_lost_originals(Segment* head, const Rack& rack, Usec window, Usec now, unsigned& steps,
                             LossOutcome& out) noexcept;

    void find_lost_again(Segment* head, const Rack& rack, Usec window, Usec now, unsigned& steps,
                         LossOutcome& out) noexcept;

    std::uint32_t lose_again(Segment* segment) noexcept;

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

#include "libvma/tcp/recovery/scoreboard_loss.h"
#include "libvma/tcp/recovery/scoreboard_reports.h"
