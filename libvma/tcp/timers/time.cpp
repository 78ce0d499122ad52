// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/timers/time.h"

#include <atomic>

#include "libvma/runtime/clock.h"

namespace vma::tcp {

namespace {

std::atomic<Time (*)()> g_clock{nullptr};
// Nanoseconds per tick, in units of 2^-32; 0: not known yet.
std::atomic<std::uint64_t> g_scale{0};

}  // namespace

Time Clock::now() noexcept {
    if (const auto clock = g_clock.load(std::memory_order_relaxed)) return clock();
    std::uint64_t scale = g_scale.load(std::memory_order_relaxed);
    if (scale == 0) {
        scale = (1000ull << 32) / clock::ticks_per_usec();
        std::uint64_t unknown = 0;
        // Two first callers may have measured differently, and a clock with two rates would run backwards.
        if (!g_scale.compare_exchange_strong(unknown, scale, std::memory_order_relaxed)) scale = unknown;
    }
    __extension__ using Wide = unsigned __int128;
    const Wide scaled = static_cast<Wide>(clock::Ticks::now().count()) * scale;
    return Time(Nsec(static_cast<std::uint64_t>(scaled >> 32) | 1));
}

void set_clock(Time (*clock)()) noexcept { g_clock.store(clock, std::memory_order_relaxed); }

}  // namespace vma::tcp
