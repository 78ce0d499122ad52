// SPDX-License-Identifier: BSD-2-Clause
// How much may be in flight: congestion control as a value, without clock, heap or knowledge of segments.
//
// One type holds all algorithms, because a program changes the algorithm of a live connection
// (TCP_CONGESTION) and because a switch over an enum costs less per ACK than a virtual call. Loss recovery is
// not here: the scoreboard (scoreboard.h) tells what is lost and how much is on its way (pipe); a connection
// sends while pipe is below cwnd. So the window itself never has to be inflated by duplicate ACKs and
// deflated by partial ones, as RFC 6582 describes it for senders that compare cwnd with everything
// unacknowledged: it is ssthresh from the first moment of a recovery to its end, with and without SACK.
//
// Windows are in bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

enum class CongestionAlgorithm : std::uint8_t {
    newreno,  // RFC 5681 with byte counting (RFC 3465)
    cubic,    // RFC 9438, slow start left by HyStart++ (RFC 9406)
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
    bool in_recovery() const noexcept { return phase_ == Phase::recovery; }

    // A round trip was measured (RTT of one segment, not smoothed). Before on_ack() of the same ACK. Only
    // HyStart++ needs it; without samples slow start ends by loss.
    void on_rtt_sample(Usec rtt) noexcept;

    // An ACK advanced SND.UNA. `acked`: by how many bytes. `flight`: bytes outstanding (SND.NXT - SND.UNA)
    // before it. `app_limited`: the window was not what held the sender back. `srtt`: smoothed round trip,
    // 0 when unknown. During a fast recovery the window does not grow.
    void on_ack(std::uint32_t acked, std::uint32_t flight, bool app_limited, Usec srtt, Time now) noexcept;

    // Loss was found by SACK or duplicate ACKs: fast recovery begins and the window shrinks. `flight` as in
    // on_ack(). Does nothing in a recovery or after a timeout until on_recovery_exit(), so a window of data
    // costs one reduction.
    void on_loss_event(std::uint32_t flight, Time now) noexcept;

    // Everything that was outstanding when the recovery began, or the timer expired, is acknowledged.
    void on_recovery_exit() noexcept;

    // The retransmission timer expired: one segment, and slow start to the new threshold (RFC 5681 section
    // 3.1). `first_time`: false when it expires again for the same segment, which must not halve the
    // threshold again.
    void on_rto(std::uint32_t flight, bool first_time, Time now) noexcept;

    // The last recovery or timeout was not caused by loss (Eifel, D-SACK, F-RTO): back to the state before.
    // Does nothing when there is nothing to undo.
    void on_spurious() noexcept;

    // To be called before sending when nothing was in flight for `idle`: the window decays by half for
    // each retransmission timeout, down to the restart window (RFC 5681 section 4.1, RFC 2861 as the kernel
    // has it).
    void after_idle(Nsec idle, Usec rto) noexcept;

  private:
    enum class Phase : std::uint8_t { open, recovery, timeout };

    // RFC 9438's variables; windows in segments.
    struct Cubic {
        double w_max = 0;       // where the window was at the last reduction
        double w_est = 0;       // what Reno would have by now
        double cwnd_prior = 0;  // the window before the last reduction
        double k = 0;           // seconds until the curve reaches w_max
        Time epoch_start;       // kNoTime: the epoch begins with the next ACK in congestion avoidance
        Time last_ack;
        bool fresh_curve = true;  // no reduction by loss before this epoch: K is 0 (sections 4.8 and 4.10)
    };
    // RFC 9406's variables. A round ends when what was outstanding at its beginning is acknowledged.
    struct HyStart {
        std::uint32_t round_bytes = 0;  // still to be acknowledged in this round
        Usec last_round_min = Usec::max();
        Usec this_round_min = Usec::max();
        Usec css_baseline = Usec::max();
        std::uint8_t samples = 0;
        std::uint8_t css_rounds = 0;
        bool in_css = false;
    };
    struct Undo {
        bool valid = false;
        std::uint32_t cwnd = 0;
        std::uint32_t ssthresh = 0;
        Cubic cubic;
    };

    void save() noexcept;
    void reduce(std::uint32_t flight) noexcept;
    void slow_start(std::uint32_t acked, std::uint32_t flight) noexcept;
    void hystart_round(std::uint32_t acked, std::uint32_t flight) noexcept;
    void avoid_reno(std::uint32_t acked) noexcept;
    void avoid_cubic(std::uint32_t acked, Usec srtt, Time now) noexcept;
    void grow(double bytes) noexcept;
    std::uint32_t initial_window() const noexcept;
    bool hystart_on() const noexcept {
        return algorithm_ == CongestionAlgorithm::cubic && ssthresh_ == kNoThreshold;
    }

    CongestionAlgorithm algorithm_ = CongestionAlgorithm::newreno;
    Phase phase_ = Phase::open;
    bool untouched_ = true;      // no ACK, no loss yet
    std::uint32_t mss_ = 536;    // what a host must assume (RFC 9293 section 3.7.1)
    std::uint32_t initial_ = 0;  // as given to init(); 0: ten segments
    std::uint32_t cwnd_ = 10 * 536;
    std::uint32_t ssthresh_ = kNoThreshold;
    std::uint32_t counted_ = 0;  // bytes acknowledged towards the next segment of window
    double fraction_ = 0;        // of a byte of window
    Cubic cubic_;
    HyStart hystart_;
    Undo undo_;
};

}  // namespace vma::tcp
