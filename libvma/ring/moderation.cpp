// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/moderation.h"

#include <algorithm>

namespace vma::ring {

namespace {
constexpr std::uint64_t kSecond = 1'000'000'000, kMsec = 1'000'000, kUsec = 1000;
constexpr std::uint32_t kUsecs = 1'000'000;      // in a second
constexpr std::uint32_t kDefaultInterval = 250;  // ms, for measuring, where nothing is adapted
}  // namespace

void Moderation::interrupt(std::uint64_t frames, std::uint64_t now_ns) noexcept {
    received_++;
    if (!config_.enabled) return;
    if (since_ns_ == 0) {
        since_ns_ = now_ns;
        frames_then_ = frames;
        received_then_ = received_;
        return;
    }
    const std::uint64_t interval =
        (config_.interval_msec != 0 ? config_.interval_msec : kDefaultInterval) * kMsec;
    const std::uint64_t passed = now_ns - since_ns_;
    if (passed < interval) return;
    // A long interval without a wake-up says that the rate is low.
    frame_rate_ = (frames - frames_then_) * kSecond / passed;
    const std::uint64_t interrupt_rate = (received_ - received_then_) * kSecond / passed;
    since_ns_ = now_ns;
    frames_then_ = frames;
    received_then_ = received_;
    if (config_.interval_msec != 0) adapt(frame_rate_, interrupt_rate);
}

void Moderation::adapt(std::uint64_t frames_per_second, std::uint64_t interrupts_per_second) noexcept {
    const std::uint64_t rate = config_.rate;
    // While something is held back the rate is near the one aimed at, so it is the frames that tell when to
    // stop.
    const bool busy = period_usec_ != 0 ? frames_per_second > rate : interrupts_per_second > rate;
    if (!busy) {
        count_ = period_usec_ = 0;
        return;
    }
    // So many frames come for each wake-up wanted, and so much longer than between two frames it has to wait
    // for them.
    const std::uint64_t frames = std::max(frames_per_second, rate);
    count_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(frames / rate, config_.max_count));
    period_usec_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        kUsecs / rate - std::min<std::uint64_t>(kUsecs / frames, kUsecs / rate), config_.max_period_usec));
}

std::uint64_t Moderation::hold_ns() const noexcept {
    if (period_usec_ == 0 || count_ <= 1) return 0;
    const std::uint64_t period = period_usec_ * kUsec;
    // `count` frames are there after so long; the frame that woke the thread is one of them.
    return frame_rate_ == 0 ? period : std::min(period, (count_ - 1) * kSecond / frame_rate_);
}

}  // namespace vma::ring
