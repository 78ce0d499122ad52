// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/hw_clock.h"

#include <utility>

namespace vma::verbs::rdma {
namespace {

using Wide = unsigned __int128;

// A crystal is off by less than 100 parts in a million, and the kernel slews the system's clock by at most
// 500. A larger error is a step of the system's clock, which tells nothing about the frequency.
constexpr std::uint64_t kLargestErrorPpm = 1000;
// A pair of readings further apart (the thread lost its processor) is useless.
constexpr std::uint64_t kWidestPairNs = 100'000;
// Over a shorter time, the error of the readings spoils the frequency.
constexpr std::uint64_t kShortestBaseNs = 100'000'000;

// Rounds to the nearest nanosecond.
std::uint64_t nanoseconds(std::uint64_t ticks, std::uint64_t mult) noexcept {
    return static_cast<std::uint64_t>((Wide{ticks} * mult + (Wide{1} << 31)) >> 32);
}

}  // namespace

HwClock::HwClock(const Attr& attr, Source source) : attr_(attr), source_(std::move(source)) {
    if (attr_.conversion == Conversion::none) return;
    if (attr_.khz != 0)
        nominal_ = static_cast<std::uint64_t>(((Wide{1'000'000} << 32) + attr_.khz / 2) / attr_.khz);
    const auto has_pair = [&] { return source_.pair && source_.pair().has_value(); };
    const auto has_ptp = [&] { return source_.ptp && source_.ptp().has_value(); };
    Conversion& mode = attr_.conversion;
    if (mode == Conversion::ptp && !has_ptp()) mode = Conversion::system;
    if (mode == Conversion::best) mode = has_pair() ? Conversion::system : Conversion::raw;
    if (mode == Conversion::system && !has_pair()) mode = Conversion::none;
    if ((mode == Conversion::system || mode == Conversion::raw) && nominal_ == 0) mode = Conversion::none;
    if (mode == Conversion::raw) set_line({0, 0, nominal_});
    if (mode == Conversion::ptp) attr_.mask &= attr_.ptp_mask;
    synchronise();
}

std::uint64_t HwClock::to_ns(std::uint64_t ticks) const noexcept {
    const ClockLine line = line_now();
    const std::uint64_t mask = attr_.mask;
    const std::uint64_t after = (ticks - line.ticks) & mask;
    // Counters shorter than 64 bits wrap. Raw time then begins anew; with a point, half of the range lies
    // before it.
    if (attr_.conversion == Conversion::raw || after <= mask / 2)
        return line.ns + nanoseconds(after, line.mult);
    const std::uint64_t before = (line.ticks - ticks) & mask;
    return line.ns - nanoseconds(before, line.mult);
}

void HwClock::synchronise() noexcept {
    if (attr_.conversion == Conversion::system) follow_system();
    if (attr_.conversion != Conversion::ptp) return;
    if (auto line = source_.ptp()) set_line(*line);
}

void HwClock::follow_system() noexcept {
    const std::optional<ClockPair> now = source_.pair();
    if (!now || (last_ && now->width_ns > kWidestPairNs)) return;
    std::uint64_t mult = last_ ? mult_.load(std::memory_order_relaxed) : nominal_;
    if (last_ && now->ns > last_->ns) {
        const std::uint64_t ns = now->ns - last_->ns, ticks = (now->ticks - last_->ticks) & attr_.mask;
        if (ns < kShortestBaseNs || ticks == 0) return;
        const Wide measured = (Wide{ns} << 32) / ticks;
        const Wide most = Wide{nominal_} * kLargestErrorPpm / 1'000'000;
        const bool believable = measured <= Wide{nominal_} + most && measured + most >= nominal_;
        mult = believable ? static_cast<std::uint64_t>(measured) : nominal_;
    }
    set_line({now->ticks, now->ns, mult});
    last_ = now;
}

void HwClock::set_line(const ClockLine& line) noexcept {
    const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed);
    sequence_.store(sequence + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    ticks_.store(line.ticks, std::memory_order_relaxed);
    ns_.store(line.ns, std::memory_order_relaxed);
    mult_.store(line.mult, std::memory_order_relaxed);
    sequence_.store(sequence + 2, std::memory_order_release);
}

ClockLine HwClock::line_now() const noexcept {
    for (;;) {
        const std::uint32_t before = sequence_.load(std::memory_order_acquire);
        const ClockLine line{ticks_.load(std::memory_order_relaxed), ns_.load(std::memory_order_relaxed),
                             mult_.load(std::memory_order_relaxed)};
        std::atomic_thread_fence(std::memory_order_acquire);
        if (before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before) return line;
    }
}

}  // namespace vma::verbs::rdma
