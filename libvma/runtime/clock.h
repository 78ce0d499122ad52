// SPDX-License-Identifier: BSD-2-Clause
// Time for the fast path: the cycle counter, and its rate.
#pragma once

#include <time.h>

#include <atomic>
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

namespace internal {
inline constinit std::atomic<std::uint64_t> ticks_per_usec{0};
std::uint64_t measure_ticks_per_usec() noexcept;
}  // namespace internal

// Ticks in a microsecond, at least 1. The first call measures them against CLOCK_MONOTONIC, which takes about
// 0.2 ms. A signal handler may interrupt the measurement and measure for itself. So callers must not keep
// derived values in static variables of functions: the handler would wait there for the thread that it has
// interrupted.
inline std::uint64_t ticks_per_usec() noexcept {
    const std::uint64_t known = internal::ticks_per_usec.load(std::memory_order_relaxed);
    return __builtin_expect(known != 0, 1) ? known : internal::measure_ticks_per_usec();
}

// CLOCK_MONOTONIC in nanoseconds.
inline std::uint64_t monotonic_ns() noexcept {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

}  // namespace vma::clock
