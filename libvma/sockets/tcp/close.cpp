// SPDX-License-Identifier: BSD-2-Clause
// close() of a TCP socket: the last number goes, the connection ends in order, its port stays taken until
// then.
#include <limits.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/late_linger.h"
#include "libvma/sockets/tcp/ports.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {

// ---- close ----

bool TcpSocket::interrupted_own_code() const noexcept {
    if (stack_.control().owned_by_me() || state_lock_.owned_by_me() || waiters_lock_.owned_by_me())
        return true;
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (rings_[i].load(std::memory_order_relaxed)->rx_owned_by_me()) return true;
    return false;
}

bool TcpSocket::lives_elsewhere() const noexcept { return handing::shared_since(born_); }

void TcpSocket::before_last_close(int fd) noexcept {
    if (carries_state() && handing::shared_since(born_)) {
        leave_to_kernel(fd, "closed here, open in another process");
        handing::complete_sets();
    }
    // The internal thread may be handing it over right now, under this number.
    if (state_lock_.owned_by_me()) return;
    state_lock_.lock();
    closing_ = true;
    state_lock_.unlock();
}

const char* TcpSocket::leaving() const noexcept {
    Use use(*this);
    const bool due =
        use.connection != nullptr && use.connection->urgent_seen() && !stuck_.load(std::memory_order_relaxed);
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
        bool keep = !accepted_;
        close_pending_.store(true, std::memory_order_seq_cst);
        if (handler || users_.load(std::memory_order_seq_cst) == 0) {
            finish_close();
            closed_.store(true, std::memory_order_release);
            if (shadow && linger_s > 0 && !handler) {
                InternalFd port = accepted_ ? InternalFd() : keep_shadow(fd);
                lingering_ = Lingering{static_cast<std::uint64_t>(linger_s) * 1'000'000'000u, std::move(port),
                                       nullptr};
                if (!linger_later()) linger();
                keep = false;
            }
        }
        if (shadow && keep && c->state() != tcp::State::close) keep_port(keep_shadow(fd), c);
    } else {
        closed_.store(true, std::memory_order_release);
    }
    if (listener_.load(std::memory_order_acquire) != nullptr) {
        // A handler that interrupted the stack's own code must not wait for the locks its thread holds: the
        // rules go with the next control operation, and meanwhile what they match is dropped.
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

// A copy for a port that stays taken. It would also keep the number that is about to go in the kernel's sets,
// which then told of it for ever; so the number leaves them first.
InternalFd TcpSocket::keep_shadow(int fd) noexcept {
    bool watched = true;
    if (!waiters_lock_.owned_by_me()) {
        waiters_lock_.lock();
        watched = !hooks_.empty();
        waiters_lock_.unlock();
    }
    if (watched) {
        int saved = errno;
        g_fds.for_each(0, INT_MAX, [fd](int set, const FdObject* object) {
            if (object->kind() == Kind::epoll) os::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr);
        });
        errno = saved;
    }
    return InternalFd::copy_of(fd);
}

// The port stays taken while connections live that came in there. A socket that stops listening keeps a port
// that bind() chose; another has to be bound again.
void TcpSocket::keep_listening_port(int fd) noexcept {
    tcp::Listener* listener = listener_.load(std::memory_order_acquire);
    if (!listener->has_connections()) return;
    int saved = errno;
    const in_port_t port = shadow::name_of(fd).sin_port;
    if (port != 0 && os::shutdown(fd, SHUT_RDWR) == 0) {
        if (shadow::name_of(fd).sin_port != 0 || shadow::bind_to(fd, listen_addr_, port) == 0)
            listener->hold_port(keep_shadow(fd));
    }
    errno = saved;
}

void TcpSocket::bury() noexcept {
    end_listener();
    tell_waiters();
    unref();
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
    tcp::Connection* const c = connection_.load(std::memory_order_acquire);
    InternalFd port = std::move(lingering_.port);
    int saved = errno, cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);  // close() is not to be left half done
    c->set_owner(this);
    closed_.store(false, std::memory_order_release);  // for wait()
    Waiting w(lingering_.ns);
    wait(-1, w, [&] { return c->drained(); });
    closed_.store(true, std::memory_order_release);
    c->set_owner(nullptr);
    if (port && c->state() != tcp::State::close) keep_port(std::move(port), c);
    pthread_setcancelstate(cancel, nullptr);
    errno = saved;
}

}  // namespace vma::sockets
