// SPDX-License-Identifier: BSD-2-Clause
// VMA_RX_CQ_DRAIN_RATE_NSEC: a receive call that has data queued polls the ring all the same, once in so many
// nanoseconds, so that the device's queue does not overflow while the program is behind.
#pragma once

#include <atomic>

#include "libvma/config/params.h"
#include "libvma/runtime/clock.h"

namespace vma::sockets {

class DrainRate {
  public:
    // Is a poll due? Then it counts as done. Never, unless the parameter is set.
    bool due() noexcept {
        const clock::Nsec period(config::get().rx_cq_drain_rate_nsec);
        if (period == clock::Nsec::zero()) return false;
        const clock::Ticks now = clock::Ticks::now();
        if (now - polled_at_.load(std::memory_order_relaxed) < clock::to_ticks(period)) return false;
        polled_at_.store(now, std::memory_order_relaxed);
        return true;
    }

  private:
    std::atomic<clock::Ticks> polled_at_{};
};

}  // namespace vma::sockets
