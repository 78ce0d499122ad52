// SPDX-License-Identifier: BSD-2-Clause
// TCP's clock. One function, so that every timer, timestamp and measurement of TCP agrees, and so that a test
// can put its own clock in place and let minutes pass in no time.
#pragma once

#include <cstdint>

namespace vma::tcp {

inline constexpr std::uint64_t kSecond = 1'000'000'000;  // of now_ns()

// Nanoseconds of a monotonic clock with an arbitrary start; never 0. In production the cycle counter, scaled:
// about the cost of reading it, and the same on all processors.
std::uint64_t now_ns() noexcept;

// What now_ns() shall return from now on; null: the cycle counter again. For tests; any thread may be
// reading.
void set_clock(std::uint64_t (*clock)()) noexcept;

}  // namespace vma::tcp
