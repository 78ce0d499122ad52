// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/clock.h"

#include <algorithm>

namespace vma::clock::internal {

std::uint64_t measure_ticks_per_usec() noexcept {
    std::uint64_t n0 = monotonic_ns(), t0 = ticks(), n1 = n0;
    while (n1 - n0 < 200'000) n1 = monotonic_ns();
    std::uint64_t t1 = ticks();
    const std::uint64_t rate = std::max<std::uint64_t>(1, (t1 - t0) * 1000 / (n1 - n0));
    ticks_per_usec.store(rate, std::memory_order_relaxed);
    return rate;
}

}  // namespace vma::clock::internal
