// SPDX-License-Identifier: BSD-2-Clause
// TCP's clock. One function, so that every timer, timestamp and measurement of TCP agrees, and so that a test
// can put its own clock in place and let minutes pass in no time.
#pragma once

#include <chrono>
#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma::tcp {

using clock::Msec;
using clock::Nsec;
using clock::Usec;

// A monotonic clock with an arbitrary start. In production the cycle counter, scaled: about the cost of
// reading it, and the same on all processors.
struct Clock {
    using duration = Nsec;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<Clock, duration>;
    static constexpr bool is_steady = true;
    // Never kNoTime.
    static time_point now() noexcept;
};
using Time = Clock::time_point;

inline constexpr Time kNoTime{};  // of a deadline: there is none; of an event: it never happened
inline constexpr Nsec kSecond{1'000'000'000};

// The time since the clock's start in 32 bits, which wrap: as in TCP's time stamps, and for round trips.
constexpr std::uint32_t milliseconds(Time t) noexcept {
    return static_cast<std::uint32_t>(t.time_since_epoch() / std::chrono::milliseconds(1));
}
constexpr Usec microseconds(Time t) noexcept {
    return std::chrono::duration_cast<Usec>(t.time_since_epoch());
}

// What Clock::now() shall return from now on; null: the cycle counter again. For tests; any thread may be
// reading.
void set_clock(Time (*clock)()) noexcept;

}  // namespace vma::tcp
