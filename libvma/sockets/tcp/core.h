// SPDX-License-Identifier: BSD-2-Clause
// What every part of a TCP socket needs: its phase, its connection or listener, readiness, waiting, and how
// the connection moves to the kernel.
//
// A TCP socket consists of layers, each a class that knows those below: TcpCore, TcpListening (listen,
// accept), TcpConnecting (connect), TcpStream (data), TcpExtra (the extra API), TcpSocket (life, names,
// options, close).
//
// The shadow is never connected while the library serves the connection. It holds the local port, knows the
// options, and answers what does not depend on the connection. So it is always in a state from which the
// kernel can take over: before connect() or listen() by simply going on, afterwards by tcp/migrate. A
// listener's shadow listens for real, for the interfaces that the library does not serve.
//
// Locks: state_lock_ for changes of phase, taken before the stack's control lock; never held while waiting.
// Data calls take no lock here (TcpTransport). The lock of the watchers is a leaf, taken inside the
// connection's lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/sockets/steered_socket.h"
#include "libvma/sockets/tcp/local_name.h"
#include "libvma/sockets/tcp/option_state.h"
#include "libvma/sockets/tcp/transport.h"

namespace vma::sockets {

class Filter;
struct Waiting;

class TcpCore : public SteeredSocket, public tcp::Owner {
  public:
    bool carries_state() const noexcept final {
        const Phase p = phase();
        return p != Phase::fresh && p != Phase::kernel;
    }
    const LeaveCause* leaving() const noexcept final;
    // The same for a call that has the connection.
    const LeaveCause* leaving(const tcp::Connection& c) const noexcept;
    void kernel_answered(int fd, stats::TrafficPath way, ssize_t result, int flags) noexcept final;

    bool offloaded() const noexcept final { return readiness() != Readiness::kernel; }
    Readiness readiness() const noexcept final;
    std::uint32_t arrivals() const noexcept final { return edges(EPOLLIN); }
    std::uint32_t edges(std::uint32_t interest) const noexcept final;
    unsigned progress() noexcept final { return progress(Pin(transport_)); }
    void flush() noexcept final { flush(Pin(transport_)); }
    unsigned rings(ring::Ring** out, unsigned room) const noexcept final {
        return rings(Pin(transport_), out, room);
    }

    // tcp::Owner, with the connection's or the listener's lock held
    void changed() noexcept final;
    void publish() noexcept final;
    void zero_counters() noexcept final;

    // Moves the live connection into the shadow: from here on the kernel serves it. False: it could not be
    // moved (the log says why), and goes on as it was. A socket that has no connection is left to the kernel.
    bool handover(int fd, LeaveCause why) noexcept;
    // The connection now, with a reference for the caller; null without one.
    tcp::Connection* connection() noexcept;

  protected:
    using Pin = TcpTransport::Pin;
    // `fresh`: neither connected nor listening, everything is the kernel's. `connecting` and `connected`: a
    // connection; connecting until connect() has told the program how it ended. `kernel`: for good.
    enum class Phase : std::uint8_t { fresh, listening, connecting, connected, kernel };

    TcpCore(Stack& stack, int type) noexcept : SteeredSocket(stack, type) {}
    ~TcpCore() override;

    Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
    void set_phase(Phase phase) noexcept;  // and tells the watchers
    bool has_connection() const noexcept {
        return phase() == Phase::connecting || phase() == Phase::connected;
    }
    static bool still_connecting(const tcp::Connection& c) noexcept {
        return c.state() == tcp::State::syn_sent || c.state() == tcp::State::syn_recv;
    }
    // As the program sees it: in TIME_WAIT the kernel's socket is detached from the connection, and closed.
    static bool over(const tcp::Connection& c) noexcept {
        return c.state() == tcp::State::close || c.state() == tcp::State::time_wait;
    }
    int take_pending_error() noexcept;
    // Has close() taken the last number away since this call looked it up? Then its answer is that of a call
    // that comes later.
    bool overtaken() const noexcept { return !has_fds(); }
    // Does the number still mean this socket? Asked now and then.
    bool still_mine(int fd) noexcept {
        const clock::Ticks now = clock::Ticks::now();
        return shadow_.trusted(now) || shadow_.verify(fd, now);
    }
    // Did a signal handler interrupt this thread while it held a lock that a change of phase needs?
    bool interrupted_own_code() const noexcept {
        return stack_.control().owned_by_me() || state_lock_.owned_by_me() || interrupted_library_code();
    }
    // SteeredSocket::move_ring(), between changes of phase.
    [[gnu::cold, gnu::noinline]] void move_connection() noexcept;
    bool move_to(unsigned lane, std::string& why) final;
    // After -EREMOTE of the connection: waits for the handover that is under way, or does it. 1: the
    // kernel answers now; 0: the connection is still here, so try again; -EAGAIN: neither, in a signal
    // handler that interrupted the handover.
    int move_away(int fd) noexcept;

    unsigned progress(const Pin& pin) const noexcept;
    // Before a call that does not wait, and answers from the connection's state: what has arrived counts, as
    // it does in the kernel. One poll, and none while another thread polls.
    static void look(const tcp::Connection& c) noexcept;
    void flush(const Pin& pin) const noexcept;
    unsigned rings(const Pin& pin, ring::Ring** out, unsigned room) const noexcept;
    // Polls, then sleeps, until ready() (0), or -errno: -EAGAIN at the deadline, -EINTR, -EBADF when
    // closed meanwhile. See wait.h.
    template <class F>
    int wait(int fd, Waiting& w, F&& ready);

    // Statistics: of a call's result, the library's (bytes or -errno) or the kernel's (bytes, or -1 with
    // errno), which is returned.
    ssize_t count(stats::TrafficPath way, ssize_t result) noexcept;
    ssize_t count_kernel(stats::TrafficPath way, ssize_t result, int flags = 0) noexcept;
    int count_kernel(stats::TrafficPath way, int result, const mmsghdr* msgs, int flags) noexcept;
    void describe() noexcept;  // names and ring, without asking the kernel

    std::atomic<Phase> phase_{Phase::fresh};
    std::atomic<bool> stuck_{false};  // a handover failed: not tried again and again
    bool closing_ = false;            // the number is about to go: no handover any more. state_lock_
    TcpTransport transport_;
    mutable Lock state_lock_;
    LocalName name_;
    TcpOptionState options_;
    std::atomic<Filter*> filter_{nullptr};                  // the program's callback; stays with the socket
    std::uint32_t in_edges_told_ = 0, out_edges_told_ = 0;  // the lock of the watchers
};

}  // namespace vma::sockets
