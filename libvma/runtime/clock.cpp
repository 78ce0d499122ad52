// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/clock.h"

#include <algorithm>

namespace vma::clock::internal {

std::uint64_t measure_ticks_per_usec() noexcept {
    constexpr Nsec kEnough{200'000};
    const Time since = monotonic();
    const Ticks from = Ticks::now();
    Time until = since;
    while (until - since < kEnough) until = monotonic();
    const Ticks passed = Ticks::now() - from;
    const std::uint64_t rate = std::max<std::uint64_t>(1, passed.count() * 1000 / (until - since).count());
    ticks_per_usec.store(rate, std::memory_order_relaxed);
    return rate;
}

}  // namespace vma::clock::internal
