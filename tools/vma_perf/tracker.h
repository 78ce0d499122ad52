// SPDX-License-Identifier: BSD-2-Clause
// Tells which messages of a connection came, which came twice, and which after a later one. The tracker
// remembers about the last 16000 numbers; an older number counts as late, never as a duplicate.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace vma_perf {

class Tracker {
  public:
    enum class Kind { in_order, reordered, duplicate };

    Kind note(std::uint64_t sequence) noexcept {
        if (sequence >= next_) {
            advance_to(sequence);
            return Kind::in_order;
        }
        if (next_ - sequence > kWindow - 64) return Kind::reordered;  // its word may be in use again
        std::uint64_t& word = word_of(sequence);
        const std::uint64_t bit = bit_of(sequence);
        if ((word & bit) != 0) return Kind::duplicate;
        word |= bit;
        return Kind::reordered;
    }
    // One past the highest number seen.
    std::uint64_t next() const noexcept { return next_; }

  private:
    static constexpr std::uint64_t kWindow = 16384, kWords = kWindow / 64;

    std::uint64_t& word_of(std::uint64_t sequence) noexcept { return words_[sequence / 64 % kWords]; }
    static std::uint64_t bit_of(std::uint64_t sequence) noexcept { return std::uint64_t{1} << sequence % 64; }

    // Forgets the words that come into the window, then notes the number.
    void advance_to(std::uint64_t sequence) noexcept {
        const std::uint64_t entered = sequence / 64 - (next_ == 0 ? 0 : (next_ - 1) / 64);
        for (std::uint64_t i = 0; i < std::min(entered, kWords); ++i)
            words_[(sequence / 64 - i) % kWords] = 0;
        word_of(sequence) |= bit_of(sequence);
        next_ = sequence + 1;
    }

    std::array<std::uint64_t, kWords> words_{};
    std::uint64_t next_ = 0;
};

}  // namespace vma_perf
