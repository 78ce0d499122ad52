// SPDX-License-Identifier: BSD-2-Clause
// How a blocking call on a socket waits: the call polls for VMA_RX_POLL rounds, then sleeps on the channels
// of its rings.
//
// Signals end the wait as they end the kernel's: a handler without SA_RESTART always, one with SA_RESTART
// only where a timeout is set (signal(7)).
#pragma once

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signals.h"
#include "libvma/runtime/spin.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/flow_rules.h"
#include "libvma/sockets/ring_watch.h"
#include "libvma/sockets/verdicts.h"

namespace vma::sockets {

// The deadline of one call, and the signals that have come since it began.
struct Waiting {
    explicit Waiting(clock::Nsec timeout) noexcept  // 0: for ever
        : deadline(timeout == clock::Nsec::zero() ? clock::Time{} : clock::monotonic() + timeout),
          interruptions(runtime::interruptions()),
          restarts(runtime::restarts()) {}

    // The call receives: undecided packets of callbacks end it, too (verdicts.h). Then the next try has the
    // same deadline.
    void judges(bool on = true) noexcept {
        judges_ = on;
        if (const clock::Time kept = Verdicts::take_deadline(); kept != clock::Time{}) deadline = kept;
    }
    bool timed() const noexcept { return deadline != clock::Time{}; }
    bool interrupted() const noexcept {
        return runtime::pending() || (judges_ && Verdicts::due()) ||
               runtime::interruptions() != interruptions || (timed() && runtime::restarts() != restarts);
    }
    // -errno of a call that is interrupted. With a timeout no call is started anew (signal(7)).
    int error() const noexcept {
        if (runtime::pending()) return timed() ? -EINTR : -runtime::kRestart;
        if (!judges_ || !Verdicts::due() || runtime::interruptions() != interruptions) return -EINTR;
        Verdicts::keep_deadline(deadline);
        return -runtime::kAskVerdict;
    }

    enum class Next { poll, sleep, interrupted, late };
    // A round of polling has found nothing: what now? `limit`: rounds before a sleep, negative: no sleep.
    Next next(std::int64_t limit) noexcept {
        if (interrupted()) return Next::interrupted;
        spins++;
        if (std::exchange(crowded_, false)) return Next::sleep;
        if (timed() && (spins & 63) == 0 && clock::monotonic() >= deadline) return Next::late;
        return limit < 0 || spins < static_cast<std::uint64_t>(limit) ? Next::poll : Next::sleep;
    }
    // Between two rounds. A cancellation point now and then, as the kernel's wait is one.
    void pause(PollTime& time) {
        if ((spins & 1023) == 0) pthread_testcancel();
        time.round();
        if (config::get().rx_poll_yield != 0)
            yield_core();
        else
            crowded_ = !spin_or_sleep(spins);
    }

    clock::Time deadline;  // Time{}: none
    std::uint32_t interruptions, restarts;
    std::uint64_t spins = 0;
    bool slept = false;

  private:
    bool crowded_ = false;  // others need the processor more
    bool judges_ = false;
};

// While it lives, the thread's waiter is on the socket, and the rings notify. Construct it under a
// runtime::SignalHold, so that a handler finds no lock or list of the library's in use.
class Sleep {
  public:
    // `fd`: a descriptor whose readability ends the sleep as well, or -1.
    Sleep(Socket& socket, int fd) noexcept;
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;
    // Before each run(), and before the last look at the socket: what came before the waiter was in place
    // must not be slept through.
    void arm() noexcept;
    // Until something may have happened: 0, or -errno; -EAGAIN at the deadline. `deadline` as in Waiting.
    // `mask`: the signals that wait.
    int run(clock::Time deadline, const sigset_t* mask);
    // After run(): what poll() said of `fd`.
    short fd_events() const noexcept { return woken_ && fd_ >= 0 ? fds_[0].revents : short{0}; }
    // After run(): did nothing happen that concerns this thread (RingWatch::sleeps_on)?
    bool goes_on() noexcept;

  private:
    Waiter* enter() noexcept;
    RingWatch watch() noexcept;

    Socket& socket_;
    const int fd_;
    Waiter* const waiter_;
    const bool sure_to_wake_;
    bool woken_ = false;
    nfds_t count_ = 0;
    pollfd fds_[2 + FlowRules::kMaxRings];
    RingWatch watch_;
};

}  // namespace vma::sockets
