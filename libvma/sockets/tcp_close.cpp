// SPDX-License-Identifier: BSD-2-Clause
// close() of a TCP socket: the last number goes, the connection ends in order, its port stays taken until then.
#include <netinet/in.h>


#include "libvma/os/calls.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/handing.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp_ports.h"
#include "libvma/sockets/tcp_wait.h"

namespace vma::sockets {

// ---- close ----

bool TcpSocket::interrupted_own_code() const noexcept {
    if (stack_.control().owned_by_me() || state_lock_.owned_by_me() || waiters_lock_.owned_by_me()) return true;
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (rings_[i].load(std::memory_order_relaxed)->rx_owned_by_me()) return true;
    return false;
}

void TcpSocket::before_last_close(int fd) noexcept {
    if (carries_state() && handing::shared_since(born_)) leave_to_kernel(fd, "closed here, open in another process");
    // The internal thread may be handing it over right now, under this number.
    if (state_lock_.owned_by_me()) return;
    state_lock_.lock();
    closing_ = true;
    state_lock_.unlock();
}

const char* TcpSocket::leaving() const noexcept {
    Use use(*this);
    const bool due = use.connection != nullptr && use.connection->urgent_seen() && !stuck_.load(std::memory_order_relaxed);
    return due ? "urgent data" : nullptr;
}

bool TcpSocket::moved_away(int fd, int& error) noexcept {
    error = state_lock_.owned_by_me() ? EAGAIN : 0;
    if (error != 0) return false;
    if (has_connection()) handover(fd, "urgent data");
    return !has_connection();
}

// Calls of other threads that are under way go on, as in the kernel: the last of them closes the connection.
void TcpSocket::finish_close() const noexcept {
    if (!close_pending_.exchange(false, std::memory_order_seq_cst)) return;
    tcp::Connection* c = connection_.load(std::memory_order_acquire);
    if (c == nullptr) return;
    Inside here(*c);
    c->close(linger_s_.load(std::memory_order_relaxed) == 0);
}

void TcpSocket::last_number_closed(int fd) noexcept {
    if (tcp::Connection* c = connection_.load(std::memory_order_acquire)) {
        const int linger_s = linger_s_.load(std::memory_order_relaxed);
        const bool handler = inside(*c);
        // Something of ours may have been found under a number that means another file by now.
        const bool shadow = (linger_s > 0 || !accepted_) && is_shadow(fd);
        close_pending_.store(true, std::memory_order_seq_cst);
        if (handler || users_.load(std::memory_order_seq_cst) == 0) {
            finish_close();
            closed_.store(true, std::memory_order_release);
            if (shadow && linger_s > 0 && !handler)
                linger(*c, static_cast<std::uint64_t>(linger_s) * 1'000'000'000u);
        }
        if (shadow && !accepted_ && c->state() != tcp::State::close) keep_port(fd, c);
    } else {
        closed_.store(true, std::memory_order_release);
    }
    if (listener_.load(std::memory_order_acquire) != nullptr) {
        // A handler that interrupted the stack's own code must not wait for the locks its thread holds: the rules go with
        // the next control operation, and meanwhile what they match is dropped.
        if (interrupted_own_code()) {
            if (try_ref()) stack_.add_dead(this);
            return;
        }
        {
            Stack::Control control(stack_);
            end_listener();
        }
        // Another process that has the listener keeps its port, too, and needs it listening.
        if (is_shadow(fd) && !handing::shared_since(born_)) keep_listening_port(fd);
    }
    tell_waiters();
}

// The port stays taken while connections live that came in there. A socket that stops listening keeps a port that
// bind() chose; another has to be bound again.
void TcpSocket::keep_listening_port(int fd) noexcept {
    tcp::Listener* listener = listener_.load(std::memory_order_acquire);
    if (!listener->has_connections()) return;
    int saved = errno;
    const in_port_t port = shadow::name_of(fd).sin_port;
    if (port != 0 && os::shutdown(fd, SHUT_RDWR) == 0) {
        if (shadow::name_of(fd).sin_port != 0 || shadow::bind_to(fd, listen_addr_, port) == 0)
            listener->hold_port(InternalFd::copy_of(fd));
    }
    errno = saved;
}

void TcpSocket::bury() noexcept {
    end_listener();
    tell_waiters();
    unref();
}

// SO_LINGER: close() returns when the peer has everything, or after `ns`, or when a signal comes.
void TcpSocket::linger(tcp::Connection& c, std::uint64_t ns) noexcept {
    int saved = errno, cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);  // close() is not to be left half done
    c.set_owner(this);
    closed_.store(false, std::memory_order_release);  // for wait(); no number leads here any more
    Waiting w(ns);
    wait(-1, w, [&] { return c.drained(); });
    closed_.store(true, std::memory_order_release);
    c.set_owner(nullptr);
    pthread_setcancelstate(cancel, nullptr);
    errno = saved;
}

}  // namespace vma::sockets
