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

// Nanoseconds of now_ns(), 0: none. Whoever knows of a reason sets one; arm() sees to it afterwards.
struct Deadlines {
    std::uint64_t rto_at = 0;    // retransmission
    std::uint64_t tail_at = 0;   // tail loss probe
    std::uint64_t ack_at = 0;    // delayed ACK
    std::uint64_t probe_at = 0;  // of a closed window
    std::uint64_t keepalive_at = 0;
    std::uint64_t end_at = 0;   // TIME_WAIT, or FIN_WAIT_2 of a closed socket, is over
    std::uint64_t path_at = 0;  // another look for a way, or at a device queue that was full
    std::uint64_t cork_at = 0;  // what is corked goes nevertheless
};

class ConnectionTimers : public Deadlines {
  public:
    explicit ConnectionTimers(Tcb& tcb) noexcept : tcb_(tcb), timer_(*this) {}

    // Arms the wheel's timer for the earliest deadline. Called before the lock is given back.
    void arm() noexcept;
    // No callback runs when it has returned, and none will.
    void cancel() noexcept;

    void enter_time_wait() noexcept;
    void start_fin_wait2() noexcept;
    // The peer has answered a probe; has acknowledged data; the window is open.
    void probe_answered() noexcept { unanswered_probes_ = 0; }
    void probing_over() noexcept { probes_ = 0; }
    unsigned probes() const noexcept { return probes_; }
    // The program has set SO_KEEPALIVE or TCP_KEEPIDLE.
    void keepalive_changed() noexcept;

  private:
    struct WheelTimer : Timer {
        explicit WheelTimer(ConnectionTimers& t) noexcept : Timer(&ConnectionTimers::fired), timers(t) {}
        ConnectionTimers& timers;
    };

    static void fired(Timer& timer) noexcept;
    void run(std::uint64_t now) noexcept;
    void retransmission_timeout(std::uint64_t now) noexcept;
    void probe(std::uint64_t now) noexcept;
    void keep_alive(std::uint64_t now) noexcept;
    bool retried_too_long(std::uint64_t now) const noexcept;

    Tcb& tcb_;
    std::uint64_t armed_for_ = 0;
    unsigned probes_ = 0, keepalives_ = 0;  // in a row
    unsigned unanswered_probes_ = 0;        // of a closed window
    unsigned timed_keep_idle_s_ = 0;        // what keepalive_at was computed with
    WheelTimer timer_;
};

}  // namespace vma::tcp
