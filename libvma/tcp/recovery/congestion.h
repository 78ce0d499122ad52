// SPDX-License-Identifier: BSD-2-Clause
// How much may be in flight: congestion control as a value, without clock, heap or knowledge of segments.
//
// One type holds all algorithms, because a program changes the algorithm of a live connection
// (TCP_CONGESTION) and because a switch over an enum costs less per ACK than a virtual call. Loss recovery is
// not here: the scoreboard (scoreboard.h) tells how much is on its way (pipe), RACK (rack.h) what is lost,
// and PRR (prr.h) what the window is while it shrinks. A connection sends while pipe is below cwnd. So the
// window never has to be inflated by duplicate ACKs and deflated by partial ones, as RFC 6582 describes it.
//
// The rules are those of the kernel (tcp_cubic.c, tcp_cong.c): what slow start and CUBIC add, when HyStart
// ends slow start, what a loss and a pause leave. Windows are in bytes there where the kernel has segments.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

enum class CongestionAlgorithm : std::uint8_t {
    newreno,  // RFC 5681 with byte counting (RFC 3465)
    cubic,    // RFC 9438, slow start left by HyStart
    none,     // no congestion window: the peer's window alone limits, for networks that do not lose
};

// The algorithm a program names by TCP_CONGESTION: the kernel's "reno" and "cubic", and "none". Other names,
// for which the kernel may have a module, give nothing.
std::optional<CongestionAlgorithm> congestion_algorithm(std::string_view name) noexcept;
// The name for TCP_CONGESTION, less than TCP_CA_NAME_MAX characters.
const char* congestion_name(CongestionAlgorithm algorithm) noexcept;

class Congestion {
  public:
    // What "none" has as its window: the largest that RFC 7323 lets a peer offer.
    static constexpr std::uint32_t kUnlimited = 1u << 30;
    // ssthresh before the first loss; what the kernel shows then as tcpi_snd_ssthresh (there in segments).
    static constexpr std::uint32_t kNoThreshold = 0x7fffffff;
    static constexpr std::uint32_t kInitialSegments = 10;  // RFC 6928, and the kernel's TCP_INIT_CWND

    // Starts a connection. `mss`: bytes of data in a full segment. `initial_window` in bytes; 0 means ten
    // segments.
    void init(CongestionAlgorithm algorithm, std::uint32_t mss, std::uint32_t initial_window = 0) noexcept;

    // The segment size changed. Before the first ACK the initial window is that many segments of the new
    // size; later a smaller size shrinks the window in proportion, so that it does not become a burst of many
    // small segments (RFC 5681 section 3.1), and a larger one leaves it.
    void set_mss(std::uint32_t mss) noexcept;

    // Another algorithm for a live connection. Window and threshold stay, what the old one had learnt goes.
    void change(CongestionAlgorithm algorithm) noexcept;

    CongestionAlgorithm algorithm() const noexcept { return algorithm_; }
    const char* name() const noexcept { return congestion_name(algorithm_); }
    std::uint32_t cwnd() const noexcept {
        return algorithm_ == CongestionAlgorithm::none ? kUnlimited : cwnd_;
    }
    std::uint32_t ssthresh() const noexcept { return ssthresh_; }
    bool in_slow_start() const noexcept { return cwnd_ < ssthresh_; }
    std::uint32_t initial_window() const noexcept {
        return initial_ != 0 ? initial_ : kInitialSegments * mss_;
    }

    // A round trip was measured (RTT of one segment, not smoothed), by an ACK of what was sent once. Before
    // on_ack() of the same ACK. `una`, `nxt`: SND.UNA after the ACK, SND.NXT; `srtt`: smoothed round trip.
    // For HyStart: an ACK train, or a delay that rises, ends slow start before loss does.
    void on_rtt_sample(Usec rtt, std::uint32_t una, std::uint32_t nxt, Usec srtt, Time now) noexcept {
        if (algorithm_ == CongestionAlgorithm::cubic) hystart(rtt, una, nxt, srtt, now);
    }

    // An ACK advanced SND.UNA, and no reduction is under way: the window may grow. `acked`: bytes that have
    // arrived, as the ACK says. `limited`: the window is what holds the sender back.
    void on_ack(std::uint32_t acked, bool limited, Time now) noexcept;

    // The window is to shrink, for a loss or a mark of congestion. Returns the new threshold; PRR leads there
    // by set_window().
    std::uint32_t begin_reduction() noexcept;
    void set_window(std::uint32_t bytes) noexcept { cwnd_ = std::min(std::max(bytes, mss_), kUnlimited); }
    // The reduction is over: the window is the threshold.
    void end_reduction() noexcept { cwnd_ = std::min(ssthresh_, kUnlimited); }

    // The retransmission timer expired: a segment more than what is on its way, and slow start to the new
    // threshold (RFC 5681 section 3.1). `pipe`: bytes on their way. `reduce`: not reduced for these losses
    // yet.
    void on_rto(std::uint32_t pipe, bool reduce) noexcept;

    // The last reduction was not caused by loss (Eifel, D-SACK, F-RTO): back to the window before.
    // False: there is nothing to undo.
    bool on_spurious() noexcept;
    // From here on there is nothing to undo.
    void keep_reduction() noexcept { prior_window_ = 0; }

    // To be called before sending when nothing was in flight for `idle`. The window decays by half for each
    // retransmission timeout, down to the restart window (RFC 5681 section 4.1, RFC 2861 as the kernel has
    // it); not so without `slow_start` (net.ipv4.tcp_slow_start_after_idle).
    void after_idle(Nsec idle, Usec rto, bool slow_start) noexcept;
    // The program has not filled the window for long: it is `bytes` from now on.
    void not_filled(std::uint32_t bytes) noexcept;

  private:
    // Windows in segments.
    struct Cubic {
        double w_max = 0;   // where the window was at the last reduction; 0: there was none
        double origin = 0;  // where the curve is flat
        double k = 0;       // seconds until then
        double reno = 0;    // what Reno would have by now
        Usec delay_min{};   // the shortest round trip; 0: none
        Time epoch;         // when the curve began; kNoTime: with the next ACK in congestion avoidance
    };
    // A round ends when what was outstanding at its beginning is acknowledged.
    struct HyStart {
        std::uint32_t end = 0;  // of the round
        Time began, last_ack;
        Usec least = Usec::max();  // round trip in this round
        std::uint8_t samples = 0;
        bool found = false;  // slow start has ended by it
    };

    void hystart(Usec rtt, std::uint32_t una, std::uint32_t nxt, Usec srtt, Time now) noexcept;
    std::uint32_t slow_start(std::uint32_t acked) noexcept;
    void avoid_reno(std::uint32_t acked) noexcept;
    void avoid_cubic(std::uint32_t acked, Time now) noexcept;
    void grow(double bytes) noexcept;
    std::uint32_t current_threshold() const noexcept;

    CongestionAlgorithm algorithm_ = CongestionAlgorithm::newreno;
    bool untouched_ = true;      // no ACK, no loss yet
    std::uint32_t mss_ = 536;    // what a host must assume (RFC 9293 section 3.7.1)
    std::uint32_t initial_ = 0;  // as given to init(); 0: ten segments
    std::uint32_t cwnd_ = 10 * 536;
    std::uint32_t ssthresh_ = kNoThreshold;
    std::uint32_t counted_ = 0;  // bytes acknowledged towards the next segment of window
    double fraction_ = 0;        // of a byte of window
    Cubic cubic_;
    HyStart hystart_;
    std::uint32_t prior_window_ = 0, prior_threshold_ = 0;  // of the last reduction; 0: nothing to undo
};

}  // namespace vma::tcp
