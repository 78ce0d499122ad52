// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket's life: creation, names, shutdown, and how it becomes the kernel's.
#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/destination.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/object_pool.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/ports.h"
#include "libvma/sockets/tcp/wait.h"
#include "libvma/tcp/migrate/handover.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets {
namespace {

constinit ObjectPool<TcpSocket> g_tcp_pool;

std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int saved = errno;
    if (fd < 0 || os::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) != 0) cookie = 0;
    errno = saved;
    return cookie;
}

}  // namespace

// ---- life ----

TcpSocket* TcpSocket::create(Stack& stack, int fd, int type) noexcept {
    void* memory = take_memory();
    if (memory == nullptr) return nullptr;
    auto* socket = new (memory) TcpSocket(stack, type);
    socket->tally_.open(stats::Protocol::tcp, fd, SOCK_STREAM, (type & SOCK_NONBLOCK) == 0);
    statistics::joined(*socket);
    socket->options_ = default_tcp_options(fd);
    set_tcp_defaults_on(fd);
    return socket;
}

TcpSocket::TcpSocket(Stack& stack, int type) noexcept : stack_(stack), born_(handing::generation()) {
    nonblock_.store((type & SOCK_NONBLOCK) != 0, std::memory_order_relaxed);
}

TcpSocket::~TcpSocket() {
    statistics::left(*this);
    if (tcp::Connection* c = connection_.load(std::memory_order_relaxed)) c->unref();
    if (tcp::Listener* l = listener_.load(std::memory_order_relaxed)) l->unref();
    release_retired(0);
}

void* TcpSocket::take_memory() noexcept { return g_tcp_pool.take(); }
void TcpSocket::give_memory(void* memory) noexcept { g_tcp_pool.give(memory); }

void TcpSocket::recycle() noexcept {
    this->~TcpSocket();
    give_memory(this);
}

namespace {
void renew_tcp_pool() noexcept { g_tcp_pool.reset_in_child(); }
VMA_RENEW_IN_CHILD(renew_tcp_pool);
}  // namespace

tcp::Connection* TcpSocket::connection() noexcept {
    Use use(*this);
    if (use.connection != nullptr) use.connection->ref();
    return use.connection;
}

void TcpSocket::retire(tcp::Connection* connection, tcp::Listener* listener) noexcept {
    try {
        retired_.push_back({connection, listener});
    } catch (...) {
        // Without memory for the note the object stays for ever, which is better than too short.
    }
}

// `own_uses`: announcements of the caller itself.
void TcpSocket::release_retired(unsigned own_uses) noexcept {
    if (retired_.empty() || users_.load(std::memory_order_seq_cst) != own_uses) return;
    for (Retired& r : retired_) {
        if (r.connection != nullptr) r.connection->unref();
        if (r.listener != nullptr) r.listener->unref();
    }
    retired_.clear();
}

void TcpSocket::learn_cookie(int fd) noexcept {
    if (cookie_.load(std::memory_order_relaxed) == 0) cookie_.store(cookie_of(fd), std::memory_order_relaxed);
}

bool TcpSocket::is_shadow(int fd) const noexcept {
    const std::uint64_t known = cookie_.load(std::memory_order_relaxed);
    return known != 0 && cookie_of(fd) == known;
}

bool TcpSocket::still_mine(int fd) noexcept {
    const std::uint64_t now = clock::ticks();
    if (now - verified_at_.load(std::memory_order_relaxed) < kVerifyUsec * clock::ticks_per_usec())
        return true;
    verified_at_.store(now, std::memory_order_relaxed);
    learn_cookie(fd);
    return is_shadow(fd);
}

// ---- names ----

int TcpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    if (has_connection()) return bind_again(fd, addr, len);
    int saved = errno;
    int r = os::bind(fd, addr, len);
    if (r != 0 && errno == EADDRINUSE) {
        // Perhaps of a connection whose last segment has come, but nobody has looked.
        stack_.progress();
        r = os::bind(fd, addr, len);
        if (r == 0) errno = saved;
    }
    if (r == 0) {
        state_lock_.lock();
        bound_ = true;
        autobound_ = false;
        last_port_.store(0, std::memory_order_relaxed);
        state_lock_.unlock();
        describe();
    }
    return r;
}

// bind() of a connected socket: EINVAL, for it has an address already (ip(7)). When the connection is over,
// its port has gone with it, unless bind() had chosen it.
int TcpSocket::bind_again(int fd, const sockaddr* addr, socklen_t len) noexcept {
    if (state_lock_.owned_by_me()) return failed(EINVAL);
    state_lock_.lock();
    struct Unlock {
        Lock& lock;
        ~Unlock() { lock.unlock(); }
    } unlock{state_lock_};
    const tcp::Connection* c = connection_.load(std::memory_order_relaxed);
    if (c == nullptr || !over(*c) || (bound_ && !autobound_)) return failed(EINVAL);
    unbind_shadow(fd);
    const int r = os::bind(fd, addr, len);
    if (r == 0) {
        bound_ = true;
        autobound_ = false;
        rebound_.store(true, std::memory_order_release);
    }
    return r;
}

int TcpSocket::getsockname(int fd, sockaddr* addr, socklen_t* len) {
    {
        Use use(*this);
        if (use.connection != nullptr && !rebound_.load(std::memory_order_acquire)) {
            const tcp::Endpoints& ends = use.connection->endpoints();
            return copy_name(ends.local_addr, ends.local_port, addr, len);
        }
    }
    if (const in_port_t port = last_port_.load(std::memory_order_relaxed);
        port != 0 && phase() == Phase::fresh) {
        const sockaddr_in name = shadow::name_of(fd);
        if (name.sin_port == 0) return copy_name(last_addr_.load(std::memory_order_relaxed), port, addr, len);
    }
    return os::getsockname(fd, addr, len);
}

int TcpSocket::getpeername(int fd, sockaddr* addr, socklen_t* len) {
    {
        Use use(*this);
        if (use.connection != nullptr) {
            if (over(*use.connection) || use.connection->state() == tcp::State::syn_sent)
                return failed(ENOTCONN);
            const tcp::Endpoints& ends = use.connection->endpoints();
            return copy_name(ends.remote_addr, ends.remote_port, addr, len);
        }
    }
    return os::getpeername(fd, addr, len);
}

// ---- shutdown ----

int TcpSocket::shutdown(int fd, int how) {
    flush();
    if (how < SHUT_RD || how > SHUT_RDWR) return os::shutdown(fd, how);
    if (!has_connection()) {
        const int r = os::shutdown(fd, how);
        // The kernel stops listening for SHUT_RD and SHUT_RDWR.
        if (r == 0 && how != SHUT_WR && phase() == Phase::listening && !state_lock_.owned_by_me()) {
            state_lock_.lock();
            if (phase() == Phase::listening) stop_listening();
            state_lock_.unlock();
        }
        return r;
    }
    bool remote = false;
    {
        Use use(*this);
        if (use.connection == nullptr) return failed(ENOTCONN);
        if (over(*use.connection)) return failed(ENOTCONN);
        if (use.connection->state() != tcp::State::syn_sent) {
            Inside here(*use.connection);
            const int error = -use.connection->shutdown(how);
            if (error != EREMOTE) return error == 0 ? 0 : failed(error);
            int busy = 0;
            remote = true;
            if (!moved_away(fd, busy) && busy != 0) return failed(busy);
        }
    }
    if (remote) return shutdown(fd, how);
    if (state_lock_.owned_by_me()) return failed(ENOTCONN);
    state_lock_.lock();
    const int r = has_connection() ? disconnect(fd) : 0;
    state_lock_.unlock();
    return r;
}

// ---- the kernel takes over ----

bool TcpSocket::handover(int fd, const char* why) noexcept {
    if (phase() == Phase::kernel) return true;
    if (!has_connection()) {
        leave_to_kernel(fd, why);
        return true;
    }
    if (state_lock_.owned_by_me() || stuck_.load(std::memory_order_relaxed)) return false;
    const runtime::NoCancel whole;
    flush();
    state_lock_.lock();
    tcp::Connection* c = connection_.load(std::memory_order_acquire);
    bool moved = phase() == Phase::kernel;  // another thread was faster
    if (c != nullptr && !inside(*c) && !closing_ && !stuck_.load(std::memory_order_relaxed)) {
        int saved = errno;
        settle_options(fd);
        tcp::KernelState state;
        const int error = -c->freeze(state);
        if (error == 0) {
            try {
                auto result = tcp::hand_over(fd, state, [&] {
                    c->finish_freeze(true);
                    moved = true;
                });
                if (!result)
                    log::warn("a TCP connection cannot be moved to the kernel ({}): {}", why,
                              result.error().what);
            } catch (...) {
                log::warn("a TCP connection cannot be moved to the kernel ({}): out of memory", why);
            }
            if (!moved) c->finish_freeze(false);
        } else {
            log::once(log::Level::warn,
                      "a TCP connection in this state cannot be moved to the kernel ({}): {}", why,
                      strerrordesc_np(error));
        }
        if (moved) {
            log::once(log::Level::info, "a TCP connection is moved to the kernel: {}", why);
            c->set_owner(nullptr);
            publish();  // the connection's last numbers
            connection_.store(nullptr, std::memory_order_seq_cst);
            retire(c, nullptr);
            release_retired(0);
            set_phase(Phase::kernel);
            decided({stats::Path::kernel, statistics::reason_of(why), why});
        } else {
            stuck_.store(true, std::memory_order_relaxed);
            c->keep_urgent();
        }
        errno = saved;
    }
    state_lock_.unlock();
    return moved;
}

void TcpSocket::leave_to_kernel(int fd, const char* why) noexcept {
    if (has_connection()) {
        handover(fd, why);
        return;
    }
    if (phase() == Phase::kernel || state_lock_.owned_by_me()) return;
    int saved = errno;
    const runtime::NoCancel whole;
    flush();
    if (Use use(*this); use.listener != nullptr && ring_count_.load(std::memory_order_relaxed) != 0)
        placeholders::let_handshakes_end(*use.listener, [&] { progress(); });
    state_lock_.lock();
    switch (phase()) {
        case Phase::fresh:
            log::once(log::Level::info, "a TCP socket is left to the kernel: {}", why);
            settle_options(fd);
            set_phase(Phase::kernel);
            decided({stats::Path::kernel, statistics::reason_of(why), why});
            break;
        case Phase::listening: {
            // New connections come to the shadow.
            log::once(log::Level::info, "a listening TCP socket is left to the kernel: {}", why);
            suspended_.store(false, std::memory_order_relaxed);
            Stack::Control control(stack_);
            if (control.mine)
                drop_rules();
            else
                listener_.load(std::memory_order_relaxed)->leave_new_to_kernel(false);
            decided({stats::Path::kernel, statistics::reason_of(why), why});
            break;
        }
        default:
            break;
    }
    state_lock_.unlock();
    if (phase() == Phase::listening) offer_waiting();
    errno = saved;
}

// A connection that the kernel cannot take over (no CAP_NET_ADMIN, or the handshake is under way) has lost
// its path for good.
void TcpSocket::ring_failed(int fd, ring::Ring& ring) noexcept {
    if (phase() == Phase::listening) {
        Stack::Control control(stack_);
        if (control.mine) refresh_rules();
        return;
    }
    {
        Use use(*this);
        if (use.connection == nullptr || use.connection->ring() != &ring || over(*use.connection)) return;
    }
    if (handover(fd, "its device has failed")) return;
    Use use(*this);
    if (use.connection == nullptr) return;
    Inside here(*use.connection);
    use.connection->lose_path(still_connecting(*use.connection) ? EHOSTUNREACH : ETIMEDOUT);
}

}  // namespace vma::sockets
