// SPDX-License-Identifier: BSD-2-Clause
// The arithmetic of the congestion window. Section numbers are of RFC 9438 where nothing else is said.
#include "libvma/tcp/recovery/congestion.h"

#include <algorithm>
#include <cmath>

#include "libvma/tcp/sequence.h"

namespace vma::tcp {
namespace {

// Section 4.6 and the kernel's fixed point: 0.7.
constexpr std::uint32_t kBeta = 717, kBetaScale = 1024;
constexpr double kC = 0.4;  // section 5.1, in segments per second cubed
// Section 4.3: bytes for each byte of window until Reno, which reduces as CUBIC does, has a segment more. The
// kernel's 15/8.
constexpr double kRenoBytes = 1.875;
// Before there was any loss, the curve adds a segment for at most so many.
constexpr double kSlowest = 20;

// HyStart (Ha and Rhee, "Taming the elephants"), with the kernel's numbers.
constexpr std::uint32_t kHyStartLow = 16;  // segments of window below which it does not act
constexpr std::uint8_t kHyStartSamples = 8;
constexpr Usec kAckTrain{2000};  // ACKs closer than this are of one train
constexpr Usec kMinDelay{4000}, kMaxDelay{16000};
// What the kernel lets a sender of super-frames be late: the time of four of them at its pacing rate, at most
// a millisecond.
constexpr std::uint64_t kFourSuperFrames = 4 * 65536;
constexpr Usec kMostLate{1000};

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
    cubic_.w_max *= ratio;
    cubic_.epoch = kNoTime;
    // The way back from a recovery that is under way leads to a window of the new segments.
    if (mss < mss_)
        prior_window_ = static_cast<std::uint32_t>(static_cast<std::uint64_t>(prior_window_) * mss / mss_);
    mss_ = mss;
}

void Congestion::change(CongestionAlgorithm algorithm) noexcept {
    if (algorithm == algorithm_) return;
    algorithm_ = algorithm;
    cubic_ = Cubic{};
    hystart_ = HyStart{};
    prior_window_ = 0;
    counted_ = 0;
    fraction_ = 0;
}

void Congestion::grow(double bytes) noexcept {
    fraction_ += bytes;
    const double whole = std::floor(fraction_);
    fraction_ -= whole;
    cwnd_ = static_cast<std::uint32_t>(std::min<double>(static_cast<double>(cwnd_) + whole, kUnlimited));
}

void Congestion::on_ack(std::uint32_t acked, bool limited, Time now) noexcept {
    untouched_ = false;
    if (!limited || algorithm_ == CongestionAlgorithm::none) return;
    if (in_slow_start()) {
        acked = slow_start(acked);
        if (acked == 0) return;
    }
    if (algorithm_ == CongestionAlgorithm::cubic)
        avoid_cubic(acked, now);
    else
        avoid_reno(acked);
}

// Returns what of `acked` is left for congestion avoidance.
std::uint32_t Congestion::slow_start(std::uint32_t acked) noexcept {
    const std::uint32_t step = std::min(acked, std::min(ssthresh_, kUnlimited) - std::min(cwnd_, kUnlimited));
    cwnd_ += step;
    return acked - step;
}

void Congestion::hystart(Usec rtt, std::uint32_t una, std::uint32_t nxt, Usec srtt, Time now) noexcept {
    // Right after a recovery the queue is not the one of slow start.
    if (cubic_.epoch != kNoTime && now - cubic_.epoch < kSecond) return;
    rtt = std::max(rtt, Usec(1));
    if (cubic_.delay_min == Usec(0) || rtt < cubic_.delay_min) cubic_.delay_min = rtt;
    HyStart& h = hystart_;
    if (h.found || !in_slow_start()) return;
    if (h.began == kNoTime || seq_before(h.end, una)) {
        h.began = h.last_ack = now;
        h.end = nxt;
        h.least = Usec::max();
        h.samples = 0;
    }
    if (cwnd_ < kHyStartLow * mss_) return;
    if (now - h.last_ack <= kAckTrain) {
        h.last_ack = now;
        // The train of a window as long as half the round trip fills the path.
        const std::uint64_t rate = srtt == Usec(0) ? 0 : std::uint64_t{cwnd_} * 2 * 1'000'000 / srtt.count();
        const Usec late(rate == 0 ? 0
                                  : static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                        kMostLate.count(), kFourSuperFrames * 1'000'000 / rate)));
        if (now - h.began > (cubic_.delay_min + late) / 2) h.found = true;
    }
    h.least = std::min(h.least, rtt);
    if (h.samples < kHyStartSamples)
        h.samples++;
    else if (h.least > cubic_.delay_min + std::clamp(cubic_.delay_min / 8, kMinDelay, kMaxDelay))
        h.found = true;
    if (h.found) ssthresh_ = cwnd_;
}

void Congestion::avoid_reno(std::uint32_t acked) noexcept {
    counted_ += std::min(acked, kUnlimited);
    while (counted_ >= cwnd_) {
        counted_ -= cwnd_;
        cwnd_ = std::min(cwnd_ + mss_, kUnlimited);
    }
}

void Congestion::avoid_cubic(std::uint32_t acked, Time now) noexcept {
    Cubic& c = cubic_;
    const double mss = mss_, window = cwnd_ / mss, segments = acked / mss;
    if (c.epoch == kNoTime) {
        c.epoch = now;
        c.reno = window;
        c.origin = std::max(c.w_max, window);
        c.k = c.w_max > window ? std::cbrt((c.w_max - window) / kC) : 0;
    }
    const double t = std::chrono::duration<double>(now - c.epoch + Nsec(c.delay_min)).count() - c.k;
    const double target = c.origin + kC * t * t * t;
    // Segments that must arrive for one more of window.
    double count = target > window ? window / (target - window) : 100 * window;
    if (c.w_max == 0) count = std::min(count, kSlowest);
    c.reno += segments / (kRenoBytes * window);
    if (c.reno > window) count = std::min(count, window / (c.reno - window));
    grow(acked / std::max(count, 2.0));
}

std::uint32_t Congestion::current_threshold() const noexcept {
    return std::max(ssthresh_, cwnd_ / 2 + cwnd_ / 4);
}

std::uint32_t Congestion::begin_reduction() noexcept {
    untouched_ = false;
    prior_window_ = cwnd_;
    prior_threshold_ = current_threshold();
    std::uint64_t kept = cwnd_ / 2;
    if (algorithm_ == CongestionAlgorithm::cubic) {
        kept = std::uint64_t{cwnd_} * kBeta / kBetaScale;
        const double window = static_cast<double>(cwnd_) / mss_;
        // Section 4.7, fast convergence: lower than last time means somebody else needs room.
        cubic_.w_max = window < cubic_.w_max ? window * (kBetaScale + kBeta) / (2 * kBetaScale) : window;
        cubic_.epoch = kNoTime;
    }
    kept -= kept % mss_;
    ssthresh_ = std::max(static_cast<std::uint32_t>(kept), 2 * mss_);
    counted_ = 0;
    fraction_ = 0;
    return ssthresh_;
}

void Congestion::on_rto(std::uint32_t pipe, bool reduce) noexcept {
    if (reduce) begin_reduction();
    untouched_ = false;
    cwnd_ = std::min(pipe, kUnlimited) + mss_;
    counted_ = 0;
    fraction_ = 0;
    cubic_ = {};
    hystart_ = {};
}

bool Congestion::on_spurious() noexcept {
    if (prior_window_ == 0) return false;
    cwnd_ = std::max(cwnd_, prior_window_);
    ssthresh_ = std::max(ssthresh_, prior_threshold_);
    prior_window_ = 0;
    return true;
}

void Congestion::after_idle(Nsec idle, Usec rto, bool slow_start) noexcept {
    if (algorithm_ == CongestionAlgorithm::none) return;
    // Section 5.8: the curve must not run on while nobody follows it.
    if (cubic_.epoch != kNoTime) cubic_.epoch += idle;
    if (!slow_start || rto == Usec::zero() || idle <= rto) return;
    const std::uint32_t restart = std::min(initial_window(), cwnd_);
    // What the window was remains known as a threshold, so slow start returns to it quickly.
    ssthresh_ = current_threshold();
    const std::uint64_t halvings = std::min<std::uint64_t>((idle - Nsec(1)) / rto, 31);
    cwnd_ = std::max(cwnd_ >> halvings, restart);
}

void Congestion::not_filled(std::uint32_t bytes) noexcept {
    if (bytes >= cwnd_) return;
    ssthresh_ = current_threshold();
    cwnd_ = bytes;
}

}  // namespace vma::tcp
