// SPDX-License-Identifier: BSD-2-Clause
// The round trip time and the retransmission timeout: RFC 6298 in microseconds, with the kernel's limits.
//
// Where the RFC says "at least one second" the kernel has 200 ms, and adds them to the smoothed round trip
// instead of cutting the sum off: a peer that delays its ACKs does so by up to 200 ms whatever the distance
// is. TCP_INFO shows these values, so a program sees what it would see there.
#pragma once

#include <cstdint>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// The smallest value of a sliding window of time, with three candidates instead of all samples (as in BBR and
// the kernel's win_minmax: the best of the whole window, of what came after it, and of what came after that).
class WindowedMin {
  public:
    explicit constexpr WindowedMin(Nsec window) noexcept : window_(window) {}
    void add(Usec value, Time now) noexcept;
    Usec get() const noexcept { return best_[0].value; }  // Usec::max() before the first sample

  private:
    struct Sample {
        Usec value = Usec::max();
        Time at;
    };
    Nsec window_;
    Sample best_[3];
};

class RttEstimator {
  public:
    static constexpr Usec kInitialRto{1'000'000};  // RFC 6298 section 2.1
    static constexpr Usec kMinRto{200'000};        // the kernel's TCP_RTO_MIN
    static constexpr Usec kMaxRto{120'000'000};    // the kernel's TCP_RTO_MAX
    // RFC 6298 section 5.7: for data, when the SYN had to be repeated and nothing was measured.
    static constexpr Usec kFallbackRto{3'000'000};
    static constexpr Usec kShortPath{500};
    static constexpr Nsec kMinRttWindow = 300 * kSecond;  // the kernel's tcp_min_rtt_wlen

    // A round trip was measured: on a segment sent once (Karn), or by timestamp. Ends the backoff. 0 counts
    // as 1.
    void sample(Usec rtt, Time now) noexcept;

    // The retransmission timer expired: the next timeout is twice as long, up to the maximum.
    void backoff() noexcept;
    // How often backoff() was called since the last sample; tcpi_backoff.
    unsigned backoffs() const noexcept { return backoffs_; }

    // The handshake is done but its SYN or SYN-ACK was repeated, so there is no sample: see kFallbackRto.
    void handshake_without_sample() noexcept;

    Usec rto() const noexcept;                                    // with backoff; tcpi_rto
    Usec srtt() const noexcept { return Usec(srtt8_ >> 3); }      // 0 before the first sample; tcpi_rtt
    Usec rttvar() const noexcept { return Usec(rttvar4_ >> 2); }  // tcpi_rttvar
    Usec latest() const noexcept { return latest_; }              // the last sample, 0 before
    // The smallest sample of the last five minutes, Usec::max() before the first; tcpi_min_rtt.
    Usec min_rtt() const noexcept { return min_.get(); }
    bool measured() const noexcept { return measured_; }
    // So short a path is filled by less than the caches hold: larger queues only leave them.
    bool short_path() const noexcept { return min_.get() <= kShortPath; }

  private:
    // Eight and four times the value in microseconds, so that the gains 1/8 and 1/4 lose nothing to rounding.
    // A sample is cut off at the longest timeout, so both fit.
    std::uint32_t srtt8_ = 0;
    std::uint32_t rttvar4_ = 0;
    Usec base_rto_ = kInitialRto;
    Usec latest_{};
    std::uint8_t backoffs_ = 0;
    bool measured_ = false;
    WindowedMin min_{kMinRttWindow};
};

}  // namespace vma::tcp
