// SPDX-License-Identifier: BSD-2-Clause
// What of the data in flight has arrived, what is lost, and what to send again: the scoreboard of RFC 6675,
// and for a peer without SACK what NewReno (RFC 6582) makes of duplicate ACKs.
//
// The marks live in the segments, which belong to somebody else (lwIP's list of unacknowledged segments): a
// list in the order of sequence numbers that one can only walk forwards. Walking all of it for every ACK
// would be quadratic in the window, so sums are kept as marks change and four pointers into the list say
// where work left off:
//   highest_   the last segment reported by SACK; new reports usually begin there
//   cursor_    the last one found elsewhere, where retransmissions fill holes one after the other
//   edge_      everything before it is sacked or lost; with the count of what is sacked from it on
//   resend_    nothing before it needs to be sent again
// A block that the previous ACK carried already is not looked at again. So a segment is passed about once by
// each pointer; only a peer whose reports jump about makes one ACK cost a walk through the list.
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

#include "libvma/tcp/sequence.h"

namespace vma::tcp {

// A block of a SACK option (RFC 2018): [left, right) in host byte order.
struct SackBlock {
    std::uint32_t left = 0;
    std::uint32_t right = 0;
    friend bool operator==(const SackBlock&, const SackBlock&) = default;
};

// What an ACK's SACK option changed.
struct SackOutcome {
    std::uint32_t newly_sacked = 0;  // bytes
    std::uint32_t newly_lost = 0;    // bytes, also of retransmissions that were lost themselves
    unsigned dsacks = 0;             // blocks that report duplicates (RFC 2883): 0 or 1
    unsigned invalid = 0;            // blocks that were ignored
};

// What a cumulative ACK covered.
struct AckOutcome {
    std::uint32_t bytes = 0;      // of whole segments
    std::uint32_t delivered = 0;  // of these, what no SACK had reported
    unsigned segments = 0;
    bool retransmitted = false;  // one of them was sent more than once: no round trip may be measured (Karn)
    bool recovered = false;      // ended the recovery, or the time after a timeout
    bool partial = false;        // within a recovery, not its end
    bool reneged = false;        // the peer had reported the next segment and yet does not acknowledge it
};

enum class RecoveryPhase : std::uint8_t { open, recovery, timeout };

// `Access` says how to reach a segment:
//   using Segment = ...;
//   static Segment* next(const Segment*);           // nullptr after the last
//   static std::uint32_t seq(const Segment*);       // first sequence number, host byte order
//   static std::uint32_t len(const Segment*);       // sequence numbers it takes, with SYN and FIN; not 0
//   static std::uint8_t flags(const Segment*);
//   static void set_flags(Segment*, std::uint8_t);  // only the three bits below are changed
//   static constexpr std::uint8_t kSacked, kLost, kRetransmitted;
// `head` is always the first unacknowledged segment, nullptr when there is none.
template <class Access>
class Scoreboard {
  public:
    using Segment = typename Access::Segment;
    static constexpr unsigned kDupThresh = 3;  // RFC 5681, RFC 6675

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

    // True when something is lost and no recovery is under way: the moment for enter_recovery() and
    // Congestion::on_loss_event().
    bool loss_found() const noexcept { return phase_ == RecoveryPhase::open && counts_.lost_segments != 0; }

    void enter_recovery(std::uint32_t una, std::uint32_t nxt) noexcept {
        phase_ = RecoveryPhase::recovery;
        recovery_point_ = nxt;
        begin_undo(una);
    }

    // Takes an acceptable ACK's SACK blocks, in their order, after on_cumulative_ack() and the freeing that
    // follows. `ack`: the ACK's own acknowledgement number, before SND.UNA when it was overtaken; `una`,
    // `nxt`: SND.UNA and SND.NXT. Blocks that no receiver may send are ignored and counted.
    SackOutcome on_sack(Segment* head, std::span<const SackBlock> blocks, std::uint32_t ack,
                        std::uint32_t una, std::uint32_t nxt) noexcept {
        SackOutcome out;
        if (!sack_) return out;
        blocks = blocks.first(std::min(blocks.size(), kMaxBlocks));
        SackBlock seen[kMaxBlocks];
        std::size_t seen_count = 0;
        for (std::size_t i = 0; i < blocks.size(); i++) {
            const SackBlock block = blocks[i];
            if (i == 0 && is_dsack(blocks, ack, nxt)) {
                out.dsacks++;
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
            out.newly_sacked += mark_new_parts(head, block);
            seen[seen_count++] = block;
        }
        std::copy_n(seen, seen_count, cache_);
        cached_ = static_cast<std::uint8_t>(seen_count);
        invalid_ += out.invalid;
        if (out.newly_sacked != 0) {
            out.newly_lost += advance_edge(head);
            out.newly_lost += find_lost_retransmission(head);
        }
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
    // `nxt`: SND.NXT.
    AckOutcome on_cumulative_ack(Segment* head, std::uint32_t una, std::uint32_t nxt) noexcept {
        AckOutcome out;
        Segment* segment = head;
        const bool hole_first = head != nullptr;
        const std::uint32_t first_len = head == nullptr ? 0 : Access::len(head);
        for (; segment != nullptr && seq_at_or_before(end(segment), una); segment = Access::next(segment)) {
            const std::uint8_t flags = Access::flags(segment);
            const std::uint32_t len = Access::len(segment);
            out.bytes += len;
            out.segments++;
            if (flags & Access::kSacked) {
                // Before the edge they were taken off its counts when it passed.
                if (edge_ == nullptr || edge_ == segment || edge_passed_by_ack_) take_from_edge(len);
            } else {
                out.delivered += len;
            }
            // A timeout takes the mark off, and so does finding a retransmission lost.
            if ((flags & (Access::kRetransmitted | Access::kLost)) || phase_ == RecoveryPhase::timeout)
                out.retransmitted = true;
            uncount(flags, len);
            if (segment == edge_) edge_passed_by_ack_ = true;
            if (segment == highest_) highest_ = nullptr;
            if (segment == cursor_) cursor_ = nullptr;
            if (segment == resend_) resend_ = nullptr;
            if (segment == rescue_) rescue_ = nullptr;
        }
        if (edge_passed_by_ack_) {
            edge_ = nullptr;  // from here on: the first segment
            edge_passed_by_ack_ = false;
        }
        drop_old_cache(una);
        if (out.segments != 0) {
            if (!sack_ && hole_first) {
                // The hole and what had arrived behind it.
                const std::uint32_t behind = out.bytes - std::min(out.bytes, first_len);
                counts_.reno_bytes -= std::min(counts_.reno_bytes, behind);
                if (phase_ != RecoveryPhase::recovery) counts_.reno_bytes = 0;
                dupacks_ = phase_ == RecoveryPhase::recovery ? counts_.reno_bytes / mss_ : 0;
            }
            head_sent_again(segment, nxt);
        }
        if (phase_ != RecoveryPhase::open) {
            if (!seq_before(una, recovery_point_)) {
                phase_ = RecoveryPhase::open;
                guarded_ = true;
                dupacks_ = 0;
                counts_.reno_bytes = 0;
                out.recovered = true;
            } else if (out.segments != 0) {
                out.partial = true;
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
        while (segment != nullptr && (Access::flags(segment) & mask) != Access::kLost)
            segment = Access::next(segment);
        resend_ = segment;
        return segment;
    }

    // When nothing is known to be lost and there is no new data to send: a segment below the highest reported
    // one that is neither reported nor sent again (RFC 6675 section 4, NextSeg rule 3). For use in a recovery
    // only.
    Segment* next_to_rescue(Segment* head) noexcept {
        if (phase_ != RecoveryPhase::recovery || highest_ == nullptr) return nullptr;
        constexpr std::uint8_t mask = Access::kRetransmitted | Access::kSacked;
        Segment* segment = edge_ == nullptr ? head : edge_;
        if (rescue_ != nullptr && seq_before(Access::seq(segment), Access::seq(rescue_))) segment = rescue_;
        while (segment != nullptr && seq_before(Access::seq(segment), Access::seq(highest_)) &&
               (Access::flags(segment) & mask) != 0)
            segment = Access::next(segment);
        if (segment == nullptr || !seq_before(Access::seq(segment), Access::seq(highest_))) return nullptr;
        rescue_ = segment;
        return segment;
    }

    // `segment` was sent again, for whatever reason, when SND.NXT was `nxt`. (Sent more than once: it is
    // enough to call this each time.)
    void on_retransmitted(Segment* head, Segment* segment, std::uint32_t nxt) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        const std::uint32_t len = Access::len(segment);
        undo_bytes_ += len;
        undo_possible_ = true;
        if (!(flags & (Access::kSacked | Access::kRetransmitted))) {
            Access::set_flags(segment, flags | Access::kRetransmitted);
            counts_.retrans_bytes += len;
            counts_.retrans_segments++;
            if (flags & Access::kLost) counts_.lost_retrans_segments++;
        }
        if (segment == head) {
            head_again_ = true;
            head_again_nxt_ = nxt;
        }
    }

    // The retransmission timer expired: everything not reported by SACK is lost, and what was sent again is
    // lost as well. `drop_sacked`: forget the reports too, as the peer may have thrown that data away (RFC
    // 2018 section 8).
    void on_rto(Segment* head, std::uint32_t una, std::uint32_t nxt, bool drop_sacked = true) noexcept {
        const bool first = phase_ == RecoveryPhase::open;
        forget_sums(drop_sacked);
        for (Segment* segment = head; segment != nullptr; segment = Access::next(segment)) {
            std::uint8_t flags = Access::flags(segment);
            if (drop_sacked) flags &= ~Access::kSacked;
            if (!(flags & Access::kSacked)) {
                flags = (flags & ~Access::kRetransmitted) | Access::kLost;
                counts_.lost_bytes += Access::len(segment);
                counts_.lost_segments++;
            } else {
                edge_bytes_ += Access::len(segment);
                edge_segments_++;
            }
            Access::set_flags(segment, flags);
        }
        if (drop_sacked) cached_ = 0;
        phase_ = RecoveryPhase::timeout;
        recovery_point_ = nxt;
        // From within a recovery the way back leads to before it, so all that was sent again since then
        // counts.
        if (first) begin_undo(una);
    }

    // True when the peer has reported (RFC 2883) every byte sent again since the recovery or timeout began as
    // a duplicate: nothing was lost, and Congestion::on_spurious() is due. Says so once.
    bool all_retransmissions_needless() noexcept {
        if (!undo_possible_ || undo_bytes_ != 0) return false;
        undo_possible_ = false;
        return true;
    }

    // The recovery or timeout was spurious: nothing is lost any more and the phase is open again. What is
    // below the edge will not be found lost by SACK again, as it is just that which was found wrongly; a
    // timeout remains.
    void undo(Segment* head) noexcept {
        for (Segment* segment = head; segment != nullptr; segment = Access::next(segment)) {
            const std::uint8_t flags = Access::flags(segment);
            if (flags & Access::kLost) Access::set_flags(segment, flags & ~Access::kLost);
        }
        counts_.lost_bytes = 0;
        counts_.lost_segments = counts_.lost_retrans_segments = 0;
        resend_ = nullptr;
        phase_ = RecoveryPhase::open;
        dupacks_ = 0;
        counts_.reno_bytes = 0;
        undo_possible_ = false;
        head_again_ = false;
    }

    // `first` was cut and `second`, now following it, is its rest: that gets the same marks.
    void on_split(Segment* first, Segment* second) noexcept {
        const std::uint8_t flags = Access::flags(first);
        constexpr std::uint8_t mask = Access::kSacked | Access::kLost | Access::kRetransmitted;
        Access::set_flags(second, (Access::flags(second) & ~mask) | (flags & mask));
        if (flags & Access::kSacked) {
            counts_.sacked_segments++;
            if (edge_ == nullptr || seq_at_or_before(Access::seq(edge_), Access::seq(first)))
                edge_segments_++;
        }
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
        forget_sums(true);
        cached_ = 0;
        dupacks_ = 0;
        phase_ = RecoveryPhase::open;
        undo_possible_ = false;
    }

  private:
    static constexpr std::uint32_t kMaxWindow = 1u << 30;  // RFC 7323 section 2.3
    static constexpr std::size_t kMaxBlocks = 4;           // what fits into 40 bytes of options

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

    void begin_undo(std::uint32_t una) noexcept {
        undo_from_ = una;
        undo_bytes_ = 0;
        undo_possible_ = false;
    }

    // The part of `block` that the last ACK did not carry. What it did carry is marked: all its segments
    // existed then.
    std::uint32_t mark_new_parts(Segment* head, const SackBlock& block) noexcept {
        std::uint32_t marked = 0;
        std::uint32_t from = block.left;
        while (seq_before(from, block.right)) {
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
            marked += mark_range(head, from, to, block);
            from = to;
        }
        return marked;
    }

    // Marks the segments that touch [from, to) and lie in `block` as a whole: one may lie across the border
    // of what the last ACK reported.
    std::uint32_t mark_range(Segment* head, std::uint32_t from, std::uint32_t to,
                             const SackBlock& block) noexcept {
        Segment* start = head;
        bool at_highest = false;
        if (cursor_ != nullptr && seq_at_or_before(Access::seq(cursor_), from)) start = cursor_;
        if (highest_ != nullptr && seq_at_or_before(Access::seq(highest_), from)) {
            start = highest_;
            at_highest = true;
        }
        while (start != nullptr && seq_at_or_before(end(start), from)) start = Access::next(start);
        std::uint32_t marked = 0;
        Segment* last = start;
        for (Segment* segment = start; segment != nullptr && seq_before(Access::seq(segment), to);
             segment = Access::next(segment)) {
            last = segment;
            if (seq_before(Access::seq(segment), block.left) || seq_before(block.right, end(segment)))
                continue;
            marked += mark_sacked(segment);
        }
        if (!at_highest && last != nullptr) cursor_ = last;
        return marked;
    }

    std::uint32_t mark_sacked(Segment* segment) noexcept {
        const std::uint8_t flags = Access::flags(segment);
        if (flags & Access::kSacked) return 0;
        const std::uint32_t len = Access::len(segment);
        uncount(flags, len);
        // The mark of a retransmission stays, for Karn; it does not count any more.
        Access::set_flags(segment, (flags & ~Access::kLost) | Access::kSacked);
        counts_.sacked_bytes += len;
        counts_.sacked_segments++;
        if (edge_ == nullptr || seq_at_or_before(Access::seq(edge_), Access::seq(segment))) {
            edge_bytes_ += len;
            edge_segments_++;
        }
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

    void take_from_edge(std::uint32_t len) noexcept {
        edge_bytes_ -= len;
        edge_segments_--;
    }

    // IsLost of RFC 6675 for all segments at once: enough is reported above it. What counts as enough is
    // reported above every earlier segment as well, so there is one edge, and it only moves up.
    std::uint32_t advance_edge(Segment* head) noexcept {
        std::uint32_t marked = 0;
        Segment* segment = edge_ == nullptr ? head : edge_;
        while (segment != nullptr) {
            const bool sacked = (Access::flags(segment) & Access::kSacked) != 0;
            const std::uint32_t len = Access::len(segment);
            const unsigned segments_above = edge_segments_ - (sacked ? 1 : 0);
            const std::uint32_t bytes_above = edge_bytes_ - (sacked ? len : 0);
            if (segments_above < kDupThresh && bytes_above <= (kDupThresh - 1) * mss_) break;
            if (sacked)
                take_from_edge(len);
            else
                marked += mark_lost(segment);
            segment = Access::next(segment);
        }
        edge_ = segment;
        return marked;
    }

    // The first segment has been sent again, and data that was sent only after that has arrived, by enough to
    // rule out reordering: then that retransmission is lost as well. Only a timeout would find out otherwise.
    std::uint32_t find_lost_retransmission(Segment* head) noexcept {
        if (!head_again_ || head == nullptr || highest_ == nullptr) return 0;
        constexpr std::uint8_t both = Access::kLost | Access::kRetransmitted;
        const std::uint8_t flags = Access::flags(head);
        if ((flags & (both | Access::kSacked)) != both) return 0;
        const std::uint32_t reached = end(highest_);
        if (!seq_before(head_again_nxt_, reached) || reached - head_again_nxt_ <= (kDupThresh - 1) * mss_)
            return 0;
        Access::set_flags(head, flags & ~Access::kRetransmitted);
        counts_.retrans_bytes -= Access::len(head);
        counts_.retrans_segments--;
        counts_.lost_retrans_segments--;
        resend_ = nullptr;
        head_again_ = false;
        return Access::len(head);
    }

    // When a segment became the first one after it had been sent again, it is not known when exactly that
    // was; at the latest now.
    void head_sent_again(Segment* head, std::uint32_t nxt) noexcept {
        head_again_ = head != nullptr && (Access::flags(head) & Access::kRetransmitted) != 0;
        head_again_nxt_ = nxt;
    }

    void drop_old_cache(std::uint32_t una) noexcept {
        std::uint8_t kept = 0;
        for (std::uint8_t i = 0; i < cached_; i++)
            if (seq_before(una, cache_[i].right)) cache_[kept++] = cache_[i];
        cached_ = kept;
    }

    void forget_sums(bool drop_sacked) noexcept {
        counts_.lost_bytes = counts_.retrans_bytes = counts_.reno_bytes = edge_bytes_ = 0;
        counts_.lost_segments = counts_.retrans_segments = counts_.lost_retrans_segments = dupacks_ =
            edge_segments_ = 0;
        edge_ = resend_ = rescue_ = nullptr;
        head_again_ = false;
        if (!drop_sacked) return;
        counts_.sacked_bytes = 0;
        counts_.sacked_segments = 0;
        highest_ = cursor_ = nullptr;
    }

    Segment* highest_ = nullptr;
    Segment* cursor_ = nullptr;
    Segment* edge_ = nullptr;    // nullptr: the first segment
    Segment* resend_ = nullptr;  // nullptr: the first segment
    Segment* rescue_ = nullptr;  // from the edge to here next_to_rescue() has nothing to offer
    std::uint32_t mss_ = 536;
    struct Counts {
        std::uint32_t sacked_bytes = 0, lost_bytes = 0, retrans_bytes = 0, reno_bytes = 0;
        std::uint32_t sacked_segments = 0, lost_segments = 0, retrans_segments = 0;
        std::uint32_t lost_retrans_segments = 0;  // lost and sent again
    } counts_;
    std::uint32_t edge_bytes_ = 0, edge_segments_ = 0;  // sacked at or after the edge
    std::uint32_t dupacks_ = 0;
    std::uint32_t recovery_point_ = 0;
    std::uint32_t undo_from_ = 0, undo_bytes_ = 0;
    std::uint32_t head_again_nxt_ = 0;
    SackBlock cache_[kMaxBlocks];
    std::uint64_t dsacks_ = 0, invalid_ = 0;
    std::uint8_t cached_ = 0;
    RecoveryPhase phase_ = RecoveryPhase::open;
    bool sack_ = false;
    bool guarded_ = false;  // no cumulative ACK yet beyond the end of the last recovery
    bool undo_possible_ = false;
    bool head_again_ = false;
    bool edge_passed_by_ack_ = false;
};

}  // namespace vma::tcp
