// SPDX-License-Identifier: BSD-2-Clause
// How a blocking call on a TCP socket waits: it polls its rings for VMA_RX_POLL rounds, then sleeps on their
// channels.
//
// Signals end the wait as they end the kernel's: a handler without SA_RESTART always, one with it only where
// a timeout is set (signal(7)).
#pragma once

#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include <optional>

#include "libvma/config/params.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/signal_hold.h"
#include "libvma/runtime/spin.h"
#include "libvma/sockets/ring_watch.h"
#include "libvma/sockets/tcp/tcp_socket.h"

namespace vma::sockets {

// While it lives, the thread's waiter is on the socket and the rings notify.
class TcpSocket::Sleep {
  public:
    // `fd`: a descriptor whose readability ends the sleep as well, or -1.
    Sleep(TcpSocket& socket, int fd) noexcept;
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;
    // Before each run(), and before the last look at the socket.
    void arm() noexcept;
    // Until something may have happened: 0, or an errno. `deadline` as in Waiting.
    int run(std::uint64_t deadline, const sigset_t* mask);
    // After run(): did nothing happen that concerns this thread (RingWatch::sleeps_on)?
    bool goes_on() noexcept;

  private:
    TcpSocket& socket_;
    const int fd_;
    Waiter* waiter_;
    bool sure_to_wake_ = false, woken_ = false;
    nfds_t count_ = 0;
    pollfd fds_[2 + kMaxRings];
    std::optional<RingWatch> watch_;
};

template <class F>
int TcpSocket::wait(int fd, Waiting& w, F&& ready) {
    const std::int64_t limit = config::get().rx_poll;
    PollTime time;
    Use use(*this);  // one for all rounds: it costs more than a look at an empty queue
    for (;; use.look_again()) {
        progress(use);
        if (ready()) return 0;
        if (closed_.load(std::memory_order_acquire)) return EBADF;
        if (w.interrupted()) return w.error();
        w.spins++;
        if (w.deadline != 0 && (w.spins & 63) == 0 && clock::monotonic_ns() >= w.deadline) return EAGAIN;
        if (limit < 0 || w.spins < static_cast<std::uint64_t>(limit)) {
            if ((w.spins & 1023) == 0) pthread_testcancel();
            time.round();
            flush(use);  // what polling has answered must not wait for the flusher
            config::get().rx_poll_yield != 0 ? yield_core() : spin_wait(w.spins);
            continue;
        }
        time.stop();
        runtime::SignalHold hold;  // released last, so that a handler finds no lock or list of ours in use
        if (w.interrupted()) return w.error();
        w.slept = true;
        Sleep sleep(*this, fd);
        do {
            sleep.arm();
            // What came before the waiter was in place must not be slept through.
            use.look_again();
            progress(use);
            if (ready() || closed_.load(std::memory_order_acquire)) break;
            if (int error = sleep.run(w.deadline, hold.original()))
                return error == EAGAIN && ready() ? 0 : error;
        } while (sleep.goes_on());
        w.spins = 0;
    }
}

}  // namespace vma::sockets
