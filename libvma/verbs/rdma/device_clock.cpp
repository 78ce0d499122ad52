// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/device_clock.h"

#include <mutex>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"

namespace vma::verbs::rdma {
namespace {

constexpr clock::Msec kSynchronisePeriod{1000};
constexpr int kReadings = 5;  // of both clocks; the quickest reading counts

std::optional<ClockPair> read_pair(ibv_context* context) noexcept {
    std::optional<ClockPair> best;
    for (int i = 0; i < kReadings; i++) {
        ibv_values_ex values{};
        values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        const clock::WallTime before = clock::wall();
        if (ibv_query_rt_values_ex(context, &values) != 0 || !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
            return std::nullopt;
        const clock::WallTime after = clock::wall();
        const clock::Nsec width = after - before;
        if (after < before || (best && width.count() >= best->width_ns)) continue;
        const auto ticks =
            static_cast<std::uint64_t>(values.raw_clock.tv_nsec);  // cycles, in spite of the name
        const clock::Nsec middle = before.time_since_epoch() + width / 2;
        best = ClockPair{ticks, middle.count(), width.count()};
    }
    return best;
}

std::optional<ClockLine> read_ptp(ibv_context* context, const Mlx5& mlx5) noexcept {
    mlx5dv_clock_info info{};
    if (mlx5.get_clock_info(context, &info) != 0 || info.shift >= 64 || info.mult == 0) return std::nullopt;
    const auto mult =
        static_cast<std::uint64_t>((static_cast<unsigned __int128>(info.mult) << 32) >> info.shift);
    return ClockLine{info.last_cycles, info.nsec + (info.frac >> info.shift), mult};
}

// The kernel's PTP clock counts with fewer bits than the adapter.
std::uint64_t ptp_mask(ibv_context* context, const Mlx5& mlx5) noexcept {
    mlx5dv_clock_info info{};
    return mlx5.get_clock_info(context, &info) == 0 && info.mask != 0 ? info.mask : ~std::uint64_t{0};
}

}  // namespace

struct DeviceClock::Shared {
    Shared(const HwClock::Attr& attr, const HwClock::Source& source) : clock(attr, source) {}

    Lock lock;         // a leaf
    bool open = true;  // the device is open
    HwClock clock;
};

DeviceClock::DeviceClock(ibv_context* context, const HwClock::Attr& attr, const Mlx5* mlx5) {
    ErrnoAndCancelKept calm;
    HwClock::Attr wanted = attr;
    HwClock::Source source;
    source.pair = [context] { return read_pair(context); };
    if (mlx5 != nullptr && attr.conversion == Conversion::ptp) {
        source.ptp = [context, mlx5] { return read_ptp(context, *mlx5); };
        wanted.ptp_mask = ptp_mask(context, *mlx5);
    }
    shared_ = std::make_shared<Shared>(wanted, source);
    const Conversion made = clock().conversion();
    if (made != Conversion::system && made != Conversion::ptp) return;
    runtime::every(kSynchronisePeriod, [shared = std::weak_ptr(shared_)] {
        auto still = shared.lock();
        if (still == nullptr) return false;
        std::lock_guard hold(still->lock);
        if (still->open) still->clock.synchronise();
        return still->open;
    });
}

DeviceClock::~DeviceClock() {
    std::lock_guard hold(shared_->lock);
    shared_->open = false;
}

std::uint64_t DeviceClock::to_ns(std::uint64_t ticks) noexcept { return shared_->clock.to_ns(ticks); }

const HwClock& DeviceClock::clock() const noexcept { return shared_->clock; }

void DeviceClock::synchronise() noexcept {
    std::lock_guard hold(shared_->lock);
    shared_->clock.synchronise();
}

}  // namespace vma::verbs::rdma
