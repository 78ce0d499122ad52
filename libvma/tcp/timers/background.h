// SPDX-License-Identifier: BSD-2-Clause
// What makes connections progress while the program does nothing: the timers, and polling for rings that
// nobody polls.
//
// One timer wheel for the process, driven by the internal thread through a timerfd that is set for the next
// deadline. While there are connections, the internal thread also looks every VMA_PROGRESS_ENGINE_INTERVAL
// milliseconds which rings were not polled since the last look, and polls those: data is acknowledged
// although the program computes. After a while without a frame it leaves the ring's event channel to wake it,
// so an idle process sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/timers/timer_wheel.h"

namespace vma::tcp {

class Connection;

// A connection's place in the engine's lists. Under the engine's lock.
struct EngineLinks {
    Connection* tw_next = nullptr;  // in TIME_WAIT
    Connection* tw_prev = nullptr;
    Connection* orphan_next = nullptr;
    Connection* orphan_prev = nullptr;
    bool tw_listed = false, orphan_listed = false;
};

class Background {
  public:
    static Background& instance() noexcept;

    TimerWheel& wheel() noexcept { return wheel_; }

    // A connection begins, or stops, to use a ring. May be called with the ring's rx_lock and a connection's
    // lock held.
    void started(ring::Ring& ring) noexcept;
    void stopped(ring::Ring& ring) noexcept;

    // Connections in TIME_WAIT are bounded (kMaxTimeWait): the oldest ends early, as with the kernel's
    // tcp_max_tw_buckets.
    static constexpr std::size_t kMaxTimeWait = 16384;
    void time_wait_entered(Connection& connection) noexcept;
    void time_wait_left(Connection& connection) noexcept;

    // Connections that the program has closed and that have not said all yet (TIME_WAIT does not count).
    // Called with the connection's lock held.
    void orphaned(Connection& connection) noexcept;
    void orphan_left(Connection& connection) noexcept;
    std::size_t orphans() const noexcept { return orphan_count_.load(std::memory_order_relaxed); }
    // Takes one off the list, with a reference for the caller; null: none is left, or this is a signal
    // handler inside here.
    Connection* take_orphan() noexcept;

    // Without the internal thread (tests): nobody else drives the timers.
    void drive_by_hand() noexcept { by_hand_.store(true); }

  private:
    Background() = default;
    static void wake(void* self) noexcept;
    void set_timer() noexcept;
    void timer_readable() noexcept;
    bool tick() noexcept;
    void unlist_orphan(Connection& connection) noexcept;  // with lock_ held

    struct Used {
        ring::Ring* ring;
        std::uint32_t connections = 0;
        std::uint32_t polls_seen = 0;
        bool watched = false;  // its channel wakes the internal thread
    };

    TimerWheel wheel_{&Background::wake, this};
    std::atomic<bool> by_hand_{false};
    Lock lock_;        // a leaf: nothing is called with it held
    Lock timer_lock_;  // of the timer descriptor; before the wheel's
    std::vector<Used> rings_;
    bool ticking_ = false;
    InternalFd timer_fd_;
    std::atomic<int> timer_state_{0};  // 0: no timerfd yet, 1: being made, 2: there
    Connection* tw_first_ = nullptr;   // oldest
    Connection* tw_last_ = nullptr;
    std::size_t tw_count_ = 0;
    Connection* orphans_ = nullptr;
    std::atomic<std::size_t> orphan_count_{0};
};

}  // namespace vma::tcp
