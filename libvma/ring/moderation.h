// SPDX-License-Identifier: BSD-2-Clause
// Interrupt moderation: how long a thread that frames have woken waits for more of them. So a busy receiver
// is woken some thousand times a second, and not for every frame.
//
// A NIC holds back the notification of a CQ until there are `count` frames or the first is `period` old.
// AF_XDP has no such thing: its socket is readable with the first frame. What the kernel offers
// (napi_defer_hard_irqs, gro_flush_timeout) belongs to the whole netdev. So the woken thread does it, in
// software, the same on every device.
//
// Adaptive: once an interval the rate of wake-ups is compared with the one aimed at. Below it nothing is held
// back, so a wake-up costs no latency; above it, count and period are what would have led to the rate aimed
// at, within limits.
#pragma once

#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma::ring {

struct ModerationConfig {
    bool enabled = false;
    std::uint32_t count = 0;  // fixed, where interval is 0; so is the period
    clock::Usec period{};
    std::uint32_t max_count = 0;  // of what is chosen
    clock::Usec max_period{};
    clock::Msec interval{};
    std::uint32_t rate = 1;  // wake-ups a second to aim at
};

struct ModerationCounters {
    std::uint64_t requested = 0,
                  received = 0;  // times a thread armed the ring before sleeping, and frames woke it
    std::uint64_t frames = 0;    // taken by the ring
    std::uint32_t count = 0;     // at present
    clock::Usec period{};
};

// Not thread-safe; time and frames come from outside.
class Moderation {
  public:
    explicit Moderation(const ModerationConfig& config) noexcept : config_(config) {
        if (!config.enabled || config.interval != clock::Msec::zero()) return;
        count_ = config.count;
        period_ = config.period;
    }

    // Holds back from now on what is said, and adapts no more. `count` 0 or `period` 0: nothing.
    void fix(std::uint32_t count, clock::Usec period) noexcept {
        config_.enabled = true;
        config_.interval = {};
        count_ = count;
        period_ = period;
    }
    // A thread was woken at `now`, when the ring had taken `frames` in all.
    void interrupt(std::uint64_t frames, clock::Time now) noexcept;
    // How long a thread that is woken now is to wait.
    clock::Nsec hold() const noexcept;

    std::uint32_t count() const noexcept { return count_; }
    clock::Usec period() const noexcept { return period_; }
    std::uint64_t received() const noexcept { return received_; }

  private:
    void adapt(std::uint64_t frames_per_second, std::uint64_t interrupts_per_second) noexcept;

    ModerationConfig config_;
    std::uint32_t count_ = 0;
    clock::Usec period_{};
    std::uint64_t received_ = 0;
    std::uint64_t frame_rate_ = 0;  // of the last interval
    clock::Time since_;
    std::uint64_t frames_then_ = 0, received_then_ = 0;
};

}  // namespace vma::ring
