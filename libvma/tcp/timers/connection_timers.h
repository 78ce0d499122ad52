// SPDX-License-Identifier: BSD-2-Clause
// A connection's deadlines, and the one timer of the wheel that serves them.
//
// The timer is armed for the earliest deadline, and when it fires each deadline that has come is handled. A
// deadline that moves later costs a store. Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/timers/timer_wheel.h"

namespace vma::tcp {

struct Tcb;

// kNoTime: none. Whoever knows of a reason sets one; arm() sees to it afterwards.
struct Deadlines {
    Time rto_at;      // retransmission
    Time tail_at;     // tail loss probe
    Time reorder_at;  // what was overtaken is lost
    Time ack_at;      // delayed ACK
    Time probe_at;    // of a closed window
    Time keepalive_at;
    Time end_at;   // TIME_WAIT, or FIN_WAIT_2 of a closed socket, is over
    Time path_at;  // another look for a way, or at a device queue that was full
    Time cork_at;  // what is corked goes nevertheless
};

class ConnectionTimers : public Deadlines {
  public:
    explicit ConnectionTimers(Tcb& tcb) noexcept : tcb_(tcb), timer_(*this) {}

    // Arms the wheel's timer for the earliest deadline. Called before the lock is given back.
    void arm() noexcept;
    // No callback runs when it has returned, and none will.
    void cancel() noexcept;

    void enter_time_wait() noexcept;
    void time_wait_again() noexcept;  // it begins anew
    void start_fin_wait2() noexcept;
    // The peer has answered a probe; has acknowledged data; the window is open.
    void probe_answered() noexcept { unanswered_probes_ = 0; }
    void probing_over() noexcept { probes_ = 0; }
    unsigned probes() const noexcept { return probes_; }
    unsigned unanswered_probes() const noexcept { return unanswered_probes_; }
    // The program has set SO_KEEPALIVE or TCP_KEEPIDLE.
    void keepalive_changed() noexcept;

  private:
    struct WheelTimer : Timer {
        explicit WheelTimer(ConnectionTimers& t) noexcept : Timer(&ConnectionTimers::fired), timers(t) {}
        ConnectionTimers& timers;
    };

    static void fired(Timer& timer) noexcept;
    void run(Time now) noexcept;
    void retransmission_timeout(Time now) noexcept;
    void probe(Time now) noexcept;
    Nsec probe_interval() const noexcept;
    void keep_alive(Time now) noexcept;
    bool retried_too_long(Time now) const noexcept;
    // Are retransmissions in vain for as long as `retries` of them take at least?
    bool retried_for(unsigned retries, Time now) const noexcept;

    Tcb& tcb_;
    Time armed_for_;
    unsigned probes_ = 0, keepalives_ = 0;    // in a row
    unsigned unanswered_probes_ = 0;          // of a closed window
    std::chrono::seconds timed_keep_idle_{};  // what keepalive_at was computed with
    WheelTimer timer_;
};

}  // namespace vma::tcp
