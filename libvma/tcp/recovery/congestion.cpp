// SPDX-License-Identifier: BSD-2-Clause
// The arithmetic of the congestion window. Section numbers are of RFC 9438 where nothing else is said.
#include "libvma/tcp/recovery/congestion.h"

#include <algorithm>
#include <cmath>

namespace vma::tcp {
namespace {

constexpr double kBeta = 0.7;  // section 4.6
constexpr double kC = 0.4;     // section 5.1, in segments per second cubed
// Section 4.3: with this slope a sender that reduces by kBeta gets what Reno gets that reduces by half.
constexpr double kRenoSlope = 3 * (1 - kBeta) / (1 + kBeta);

// How many segments one ACK may add in slow start: RFC 3465 section 2.3, and for HyStart++ without pacing RFC
// 9406 section 4.3.
constexpr std::uint32_t kSlowStartLimit = 2;
constexpr std::uint32_t kHyStartLimit = 8;
// RFC 9406 section 4.3.
constexpr Usec kMinRttThresh{4000}, kMaxRttThresh{16000};
constexpr std::uint32_t kMinRttDivisor = 8;
constexpr std::uint8_t kRttSamples = 8, kCssRounds = 5;
constexpr std::uint32_t kCssGrowthDivisor = 4;

struct Name {
    CongestionAlgorithm algorithm;
    const char* name;
};
constexpr Name kNames[] = {{CongestionAlgorithm::newreno, "reno"},
                           {CongestionAlgorithm::cubic, "cubic"},
                           {CongestionAlgorithm::none, "none"}};

}  // namespace

std::optional<CongestionAlgorithm> congestion_algorithm(std::string_view name) noexcept {
    for (const Name& row : kNames)
        if (name == row.name) return row.algorithm;
    return std::nullopt;
}

const char* congestion_name(CongestionAlgorithm algorithm) noexcept {
    for (const Name& row : kNames)
        if (row.algorithm == algorithm) return row.name;
    return "";
}

std::uint32_t Congestion::initial_window() const noexcept {
    return initial_ != 0 ? initial_ : kInitialSegments * mss_;
}

void Congestion::init(CongestionAlgorithm algorithm, std::uint32_t mss,
                      std::uint32_t initial_window_bytes) noexcept {
    *this = Congestion{};
    algorithm_ = algorithm;
    mss_ = std::clamp(mss, 1u, 65535u);
    initial_ = std::min(initial_window_bytes, kUnlimited);
    cwnd_ = std::max(initial_window(), mss_);
}

void Congestion::set_mss(std::uint32_t mss) noexcept {
    mss = std::clamp(mss, 1u, 65535u);
    if (untouched_) {
        mss_ = mss;
        cwnd_ = std::max(initial_window(), mss_);
    } else if (mss < mss_) {
        cwnd_ = std::max<std::uint32_t>(static_cast<std::uint64_t>(cwnd_) * mss / mss_, mss);
    }
    // Cubic counts segments, so its memory is converted to the new ones.
    const double ratio = static_cast<double>(mss_) / mss;
    for (Cubic* c : {&cubic_, &undo_.cubic}) {
        c->w_max *= ratio;
        c->w_est *= ratio;
        c->cwnd_prior *= ratio;
        c->epoch_start = kNoTime;
    }
    // The way back from a recovery that is under way leads to a window of the new segments.
    if (mss < mss_)
        undo_.cwnd = std::max<std::uint32_t>(static_cast<std::uint64_t>(undo_.cwnd) * mss / mss_, mss);
    mss_ = mss;
}

void Congestion::change(CongestionAlgorithm algorithm) noexcept {
    if (algorithm == algorithm_) return;
    algorithm_ = algorithm;
    cubic_ = Cubic{};
    hystart_ = HyStart{};
    undo_.valid = false;
    counted_ = 0;
    fraction_ = 0;
}

void Congestion::grow(double bytes) noexcept {
    fraction_ += bytes;
    const double whole = std::floor(fraction_);
    fraction_ -= whole;
    cwnd_ = static_cast<std::uint32_t>(std::min<double>(static_cast<double>(cwnd_) + whole, kUnlimited));
}

void Congestion::on_rtt_sample(Usec rtt) noexcept {
    hystart_.this_round_min = std::min(hystart_.this_round_min, rtt);
    if (hystart_.samples < UINT8_MAX) hystart_.samples++;
}

void Congestion::on_ack(std::uint32_t acked, std::uint32_t flight, bool app_limited, Usec srtt,
                        Time now) noexcept {
    untouched_ = false;
    const Nsec since_last =
        cubic_.last_ack == kNoTime || now < cubic_.last_ack ? Nsec::zero() : now - cubic_.last_ack;
    cubic_.last_ack = now;
    if (acked == 0 || algorithm_ == CongestionAlgorithm::none || phase_ == Phase::recovery) return;
    // A window that is not filled says nothing about the network. In slow start half filled is enough,
    // because the flight that was half of it has by now grown with it (the kernel's rule).
    const bool growing = in_slow_start() ? !app_limited || flight > cwnd_ / 2 : !app_limited;
    if (!growing) {
        // Section 5.8: the curve must not run on while nobody follows it.
        if (cubic_.epoch_start != kNoTime) cubic_.epoch_start += since_last;
        if (hystart_on()) hystart_round(acked, flight);
        return;
    }
    if (in_slow_start()) {
        slow_start(acked, flight);
        return;
    }
    if (algorithm_ == CongestionAlgorithm::cubic)
        avoid_cubic(acked, srtt, now);
    else
        avoid_reno(acked);
}

void Congestion::slow_start(std::uint32_t acked, std::uint32_t flight) noexcept {
    const bool hystart = hystart_on();
    if (hystart) hystart_round(acked, flight);
    if (!in_slow_start()) return;
    // After a timeout one ACK may cover much that arrived before it, hence one segment (RFC 3465 section
    // 2.3).
    const std::uint32_t limit = phase_ == Phase::timeout ? 1 : hystart ? kHyStartLimit : kSlowStartLimit;
    std::uint32_t step = std::min(acked, limit * mss_);
    if (hystart_.in_css) step /= kCssGrowthDivisor;
    cwnd_ = std::min(cwnd_ + step, std::min(ssthresh_, kUnlimited));
}

// RFC 9406 section 4.2: delay that rises from one round to the next ends slow start before loss does.
void Congestion::hystart_round(std::uint32_t acked, std::uint32_t flight) noexcept {
    HyStart& h = hystart_;
    if (h.samples >= kRttSamples && h.this_round_min != Usec::max()) {
        if (!h.in_css && h.last_round_min != Usec::max()) {
            const Usec thresh(std::clamp((h.last_round_min / kMinRttDivisor).count(), kMinRttThresh.count(),
                                         kMaxRttThresh.count()));
            if (h.this_round_min >= h.last_round_min + thresh) {
                h.css_baseline = h.this_round_min;
                h.in_css = true;
                h.css_rounds = 0;
            }
        } else if (h.in_css && h.this_round_min < h.css_baseline) {
            h.css_baseline = Usec::max();  // the rise was a burst's own: slow start goes on
            h.in_css = false;
        }
    }
    if (acked < h.round_bytes) {
        h.round_bytes -= acked;
        return;
    }
    const bool first = h.round_bytes == 0;
    h.round_bytes = std::max(flight > acked ? flight - acked : 0, 1u);
    if (first) return;  // the flight before the first ACK is no full round
    h.last_round_min = h.this_round_min;
    h.this_round_min = Usec::max();
    h.samples = 0;
    if (h.in_css && ++h.css_rounds >= kCssRounds) {
        ssthresh_ = cwnd_;
        h = HyStart{};
        cubic_.fresh_curve = true;
    }
}

void Congestion::avoid_reno(std::uint32_t acked) noexcept {
    counted_ += std::min(acked, kUnlimited);  // at most 2^30 plus less than a window of 2^30
    if (counted_ < cwnd_) return;
    counted_ -= cwnd_;
    // An ACK for more than two windows must not be saved up for later ones.
    counted_ = std::min(counted_, cwnd_ - 1);
    cwnd_ = std::min(cwnd_ + mss_, kUnlimited);
}

void Congestion::avoid_cubic(std::uint32_t acked, Usec srtt, Time now) noexcept {
    Cubic& c = cubic_;
    const double mss = mss_;
    const double cwnd = cwnd_ / mss;
    if (c.epoch_start == kNoTime) {
        c.epoch_start = std::max(now, Time(Nsec(1)));
        c.w_est = cwnd;
        if (c.fresh_curve || cwnd >= c.w_max) {
            c.w_max = cwnd;
            c.k = 0;
        } else {
            c.k = std::cbrt((c.w_max - cwnd) / kC);
        }
        if (c.fresh_curve) c.cwnd_prior = cwnd;
        c.fresh_curve = false;
    }
    const double t = now > c.epoch_start ? static_cast<double>((now - c.epoch_start).count()) * 1e-9 : 0;
    const auto curve = [&](double at) { return kC * (at - c.k) * (at - c.k) * (at - c.k) + c.w_max; };
    const double segments = acked / mss;

    // Section 4.3. As steep as Reno once the window lost is regained.
    c.w_est += (c.w_est >= c.cwnd_prior ? 1.0 : kRenoSlope) * segments / cwnd;
    if (curve(t) < c.w_est) {
        if (c.w_est > cwnd) grow((c.w_est - cwnd) * mss);
        return;
    }
    // Sections 4.2, 4.4, 4.5: towards where the curve will be in one round trip, at most half a window away.
    const double target = std::clamp(curve(t + srtt.count() * 1e-6), cwnd, 1.5 * cwnd);
    grow((target - cwnd) / cwnd * segments * mss);
}

void Congestion::save() noexcept {
    undo_.valid = true;
    undo_.cwnd = cwnd_;
    undo_.ssthresh = ssthresh_;
    undo_.cubic = cubic_;
}

// The new threshold, for a loss and for a timeout.
void Congestion::reduce(std::uint32_t flight) noexcept {
    // Limited transmit may have put more in flight than the window, and that must not count (RFC 5681 section
    // 3.2).
    const std::uint32_t used = std::min(flight, cwnd_);
    std::uint64_t kept = used / 2;
    if (algorithm_ == CongestionAlgorithm::cubic) {
        kept = std::uint64_t{used} * 7 / 10;  // kBeta, without its rounding
        const double cwnd = static_cast<double>(cwnd_) / mss_;
        // Section 4.7, fast convergence: lower than last time means somebody else needs room.
        cubic_.w_max = cwnd < cubic_.w_max ? cwnd * (1 + kBeta) / 2 : cwnd;
        cubic_.cwnd_prior = cwnd;
    }
    cubic_.epoch_start = kNoTime;
    cubic_.fresh_curve = false;
    hystart_ = HyStart{};
    ssthresh_ = std::max(static_cast<std::uint32_t>(kept), 2 * mss_);
    counted_ = 0;
    fraction_ = 0;
}

void Congestion::on_loss_event(std::uint32_t flight, Time) noexcept {
    if (phase_ != Phase::open) return;
    untouched_ = false;
    save();
    phase_ = Phase::recovery;
    reduce(flight);
    cwnd_ = ssthresh_;
}

void Congestion::on_recovery_exit() noexcept {
    if (phase_ == Phase::recovery) cwnd_ = ssthresh_;
    phase_ = Phase::open;
}

void Congestion::on_rto(std::uint32_t flight, bool first_time, Time) noexcept {
    untouched_ = false;
    // In a recovery the window of data was paid for when it began (the kernel's rule; RFC 5681 would reduce
    // once more), and the way back leads to before it.
    if (phase_ == Phase::open) save();
    if (first_time && phase_ != Phase::recovery) reduce(flight);
    phase_ = Phase::timeout;
    cubic_.epoch_start = kNoTime;
    cubic_.fresh_curve = true;
    cwnd_ = mss_;
}

void Congestion::on_spurious() noexcept {
    if (!undo_.valid) {
        on_recovery_exit();  // the recovery is over, whatever is known of the time before it
        return;
    }
    undo_.valid = false;
    phase_ = Phase::open;
    cwnd_ = std::max(cwnd_, undo_.cwnd);
    ssthresh_ = std::max(ssthresh_, undo_.ssthresh);
    // Section 4.9. The time on the curve starts anew: what passed in the recovery was not spent growing.
    const Time last_ack = cubic_.last_ack;
    const Nsec stood_still = last_ack > undo_.cubic.last_ack ? last_ack - undo_.cubic.last_ack : Nsec::zero();
    cubic_ = undo_.cubic;
    cubic_.last_ack = last_ack;
    if (cubic_.epoch_start != kNoTime) cubic_.epoch_start += stood_still;
}

void Congestion::after_idle(Nsec idle, Usec rto) noexcept {
    if (algorithm_ == CongestionAlgorithm::none || rto == Usec::zero() || idle <= rto) return;
    const std::uint32_t restart = std::min(initial_window(), cwnd_);
    // What the window was remains known as a threshold, so slow start returns to it quickly.
    ssthresh_ = std::max(ssthresh_, cwnd_ / 2 + cwnd_ / 4);
    const std::uint64_t halvings = std::min<std::uint64_t>((idle - Nsec(1)) / rto, 31);
    cwnd_ = std::max(cwnd_ >> halvings, restart);
    counted_ = 0;
    fraction_ = 0;
    if (cubic_.epoch_start != kNoTime) {
        cubic_.epoch_start = kNoTime;
        cubic_.fresh_curve = true;
    }
    hystart_ = HyStart{};
}

}  // namespace vma::tcp
