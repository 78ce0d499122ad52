// SPDX-License-Identifier: BSD-2-Clause
// Time for the fast path: the cycle counter, and its rate.
#pragma once

#include <time.h>

#include <cstdint>

namespace vma::clock {

// Ticks of the constant-rate counter (TSC, or CNTVCT on aarch64).
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t t;
    asm volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#endif
}

// Ticks in a microsecond; measured once against CLOCK_MONOTONIC on first use (takes about 0.2 ms), at least 1.
std::uint64_t ticks_per_usec() noexcept;

// CLOCK_MONOTONIC in nanoseconds.
inline std::uint64_t monotonic_ns() noexcept {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

}  // namespace vma::clock
