// SPDX-License-Identifier: BSD-2-Clause
// Clocks of the tools.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace tools {

// Of deadlines.
using Clock = std::chrono::steady_clock;

inline std::int64_t now_ns(clockid_t clock) noexcept {
    timespec t{};
    clock_gettime(clock, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace tools
