// SPDX-License-Identifier: BSD-2-Clause
// The round trip time and the retransmission timeout: RFC 6298 in microseconds, with the kernel's limits.
//
// Where the RFC says "at least one second" the kernel has 200 ms, and adds them to the smoothed round trip
// instead of cutting the sum off: a peer that delays its ACKs does so by up to 200 ms whatever the distance
// is. TCP_INFO shows these values, so a program sees what it would see there.
#pragma once

#include <cstdint>

namespace vma::tcp {

// The smallest value of a sliding window of time, with three candidates instead of all samples (as in BBR and
// the kernel's win_minmax: the best of the whole window, of what came after it, and of what came after that).
class WindowedMin {
  public:
    explicit constexpr WindowedMin(std::uint64_t window_ns) noexcept : window_ns_(window_ns) {}
    void add(std::uint32_t value, std::uint64_t now_ns) noexcept;
    std::uint32_t get() const noexcept { return best_[0].value; }  // UINT32_MAX before the first sample

  private:
    struct Sample {
        std::uint32_t value = UINT32_MAX;
        std::uint64_t at_ns = 0;
    };
    std::uint64_t window_ns_;
    Sample best_[3];
};

class RttEstimator {
  public:
    static constexpr std::uint32_t kInitialRtoUs = 1'000'000;  // RFC 6298 section 2.1
    static constexpr std::uint32_t kMinRtoUs = 200'000;        // the kernel's TCP_RTO_MIN
    static constexpr std::uint32_t kMaxRtoUs = 120'000'000;    // the kernel's TCP_RTO_MAX
    // RFC 6298 section 5.7: for data, when the SYN had to be repeated and nothing was measured.
    static constexpr std::uint32_t kFallbackRtoUs = 3'000'000;
    static constexpr std::uint64_t kMinRttWindowNs = 300'000'000'000;  // the kernel's tcp_min_rtt_wlen

    // A round trip was measured: on a segment sent once (Karn), or by timestamp. Ends the backoff. 0 counts
    // as 1.
    void sample(std::uint32_t rtt_us, std::uint64_t now_ns) noexcept;

    // The retransmission timer expired: the next timeout is twice as long, up to the maximum.
    void backoff() noexcept;
    // The timeout was spurious, or the peer answers again: the timeout that the measurements give.
    void end_backoff() noexcept { backoffs_ = 0; }
    // How often backoff() was called since the last sample; tcpi_backoff.
    unsigned backoffs() const noexcept { return backoffs_; }

    // The handshake is done but its SYN or SYN-ACK was repeated, so there is no sample: see kFallbackRtoUs.
    void handshake_without_sample() noexcept;

    std::uint32_t rto_us() const noexcept;                              // with backoff; tcpi_rto
    std::uint32_t srtt_us() const noexcept { return srtt8_ >> 3; }      // 0 before the first sample; tcpi_rtt
    std::uint32_t rttvar_us() const noexcept { return rttvar4_ >> 2; }  // tcpi_rttvar
    std::uint32_t latest_us() const noexcept { return latest_us_; }     // the last sample, 0 before
    // The smallest sample of the last five minutes, UINT32_MAX before the first; tcpi_min_rtt.
    std::uint32_t min_rtt_us() const noexcept { return min_.get(); }
    bool measured() const noexcept { return measured_; }

  private:
    // Eight and four times the value, so that the gains 1/8 and 1/4 lose nothing to rounding. A sample is cut
    // off at the longest timeout, so both fit.
    std::uint32_t srtt8_ = 0;
    std::uint32_t rttvar4_ = 0;
    std::uint32_t base_rto_us_ = kInitialRtoUs;
    std::uint32_t latest_us_ = 0;
    std::uint8_t backoffs_ = 0;
    bool measured_ = false;
    WindowedMin min_{kMinRttWindowNs};
};

}  // namespace vma::tcp
