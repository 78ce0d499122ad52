// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/clock.h"

#include <endian.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <atomic>
#include <ctime>

namespace mlx5_sim {
namespace {

// ns = ticks * kMult >> kShift, as the driver computes it for 156.25 MHz.
constexpr std::uint32_t kShift = 23;
constexpr std::uint32_t kMult = (1'000'000ull << kShift) / kClockKHz;
constexpr std::uint64_t kMask = 0x7fffffffffffffff;

std::uint64_t nanoseconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Exact and without overflow for a century: 156250 / 10^6 is 5 / 32.
std::uint64_t to_ticks(std::uint64_t ns) { return ns * (kClockKHz / 31250) / 32; }
std::uint64_t to_ns(std::uint64_t ticks) { return ticks * 32 / (kClockKHz / 31250); }
static_assert(kClockKHz == 5 * 31250 && 31250 * 32 == 1'000'000);

template <class T>
void store(T& field, T value, std::memory_order order) {
    std::atomic_ref<T>(field).store(value, order);
}

}  // namespace

Clock::Clock()
    : start_ticks_(to_ticks(nanoseconds(CLOCK_MONOTONIC))), start_time_of_day_(nanoseconds(CLOCK_REALTIME)) {}

std::uint64_t Clock::ticks() {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = source_ ? source_() : to_ticks(nanoseconds(CLOCK_MONOTONIC));
    for (const Pages& pages : pages_) write(pages, now);
    return now;
}

void Clock::set_source(std::function<std::uint64_t()> ticks) {
    {
        const std::lock_guard lock(mutex_);
        source_ = std::move(ticks);
        start_ticks_ = source_ ? source_() : to_ticks(nanoseconds(CLOCK_MONOTONIC));
        start_time_of_day_ = nanoseconds(CLOCK_REALTIME);
    }
    this->ticks();
}

void Clock::attach(void* core_clock, void* clock_info) {
    {
        const std::lock_guard lock(mutex_);
        pages_.push_back({core_clock, clock_info});
    }
    ticks();
}

void Clock::detach(const void* core_clock) {
    const std::lock_guard lock(mutex_);
    std::erase_if(pages_, [&](const Pages& pages) { return pages.core_clock == core_clock; });
}

void Clock::write(const Pages& pages, std::uint64_t now) const {
    store(*static_cast<std::uint64_t*>(pages.core_clock), htobe64(now), std::memory_order_release);

    // As the kernel writes it: whoever reads while the sign is odd, or finds another sign afterwards, reads
    // again.
    auto& info = *static_cast<mlx5_ib_clock_info*>(pages.clock_info);
    const std::uint32_t sign = info.sign;
    store<__u32>(info.sign, sign | MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    store<__u64>(info.cycles, now, std::memory_order_relaxed);
    store<__u64>(info.nsec, start_time_of_day_ + to_ns(now - start_ticks_), std::memory_order_relaxed);
    store<__u64>(info.frac, 0, std::memory_order_relaxed);
    info.mult = kMult;
    info.shift = kShift;
    info.mask = kMask;
    info.overflow_period = kMask / 2;
    store<__u32>(info.sign, sign + 2 * MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, std::memory_order_release);
}

}  // namespace mlx5_sim
