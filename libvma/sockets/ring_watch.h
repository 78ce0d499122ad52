// SPDX-License-Identifier: BSD-2-Clause
// Which of the threads that sleep for a ring's frames watches the ring's channel: one, its leader.
//
// The channel is ready for every frame, and would wake each thread that watches it, though the frame is for
// one of them at most. The leader takes what has come, and whose socket gets something is woken by its
// Waiter. A leader that leaves its sleep for good appoints another one: sets its flag, and wakes it. So as
// long as somebody sleeps, somebody watches, or is about to.
#pragma once

#include <poll.h>

#include <atomic>

#include "libvma/ring/ring.h"
#include "libvma/sockets/waiter.h"

namespace vma::sockets {

// One sleep of the calling thread, of one ppoll() or several. No handler of the program runs while it lives,
// and the thread leaves it by return or by cancellation.
class RingWatch {
  public:
    static constexpr unsigned kMost = 16;  // rings of a socket

    // `waiter`: on all sockets the thread sleeps for, so that it is woken whoever takes their frames. Null:
    // the thread watches all channels itself. Of `rings` none may be twice.
    RingWatch(Waiter* waiter, ring::Ring* const* rings, unsigned count) noexcept;
    ~RingWatch();
    RingWatch(const RingWatch&) = delete;
    RingWatch& operator=(const RingWatch&) = delete;

    // Before each ppoll(): arms the rings it is to watch and puts their channels into `out`, which has room
    // for all. How many. The caller then looks at its sockets for the last time.
    unsigned arm(pollfd* out) noexcept;
    // After ppoll() found something: Ring::woken() of those rings. How many frames they had.
    unsigned woken() noexcept;
    // Was it nothing but frames of other threads' sockets, or an appointment? Then the thread sleeps on, as
    // leader perhaps. A thread that is alone on its rings goes back and polls, as it may be asked to.
    // `event`: what ppoll() said of the waiter.
    bool sleeps_on(short event) noexcept;
    // The same for a thread that does not know what has woken it: takes what the waiter was told.
    enum class Told { nothing, appointed, signalled };
    Told told() noexcept;

    // In a forked child: no thread sleeps.
    static void reset_in_child() noexcept;

  private:
    struct Place;  // what is known of a ring
    struct Sleeper {
        Waiter* waiter = nullptr;
        Sleeper* next = nullptr;
        Sleeper* before = nullptr;
        std::atomic<bool> leads{false};
    };
    static constexpr unsigned kPlaces = 64;  // of rings beyond, every thread watches the channel
    static Place g_places[kPlaces];
    static Place* place_of(ring::Ring* ring) noexcept;
    void enter(unsigned i) noexcept;
    void leave(unsigned i) noexcept;

    Waiter* waiter_;
    unsigned count_;
    ring::Ring* rings_[kMost];
    Place* places_[kMost];
    Sleeper sleepers_[kMost];
};

}  // namespace vma::sockets
