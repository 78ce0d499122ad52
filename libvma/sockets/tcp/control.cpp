// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket's life: creation, names, shutdown, and how it becomes the kernel's.
#include <netinet/in.h>

#include <mutex>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/object_pool.h"
#include "libvma/sockets/path_resolver.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/ports.h"
#include "libvma/sockets/tcp/tcp_socket.h"

namespace vma::sockets {
namespace {

constinit ObjectPool<TcpSocket> g_tcp_pool;

}  // namespace

// ---- life ----

TcpSocket* TcpSocket::create(Stack& stack, int fd, int type) noexcept {
    void* memory = take_memory();
    if (memory == nullptr) return nullptr;
    auto* socket = new (memory) TcpSocket(stack, type);
    socket->socket_counters_.open(stats::Protocol::tcp, fd, SOCK_STREAM, (type & SOCK_NONBLOCK) == 0);
    statistics::joined(*socket);
    socket->join_extreme(fd, false);
    socket->options_.next() = default_tcp_options(fd);
    set_tcp_defaults_on(fd);
    return socket;
}

TcpSocket* TcpSocket::accepted(void* memory, TcpListening& listener, tcp::Connection* c, int fd,
                               int flags) noexcept {
    auto& from = static_cast<TcpSocket&>(listener);
    auto* socket = new (memory) TcpSocket(from.stack_, flags);
    socket->accepted_ = true;
    socket->name_.set_listening({from.name_.listening().address, 0});
    socket->shadow_.trust_from(clock::Ticks::now());
    socket->transport_.set(c);
    socket->join_lane(from);
    socket->phase_.store(Phase::connected, std::memory_order_release);
    socket->receive_timeout_.store(from.receive_timeout_.load(std::memory_order_relaxed),
                                   std::memory_order_relaxed);
    const bool with_list = !from.state_lock_.owned_by_me();
    if (with_list) from.state_lock_.lock();
    socket->options_.inherit(from.options_, with_list);
    if (with_list) from.state_lock_.unlock();
    socket->socket_counters_.open(stats::Protocol::tcp, fd, SOCK_STREAM, (flags & SOCK_NONBLOCK) == 0);
    const stats::SocketBlock* listeners = from.socket_counters_.block();
    socket->decided({stats::Path::offloaded,
                     stats::Reason::none,
                     {},
                     listeners != nullptr ? stats::text_of(listeners->rule) : std::string_view{}});
    socket->describe();
    statistics::joined(*socket);
    socket->join_extreme(fd, true);
    return socket;
}

TcpSocket::~TcpSocket() { statistics::left(*this); }

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

// ---- names ----

int TcpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    if (has_connection()) return bind_again(fd, addr, len);
    int saved = errno;
    int r = os::bind(fd, addr, len);
    if (r != 0 && errno == EADDRINUSE) {
        // Perhaps of a connection whose last segment has come, and lies in the ring.
        stack_.progress();
        r = os::bind(fd, addr, len);
        if (r == 0) errno = saved;
    }
    if (r == 0) {
        state_lock_.lock();
        name_.note_bind();
        state_lock_.unlock();
        describe();
    }
    return r;
}

// bind() of a connected socket: EINVAL, for it has an address already (ip(7)). When the connection is over,
// its port has gone with it, unless bind() had chosen it.
int TcpSocket::bind_again(int fd, const sockaddr* addr, socklen_t len) noexcept {
    if (state_lock_.owned_by_me()) return failed(EINVAL);
    const std::lock_guard guard(state_lock_);
    const tcp::Connection* c = transport_.connection();
    if (c == nullptr || !over(*c) || name_.chosen()) return failed(EINVAL);
    name_.release(fd);
    const int r = os::bind(fd, addr, len);
    if (r == 0) name_.note_rebind();
    return r;
}

int TcpSocket::getsockname(int fd, sockaddr* addr, socklen_t* len) {
    {
        Pin pin(transport_);
        if (pin.connection != nullptr && !name_.rebound()) {
            return copy_name(pin.connection->endpoints().local, addr, len);
        }
    }
    if (phase() == Phase::fresh)
        if (const auto past = name_.past(fd)) return copy_name(*past, addr, len);
    return os::getsockname(fd, addr, len);
}

int TcpSocket::getpeername(int fd, sockaddr* addr, socklen_t* len) {
    {
        Pin pin(transport_);
        if (pin.connection != nullptr) {
            look(*pin.connection);
            if (over(*pin.connection) || pin.connection->state() == tcp::State::syn_sent)
                return failed(ENOTCONN);
            return copy_name(pin.connection->endpoints().remote, addr, len);
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
            const std::lock_guard guard(state_lock_);
            if (phase() == Phase::listening) stop_listening();
        }
        return r;
    }
    bool remote = false;
    {
        Pin pin(transport_);
        if (pin.connection == nullptr) return failed(ENOTCONN);
        look(*pin.connection);
        if (over(*pin.connection)) return failed(ENOTCONN);
        if (pin.connection->state() != tcp::State::syn_sent) {
            ConnectionScope here(*pin.connection);
            const int error = -pin.connection->shutdown(how);
            if (error != EREMOTE) return error == 0 ? 0 : failed(error);
            remote = true;
            if (const int gone = move_away(fd); gone < 0) return failed(-gone);
        }
    }
    if (remote) return shutdown(fd, how);
    if (state_lock_.owned_by_me()) return failed(ENOTCONN);
    const std::lock_guard guard(state_lock_);
    return has_connection() ? disconnect(fd) : 0;
}

// ---- the kernel takes over ----

void TcpSocket::leave_to_kernel(int fd, LeaveCause why) noexcept {
    if (has_connection()) {
        handover(fd, why);
        return;
    }
    if (phase() == Phase::kernel || state_lock_.owned_by_me()) return;
    const ErrnoKept kept;
    const runtime::NoCancel whole;
    flush();
    let_handshakes_end();
    state_lock_.lock();
    switch (phase()) {
        case Phase::fresh:
            log::once(log::Level::info, "a TCP socket is left to the kernel: {}", why.text);
            options_.settle(fd);
            set_phase(Phase::kernel);
            decided({stats::Path::kernel, why.reason, why.text});
            break;
        case Phase::listening:
            // New connections come to the shadow.
            log::once(log::Level::info, "a listening TCP socket is left to the kernel: {}", why.text);
            suspend_for_good();
            decided({stats::Path::kernel, why.reason, why.text});
            break;
        default:
            break;
    }
    state_lock_.unlock();
    if (phase() == Phase::listening) offer_waiting();
}

namespace {

// Could the kernel send what the connection sends, from its address?
bool has_way(Stack& stack, tcp::Connection& c) noexcept {
    try {
        const net::Endpoints ends = c.endpoints();
        return stack.view().is_local(ends.local.address.v4(), nullptr) &&
               PathResolver(stack).route(IPPROTO_TCP, ends, c.options().path).has_value();
    } catch (...) {
        return true;  // no memory
    }
}

}  // namespace

// A connection that the kernel cannot take over (no CAP_NET_ADMIN, or the handshake is under way) has lost
// its path for good. One without address or route stays as it is: TCP_REPAIR needs both, and so would the
// kernel. orphans::leave asks again.
void TcpSocket::ring_failed(int fd, ring::Ring& ring) noexcept {
    if (phase() == Phase::listening) {
        Stack::Control control(stack_);
        if (control.mine) refresh_rules();
        return;
    }
    {
        Pin pin(transport_);
        if (pin.connection == nullptr || pin.connection->ring() != &ring || over(*pin.connection)) return;
        if (!still_connecting(*pin.connection) && !has_way(stack_, *pin.connection)) return;
    }
    if (handover(fd, leave::device_failed)) return;
    Pin pin(transport_);
    if (pin.connection == nullptr) return;
    ConnectionScope here(*pin.connection);
    pin.connection->lose_path(still_connecting(*pin.connection) ? EHOSTUNREACH : ETIMEDOUT);
}

}  // namespace vma::sockets
