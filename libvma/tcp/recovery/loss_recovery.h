// SPDX-License-Identifier: BSD-2-Clause
// Loss: what an ACK says about it, what is sent again, how much may be in flight, and how long the way takes.
//
// before_ack() runs in front of lwIP, which then frees what the ACK covers. It keeps the scoreboard
// (scoreboard.h), measures round trips, lets RACK (rack.h) find what is lost, moves the congestion window,
// and begins and ends recoveries, in the order of the kernel's tcp_ack(). Sender::output() sends what the
// scoreboard says is lost, as far as the window allows, before new data. Without SACK the same works from
// duplicate ACKs (NewReno).
//
// The arithmetic stands in parts that take values and return decisions: rack.h, prr.h, tail_probe.h,
// cwnd_usage.h, congestion.h, rtt.h. Here is what asks them, and when.
//
// Under the connection's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/recovery/congestion.h"
#include "libvma/tcp/recovery/cwnd_usage.h"
#include "libvma/tcp/recovery/prr.h"
#include "libvma/tcp/recovery/rack.h"
#include "libvma/tcp/recovery/rtt.h"
#include "libvma/tcp/recovery/tail_probe.h"

namespace vma::tcp {

struct AckOutcome;
struct SackBlock;
struct SackOutcome;
struct SegmentBoard;
struct Tcb;

// What an acceptable segment says about data sent.
struct AckInfo {
    std::uint32_t ack = 0, window = 0;
    bool data = false;
    bool ecn_echo = false;  // the network has marked what is under way
    const SackBlock* blocks = nullptr;
    unsigned block_count = 0;
    std::uint32_t echo = 0;  // time stamp that came back, 0: none
};

class LossRecovery {
  public:
    explicit LossRecovery(Tcb& tcb);  // std::bad_alloc
    ~LossRecovery();

    // The handshake is done: what was negotiated is known.
    void start() noexcept;
    // All segments go at once.
    void reset() noexcept;
    void before_ack(const AckInfo& info) noexcept;
    // Sends again what is lost, as far as the window allows.
    void retransmit_lost() noexcept;
    // May `length` bytes of new data leave?
    inline bool room_for(std::uint32_t length) const noexcept;
    // Bytes that the congestion window still takes.
    inline std::uint32_t room() const noexcept;
    // Has the peer said of nothing that it came after something missing?
    inline bool nothing_missing() const noexcept;
    void schedule_tail_probe(Time now) noexcept;
    void tail_loss_probe(Time now) noexcept;
    // What was sent before something that has arrived has had time enough to be overtaken only.
    void reordering_timeout(Time now) noexcept;
    // The network says that it is congested, by an ICMP message or a mark (ECN): the window shrinks as for a
    // loss, once for a window of data. False: it does so already.
    inline bool congestion_signalled() noexcept;
    // The program writes after a pause in which nothing was under way.
    void restart_after_idle(Time now) noexcept;
    // A segment that ends at `end` has been sent for the first time; or again.
    void sent(std::uint32_t end, std::uint32_t bytes, Time now) noexcept {
        prr_.sent(bytes);
        if (rtt_start_ == kNoTime && bytes != 0) {
            rtt_start_ = now;
            rtt_seq_ = end;
        }
    }
    void sent_again(std::uint32_t end, std::uint32_t bytes, Time now) noexcept;
    // A segment under way was cut.
    void split_sent(lwip::Segment* first, lwip::Segment* second) noexcept;
    // Everything under way is lost; the same after a timeout.
    void all_lost() noexcept;
    void on_timeout(Time now) noexcept;
    // Segments have another size, or the program wants another algorithm.
    void set_mss(std::uint32_t mss) noexcept;
    void set_algorithm(CongestionAlgorithm algorithm) noexcept { congestion_.change(algorithm); }
    // Segments have left, or the congestion window has kept them back (`limited`).
    inline void validate_window(bool limited, Time now) noexcept;

    // ---- timeouts in a row ----
    // The retransmission timer has fired; `since`: when the first try was. Counted unless the peer's window
    // is closed.
    void timed_out(Time since, bool counted) noexcept {
        if (retries_ == 0 && (counted || first_retry_ == kNoTime)) first_retry_ = since;
        if (counted) retries_++;
    }
    // A closed window is asked for the first time.
    void probing_since(Time now) noexcept { first_retry_ = now; }
    // The peer has acknowledged something new.
    void answered() noexcept {
        retries_ = 0;
        first_retry_ = kNoTime;
    }
    void stop_timing() noexcept { rtt_start_ = kNoTime; }
    std::uint32_t retries() const noexcept { return retries_; }
    Time first_retry() const noexcept { return first_retry_; }

    Nsec rto() const noexcept { return rtt_.rto(); }
    // How long the retransmission timer waits after an ACK. Less than usual when the peer does not
    // acknowledge what it had reported: it may have thrown that away, or the next ACK is on its way (the
    // kernel's rule).
    inline Nsec wait_after_ack() const noexcept;
    RttEstimator& rtt() noexcept { return rtt_; }
    const RttEstimator& rtt() const noexcept { return rtt_; }
    const Congestion& congestion() const noexcept { return congestion_; }
    bool recovering() const noexcept;
    bool after_timeout() const noexcept;
    bool reducing() const noexcept { return reducing_; }  // after a signal of congestion, without loss
    const Rack& rack() const noexcept { return rack_; }
    const SegmentBoard& scoreboard() const noexcept { return *scoreboard_; }

  private:
    inline std::uint32_t pipe() const noexcept;  // bytes that are in the network, as far as is known
    inline lwip::Segment* advance(const AckInfo& info, lwip::Segment* head, Time now,
                                  AckOutcome& out) noexcept;
    void judge(const AckInfo& info, lwip::Segment* head, const AckOutcome& acked, bool duplicate,
               Time now) noexcept;
    SackOutcome take_reports(const AckInfo& info, lwip::Segment* head, std::uint32_t una, Time now) noexcept;
    bool try_undo(const AckInfo& info, lwip::Segment* head, const AckOutcome& acked,
                  const SackOutcome& reported) noexcept;
    void try_new_data(const AckInfo& info, bool advances, bool news) noexcept;
    bool find_lost(lwip::Segment* head, Time now) noexcept;
    void enter_recovery(std::uint32_t una) noexcept;
    inline void begin_reduction() noexcept;

    Tcb& tcb_;
    Congestion congestion_;
    RttEstimator rtt_;
    Rack rack_;
    Prr prr_;
    TailProbe probe_;
    CwndUsage usage_;
    std::unique_ptr<SegmentBoard> scoreboard_;
    Time rtt_start_;                  // kNoTime: no segment is being timed
    std::uint32_t rtt_seq_ = 0;       // the one that is ends here
    std::uint32_t reduced_upto_ = 0;  // a reduction without loss ends there
    std::uint32_t first_again_ = 0;   // our time stamp at the first retransmission of a recovery
    bool stamped_ = false;            // it is known
    bool reducing_ = false;
    bool reneged_ = false;        // the last ACK ended before data that the peer had reported
    bool forward_ = false;        // F-RTO goes on
    bool new_first_ = false;      // until the next ACK new data leaves, and what is lost waits (F-RTO)
    std::uint32_t lost_now_ = 0;  // bytes that this ACK showed to be lost
    std::uint32_t retries_ = 0;   // timeouts in a row
    Time first_retry_;
};

}  // namespace vma::tcp
