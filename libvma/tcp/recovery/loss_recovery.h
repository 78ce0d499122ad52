// SPDX-License-Identifier: BSD-2-Clause
// Loss: what an ACK says about it, what is sent again, how much may be in flight, and how long the way takes.
//
// before_ack() runs in front of lwIP, which then frees what the ACK covers. It keeps the scoreboard
// (scoreboard.h), measures round trips, moves the congestion window, and begins and ends recoveries;
// Sender::output() sends what the scoreboard says is lost, as far as the window allows, before new data.
// Without SACK the same works from duplicate ACKs (NewReno).
//
// A loss at the end of what there is to send shows in no later ACK. So when nothing was acknowledged for two
// round trips, the last segment is sent again (the tail loss probe of RFC 8985, section 7): its SACK starts
// the recovery long before the retransmission timer, which never waits less than 200 ms.
//
// Under the connection's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/recovery/congestion.h"
#include "libvma/tcp/recovery/rtt.h"

namespace vma::tcp {

struct SackBlock;
struct SegmentBoard;
struct Tcb;

// What an acceptable segment says about data sent.
struct AckInfo {
    std::uint32_t ack = 0, window = 0;
    bool data = false;
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
    void tail_loss_probe() noexcept;
    // The program writes after a pause in which nothing was under way.
    void restart_after_idle(Time now) noexcept;
    // A segment that ends at `end` has been sent for the first time; or again.
    void sent(std::uint32_t end, bool data, Time now) noexcept {
        if (rtt_start_ == kNoTime && data) {
            rtt_start_ = now;
            rtt_seq_ = end;
        }
    }
    void sent_again(std::uint32_t end) noexcept;
    // A segment under way was cut.
    void split_sent(lwip::Segment* first, lwip::Segment* second) noexcept;
    // Everything under way is lost; the same after a timeout.
    void all_lost() noexcept;
    void on_timeout(Time now) noexcept;
    // Segments have another size, or the program wants another algorithm.
    void set_mss(std::uint32_t mss) noexcept;
    void set_algorithm(CongestionAlgorithm algorithm) noexcept;
    void set_app_limited(bool limited) noexcept { app_limited_ = limited; }
    // The congestion window keeps data back: it may grow with the ACKs of what is under way now, though the
    // program leaves it empty in between (the kernel's rule).
    inline void window_is_full() noexcept;

    // ---- timeouts in a row ----
    // The retransmission timer has fired; `since`: when the first try was. Counted unless the peer's window
    // is closed.
    void timed_out(Time since, bool counted) noexcept;
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
    RttEstimator& rtt() noexcept { return rtt_; }
    const RttEstimator& rtt() const noexcept { return rtt_; }
    const Congestion& congestion() const noexcept { return congestion_; }
    bool recovering() const noexcept;
    bool after_timeout() const noexcept;

  private:
    inline std::uint32_t pipe() const noexcept;  // bytes that are in the network, as far as is known
    inline lwip::Segment* advance(const AckInfo& info, lwip::Segment* head, Time now) noexcept;

    Tcb& tcb_;
    Congestion congestion_;
    RttEstimator rtt_;
    Time rtt_start_;             // kNoTime: no segment is being timed
    std::uint32_t rtt_seq_ = 0;  // the one that is ends here
    bool app_limited_ = false;   // the program has written less than might be sent
    bool tail_probed_ = false;   // since the last ACK
    bool was_full_ = false;      // the congestion window, before full_upto_ was sent
    std::uint32_t full_upto_ = 0;
    std::unique_ptr<SegmentBoard> scoreboard_;
    std::uint32_t retries_ = 0;  // timeouts in a row
    Time first_retry_;
};

}  // namespace vma::tcp
