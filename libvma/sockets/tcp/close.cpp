// SPDX-License-Identifier: BSD-2-Clause
// close() of a TCP socket: the last number goes, the connection ends in order, its port stays taken until
// then.
#include <pthread.h>

#include <mutex>
#include <utility>

#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/tcp/late_linger.h"
#include "libvma/sockets/tcp/ports.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {

// ---- close ----

void TcpSocket::before_last_close(int fd) noexcept {
    leave_if_shared(fd);
    leave_extreme();
    // The internal thread may be handing it over right now, under this number.
    if (state_lock_.owned_by_me()) return;
    const std::lock_guard guard(state_lock_);
    closing_ = true;
}

void TcpSocket::last_number_closed(int fd) noexcept {
    if (tcp::Connection* c = transport_.connection()) {
        const std::chrono::seconds time = options_.linger();
        const bool lingers = time > time.zero();
        const bool handler = ConnectionScope::interrupted(*c);
        // The number may mean another file by now.
        const bool shadow = (lingers || !accepted_) && shadow_.is(fd);
        bool keep = !accepted_;
        // Calls of other threads that are under way go on, as in the kernel: the last of them closes.
        if (transport_.close(time == time.zero(), handler)) {
            closed_.store(true, std::memory_order_release);
            if (shadow && lingers && !handler) {
                InternalFd port = accepted_ ? InternalFd() : copy_shadow(fd);
                lingering_ = Lingering{time, std::move(port), nullptr};
                if (!linger_later()) linger();
                keep = false;
            }
        }
        if (shadow && keep && c->state() != tcp::State::close) keep_port(copy_shadow(fd), c);
    } else {
        closed_.store(true, std::memory_order_release);
    }
    if (transport_.listener() != nullptr && !end_with_last_number(fd)) return;
    watchers_.wake(0);
}

void TcpSocket::before_process_end(int fd) noexcept {
    if (shared()) {
        leave_to_kernel(fd, leave::end);
        return;
    }
    if (phase() == Phase::listening) {
        if (interrupted_own_code()) return;
        state_lock_.lock();
        if (phase() == Phase::listening) stop_listening();  // resets what has not been accepted
        state_lock_.unlock();
        return;
    }
    {
        Pin pin(transport_);
        tcp::Connection* c = pin.connection;
        if (c == nullptr || over(*c)) return;
        // A handshake is not to be completed by the internal thread in the last moments: the kernel refuses
        // it.
        if (still_connecting(*c) || c->readable() != 0 || options_.linger() == std::chrono::seconds::zero()) {
            ConnectionScope here(*c);
            c->close(true);
            return;
        }
    }
    leave_to_kernel(fd, leave::end);
}

// ---- SO_LINGER: close() returns when the peer has everything, or after some time, or when a signal comes
// ----

namespace {

constinit thread_local LateLinger* t_late_linger = nullptr;

}  // namespace

LateLinger::LateLinger() noexcept : outer_(t_late_linger) { t_late_linger = this; }

LateLinger* LateLinger::mine() noexcept { return t_late_linger; }

LateLinger::~LateLinger() {
    t_late_linger = outer_;
    while (TcpSocket* socket = first_) {
        first_ = socket->lingering_.next;
        socket->linger();
        socket->unref();
    }
}

bool TcpSocket::linger_later() noexcept {
    LateLinger* later = LateLinger::mine();
    if (later == nullptr || !try_ref()) return false;
    lingering_.next = std::exchange(later->first_, this);
    return true;
}

// No number leads here any more. The port stays taken as long as the connection lives.
void TcpSocket::linger() noexcept {
    tcp::Connection* const c = transport_.connection();
    InternalFd port = std::move(lingering_.port);
    int saved = errno, cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);  // close() is not to be left half done
    c->set_owner(this);
    closed_.store(false, std::memory_order_release);  // for wait()
    Waiting w(lingering_.longest);
    wait(-1, w, [&] { return c->drained(); });
    closed_.store(true, std::memory_order_release);
    c->set_owner(nullptr);
    if (port && c->state() != tcp::State::close) keep_port(std::move(port), c);
    pthread_setcancelstate(cancel, nullptr);
    errno = saved;
}

}  // namespace vma::sockets
