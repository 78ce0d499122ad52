// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/clock.h"

#include <algorithm>
#include <atomic>

namespace vma::clock {

std::uint64_t ticks_per_usec() noexcept {
    static std::atomic<std::uint64_t> rate{0};
    std::uint64_t known = rate.load(std::memory_order_relaxed);
    if (known != 0) return known;
    std::uint64_t n0 = monotonic_ns(), t0 = ticks(), n1 = n0;
    while (n1 - n0 < 200'000) n1 = monotonic_ns();
    std::uint64_t t1 = ticks();
    known = std::max<std::uint64_t>(1, (t1 - t0) * 1000 / (n1 - n0));
    rate.store(known, std::memory_order_relaxed);
    return known;
}

}  // namespace vma::clock
