// SPDX-License-Identifier: BSD-2-Clause
// Smoothing, as RFC 6298 section 2 has it, in integers.
#include "libvma/tcp/recovery/rtt.h"

#include <algorithm>
#include <cstdlib>

namespace vma::tcp {

void WindowedMin::add(std::uint32_t value, std::uint64_t now_ns) noexcept {
    const Sample sample{value, now_ns};
    if (value <= best_[0].value || now_ns - best_[2].at_ns > window_ns_) {
        best_[0] = best_[1] = best_[2] = sample;
        return;
    }
    if (value <= best_[1].value)
        best_[1] = best_[2] = sample;
    else if (value <= best_[2].value)
        best_[2] = sample;

    const std::uint64_t age = now_ns - best_[0].at_ns;
    if (age > window_ns_) {  // the best is too old: the next ones move up
        best_[0] = best_[1];
        best_[1] = best_[2];
        best_[2] = sample;
        if (now_ns - best_[0].at_ns > window_ns_) {
            best_[0] = best_[1];
            best_[1] = best_[2];
        }
    } else if (best_[1].at_ns == best_[0].at_ns && age > window_ns_ / 4) {
        // A quarter passed without a second best: take one from here, so that there is one when the best
        // goes.
        best_[1] = best_[2] = sample;
    } else if (best_[2].at_ns == best_[1].at_ns && age > window_ns_ / 2) {
        best_[2] = sample;
    }
}

void RttEstimator::sample(std::uint32_t rtt_us, std::uint64_t now_ns) noexcept {
    const std::uint32_t r = std::clamp(rtt_us, 1u, kMaxRtoUs);
    latest_us_ = r;
    min_.add(r, now_ns);
    if (!measured_) {
        measured_ = true;
        srtt8_ = r * 8;
        rttvar4_ = r * 2;  // R/2
    } else {
        const std::int64_t error = static_cast<std::int64_t>(r) - srtt8_ / 8;
        // RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R|, with the SRTT of before.
        rttvar4_ = static_cast<std::uint32_t>(rttvar4_ - rttvar4_ / 4 + std::abs(error));
        srtt8_ = static_cast<std::uint32_t>(static_cast<std::int64_t>(srtt8_) + error);
    }
    backoffs_ = 0;
    base_rto_us_ = std::min(srtt8_ / 8 + std::max(rttvar4_, kMinRtoUs), kMaxRtoUs);
}

void RttEstimator::backoff() noexcept {
    if (backoffs_ < UINT8_MAX) backoffs_++;
}

void RttEstimator::handshake_without_sample() noexcept {
    if (!measured_) base_rto_us_ = kFallbackRtoUs;
    backoffs_ = 0;
}

std::uint32_t RttEstimator::rto_us() const noexcept {
    const std::uint64_t rto = static_cast<std::uint64_t>(base_rto_us_) << std::min<unsigned>(backoffs_, 16);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(rto, kMaxRtoUs));
}

}  // namespace vma::tcp
