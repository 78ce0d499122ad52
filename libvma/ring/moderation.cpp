// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/moderation.h"

#include <algorithm>

namespace vma::ring {

namespace {
constexpr clock::Nsec kSecond{1'000'000'000};
constexpr std::uint32_t kUsecs = 1'000'000;   // in a second
constexpr clock::Msec kDefaultInterval{250};  // for measuring, where nothing is adapted
}  // namespace

void Moderation::interrupt(std::uint64_t frames, clock::Time now) noexcept {
    received_++;
    if (!config_.enabled) return;
    if (since_ == clock::Time{}) {
        since_ = now;
        frames_then_ = frames;
        received_then_ = received_;
        return;
    }
    const bool adapts = config_.interval != clock::Msec::zero();
    const clock::Nsec interval = adapts ? config_.interval : kDefaultInterval;
    const clock::Nsec passed = now - since_;
    if (passed < interval) return;
    // A long interval without a wake-up says that the rate is low.
    frame_rate_ = (frames - frames_then_) * kSecond / passed;
    const std::uint64_t interrupt_rate = (received_ - received_then_) * kSecond / passed;
    since_ = now;
    frames_then_ = frames;
    received_then_ = received_;
    if (adapts) adapt(frame_rate_, interrupt_rate);
}

void Moderation::adapt(std::uint64_t frames_per_second, std::uint64_t interrupts_per_second) noexcept {
    const std::uint64_t rate = config_.rate;
    // While something is held back the rate is near the one aimed at, so it is the frames that tell when to
    // stop.
    const bool busy =
        period_ != clock::Usec::zero() ? frames_per_second > rate : interrupts_per_second > rate;
    if (!busy) {
        count_ = 0;
        period_ = {};
        return;
    }
    // So many frames come for each wake-up wanted, and so much longer than between two frames it has to wait
    // for them.
    const std::uint64_t frames = std::max(frames_per_second, rate);
    count_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(frames / rate, config_.max_count));
    const std::uint64_t longer = kUsecs / rate - std::min<std::uint64_t>(kUsecs / frames, kUsecs / rate);
    period_ = clock::Usec(std::min<std::uint64_t>(longer, config_.max_period.count()));
}

clock::Nsec Moderation::hold() const noexcept {
    if (period_ == clock::Usec::zero() || count_ <= 1) return {};
    const clock::Nsec period = period_;
    // `count` frames are there after so long; the frame that woke the thread is one of them.
    return frame_rate_ == 0 ? period : std::min(period, (count_ - 1) * kSecond / frame_rate_);
}

}  // namespace vma::ring
