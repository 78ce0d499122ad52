// SPDX-License-Identifier: BSD-2-Clause
// The scoreboard takes the reports of an ACK: blocks of SACK and D-SACK. A part of scoreboard.h, which
// includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "libvma/tcp/recovery/scoreboard.h"

namespace vma::tcp {

template <class Access>
template <class Delivered>
SackOutcome Scoreboard<Access>::on_sack(Segment* head, std::span<const SackBlock> blocks, std::uint32_t ack,
                                        std::uint32_t una, std::uint32_t nxt,
                                        Delivered&& delivered) noexcept {
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

// RFC 2883: only the first block, below the ACK's own number (an overtaken ACK's ordinary blocks lie
// below SND.UNA as well) or within the second block.
template <class Access>
bool Scoreboard<Access>::is_dsack(std::span<const SackBlock> blocks, std::uint32_t ack,
                                  std::uint32_t nxt) noexcept {
    const SackBlock a = blocks[0];
    if (!seq_before(a.left, a.right)) return false;
    // No window reaches back further than the largest one.
    if (seq_at_or_before(a.right, ack)) return ack - a.left <= kMaxWindow;
    if (blocks.size() < 2) return false;
    const SackBlock b = blocks[1];
    return seq_at_or_before(b.left, a.left) && seq_at_or_before(a.right, b.right) &&
           seq_at_or_before(a.right, nxt) && seq_before(ack, b.left);
}

template <class Access>
void Scoreboard<Access>::note_dsack(const SackBlock& block) noexcept {
    dsacks_++;
    // Duplicates of older data say nothing about this recovery.
    if (undo_possible_ && !seq_before(block.left, undo_from_))
        undo_bytes_ -= std::min(undo_bytes_, block.right - block.left);
}

// A segment that was sent once has arrived; `top`: the end of what had been reported before.
template <class Access>
template <class Outcome>
void Scoreboard<Access>::note_original(const Segment* segment, std::uint32_t top, Outcome& out) noexcept {
    if (seq_before(Access::seq(segment), top))
        out.reordered = std::max(out.reordered, top - Access::seq(segment));
    if (seq_at_or_before(end(segment), recovery_point_)) out.original = true;
}

// The part of `block` that the last ACK did not carry. What it did carry is marked: all its segments
// existed then.
template <class Access>
template <class Mark>
std::uint32_t Scoreboard<Access>::mark_new_parts(Segment* head, const SackBlock& block, Mark& mark) noexcept {
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
template <class Access>
template <class Mark>
std::uint32_t Scoreboard<Access>::mark_range(Segment* head, std::uint32_t from, std::uint32_t to,
                                             const SackBlock& block, Mark& mark) noexcept {
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
        const bool whole =
            seq_at_or_before(block.left, Access::seq(segment)) && seq_at_or_before(end(segment), block.right);
        const std::uint32_t bytes = whole ? mark_sacked(segment, mark) : 0;
        marked += bytes;
        if (bytes == 0 && --steps_left_ == 0) break;
    }
    if (last != nullptr && (!at_highest || steps_left_ == 0)) cursor_ = last;
    return marked;
}

template <class Access>
template <class Mark>
std::uint32_t Scoreboard<Access>::mark_sacked(Segment* segment, Mark& mark) noexcept {
    const std::uint8_t flags = Access::flags(segment);
    if (flags & Access::kSacked) return 0;
    mark(segment);
    const std::uint32_t len = Access::len(segment);
    uncount(flags, len);
    Access::set_flags(segment, static_cast<std::uint8_t>(flags & ~(Access::kLost | Access::kRetransmitted)) |
                                   Access::kSacked);
    counts_.sacked_bytes += len;
    counts_.sacked_segments++;
    if (highest_ == nullptr || seq_before(Access::seq(highest_), Access::seq(segment))) highest_ = segment;
    return len;
}

}  // namespace vma::tcp
