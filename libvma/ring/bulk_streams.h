// SPDX-License-Identifier: BSD-2-Clause
// How many connections of a ring receive in bulk at the moment.
//
// Each of them may have a window of data under way, and each posted buffer is one more that has left the
// caches when its turn comes. So their windows together are bounded. Those that count are those that received
// in this period of time, or in the one before.
//
// On one machine a window of a single super-frame is too small for each: the sender's kernel then has unsent
// data whenever an ACK comes, and transmits it on the core that sent the ACK, the receiver's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace vma::ring {

// Any thread, no lock: two threads that meet at the end of a period may count a connection too few.
class BulkStreams {
  public:
    // A connection has received in `period`, which it says once in each. Periods are numbered in turn.
    void join(std::uint32_t period) noexcept {
        const std::uint32_t current = period_.load(std::memory_order_relaxed);
        if (current != period) {
            const bool next = current + 1 == period;
            before_.store(next ? now_.load(std::memory_order_relaxed) : 0, std::memory_order_relaxed);
            now_.store(0, std::memory_order_relaxed);
            period_.store(period, std::memory_order_relaxed);
        }
        now_.fetch_add(1, std::memory_order_relaxed);
    }
    // What the window of each may be, bytes.
    std::uint32_t share() const noexcept { return std::clamp(kTogether / count(), kLeast, kMost); }
    // At least 1.
    std::uint32_t count() const noexcept {
        return std::max({now_.load(std::memory_order_relaxed), before_.load(std::memory_order_relaxed), 1u});
    }

  private:
    static constexpr std::uint32_t kTogether = 2048u << 10;  // fits what RxQueue posts for some connections
    static constexpr std::uint32_t kMost = 512u << 10;       // fits a second-level cache
    static constexpr std::uint32_t kLeast = 64u << 10;       // a super-frame

    std::atomic<std::uint32_t> period_{0};
    std::atomic<std::uint32_t> now_{0}, before_{0};
};

}  // namespace vma::ring
