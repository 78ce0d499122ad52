// SPDX-License-Identifier: BSD-2-Clause
// Proportional rate reduction (RFC 9937): how the window shrinks in a recovery.
//
// Not at once: as many bytes leave for those that arrive as the new threshold is to the old window, so that
// the flight is at the threshold when the recovery ends. Where losses have brought the flight below the
// threshold, it grows again with what arrives: by as much (the conservative bound), or by a segment more for
// an ACK that moves SND.UNA and shows no new loss (slow start). Values only; bytes, counted in whole segments
// as the kernel does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vma::tcp {

class Prr {
  public:
    // A reduction from `window` to `threshold` begins.
    void begin(std::uint32_t window, std::uint32_t threshold) noexcept {
        window_ = std::max(window, 1u);
        threshold_ = threshold;
        delivered_ = sent_ = 0;
    }
    // `bytes` have left, new ones or again.
    void sent(std::uint32_t bytes) noexcept { sent_ += bytes; }

    // An ACK says that `delivered` bytes more have arrived. `flight`: bytes on their way after it.
    // `progress`: it moves SND.UNA and shows no loss. Returns the congestion window.
    std::uint32_t on_ack(std::uint32_t delivered, std::uint32_t flight, bool progress,
                         std::uint32_t mss) noexcept {
        delivered_ += delivered;
        std::int64_t more;
        if (flight > threshold_) {
            const std::uint64_t due = (delivered_ * threshold_ + window_ - 1) / window_;
            more = signed_of((due + mss - 1) / mss * mss) - signed_of(sent_);
        } else {
            more = std::max(signed_of(delivered_) - signed_of(sent_), std::int64_t{delivered});
            if (progress) more += mss;
            more = std::min(more, std::int64_t{threshold_} - flight);
        }
        // The first retransmission leaves at once.
        more = std::max(more, sent_ == 0 ? std::int64_t{mss} : 0);
        return static_cast<std::uint32_t>(std::min<std::int64_t>(flight + more, UINT32_MAX));
    }
    std::uint32_t threshold() const noexcept { return threshold_; }

  private:
    static std::int64_t signed_of(std::uint64_t n) noexcept { return static_cast<std::int64_t>(n); }

    std::uint64_t delivered_ = 0, sent_ = 0;  // since the reduction began
    std::uint32_t window_ = 1;                // when it began
    std::uint32_t threshold_ = 0;
};

}  // namespace vma::tcp
