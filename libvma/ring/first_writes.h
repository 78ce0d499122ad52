// SPDX-License-Identifier: BSD-2-Clause
// Do the connections that this process opens begin with data of its own, at once?
//
// The ACK that ends a handshake can leave with such data. That saves a frame on both sides, and the peer's
// program is woken once. A program that does something else first would keep its peer's accept() waiting. So
// the ACK waits only behind a run of connections that wrote in time; one that did not ends the run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace vma::ring {

// Any thread, no lock: threads that meet may count a connection too few or too many.
class FirstWrites {
  public:
    // A connection's first write came `in_time`, or something else did.
    void add(bool in_time) noexcept {
        const std::uint32_t run = run_.load(std::memory_order_relaxed);
        run_.store(in_time ? std::min(run + 1, kRun) : 0, std::memory_order_relaxed);
    }
    // Will the next one?
    bool expected() const noexcept { return run_.load(std::memory_order_relaxed) >= kRun; }

  private:
    static constexpr std::uint32_t kRun = 16;

    std::atomic<std::uint32_t> run_{0};
};

}  // namespace vma::ring
