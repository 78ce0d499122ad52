// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket's life: creation, bind, connect, shutdown, close, and how it becomes the kernel's.
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/handing.h"
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/object_pool.h"
#include "libvma/sockets/tcp_defaults.h"
#include "libvma/sockets/tcp_ports.h"
#include "libvma/sockets/tcp_wait.h"
#include "libvma/sockets/urgent.h"
#include "libvma/tcp/handover.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets {
namespace {

constinit ObjectPool<TcpSocket> g_pool;
constexpr std::uint64_t kVerifyUsec = 1000;

std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int saved = errno;
    if (fd < 0 || os::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) != 0) cookie = 0;
    errno = saved;
    return cookie;
}

sockaddr_in name_of(int fd) noexcept {
    sockaddr_in a{};
    socklen_t len = sizeof a;
    int saved = errno;
    if (os::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &len) != 0 || a.sin_family != AF_INET) a = {};
    errno = saved;
    return a;
}

int bind_to(int fd, in_addr_t addr, in_port_t port) noexcept {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = addr;
    a.sin_port = port;
    return os::bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a);
}

// The address alone. `kept`: the option is the program's, and stays.
bool bind_address(int fd, in_addr_t addr, bool kept) noexcept {
    const int off = 0, on = 1;
    os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    const bool bound = bind_to(fd, addr, 0) == 0;
    if (!kept) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
    return bound;
}

int dissolve(int fd) noexcept {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    return os::connect(fd, &none, sizeof none);
}

}  // namespace

// ---- life ----

TcpSocket* TcpSocket::create(Stack& stack, int fd, int type) noexcept {
    void* memory = take_memory();
    if (memory == nullptr) return nullptr;
    auto* socket = new (memory) TcpSocket(stack, type);
    socket->options_ = default_tcp_options(fd);
    set_tcp_defaults_on(fd);
    return socket;
}

TcpSocket::TcpSocket(Stack& stack, int type) noexcept : stack_(stack), born_(handing::generation()) {
    nonblock_.store((type & SOCK_NONBLOCK) != 0, std::memory_order_relaxed);
}

TcpSocket::~TcpSocket() {
    if (tcp::Connection* c = connection_.load(std::memory_order_relaxed)) c->unref();
    if (tcp::Listener* l = listener_.load(std::memory_order_relaxed)) l->unref();
    release_retired(0);
}

void* TcpSocket::take_memory() noexcept { return g_pool.take(); }
void TcpSocket::give_memory(void* memory) noexcept { g_pool.give(memory); }

void TcpSocket::recycle() noexcept {
    this->~TcpSocket();
    give_memory(this);
}

void TcpSocket::reset_in_child() noexcept {
    g_pool.reset_in_child();
    forget_ports_in_child();
    tcp::Connection::reset_in_child();
    urgent::reset_in_child();
}

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
    static const std::uint64_t kVerifyTicks = kVerifyUsec * clock::ticks_per_usec();
    const std::uint64_t now = clock::ticks();
    if (now - verified_at_.load(std::memory_order_relaxed) < kVerifyTicks) return true;
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
    }
    return r;
}

// bind() of a connected socket: EINVAL, for it has an address already (ip(7)). When the connection is over, its port has
// gone with it, unless bind() had chosen it.
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
    if (const in_port_t port = last_port_.load(std::memory_order_relaxed); port != 0 && phase() == Phase::fresh) {
        const sockaddr_in name = name_of(fd);
        if (name.sin_port == 0) return copy_name(last_addr_.load(std::memory_order_relaxed), port, addr, len);
    }
    return os::getsockname(fd, addr, len);
}

int TcpSocket::getpeername(int fd, sockaddr* addr, socklen_t* len) {
    {
        Use use(*this);
        if (use.connection != nullptr) {
            if (over(*use.connection) || use.connection->state() == tcp::State::syn_sent) return failed(ENOTCONN);
            const tcp::Endpoints& ends = use.connection->endpoints();
            return copy_name(ends.remote_addr, ends.remote_port, addr, len);
        }
    }
    return os::getpeername(fd, addr, len);
}

// ---- connect ----

// Can the connection to `to` be ours? Finds its addresses and opens the interface's ring.
bool TcpSocket::plan_connect(int fd, const sockaddr_in& to, Plan& plan) noexcept {
    if (to.sin_port == 0 || !is_unicast(to.sin_addr.s_addr)) return false;
    try {
        sockaddr_in local{};
        if (bound_ || autobound_) local = name_of(fd);
        net::RouteQuery query;
        query.dst = to.sin_addr.s_addr;
        query.src = local.sin_addr.s_addr;
        query.oif = options_.path.oif;
        query.mark = options_.path.mark;
        query.tos = options_.path.tos;
        query.protocol = IPPROTO_TCP;
        query.src_port = local.sin_port;
        query.dst_port = to.sin_port;
        auto route = stack_.view().route(query);
        if (!route || route->kind != net::Route::Kind::unicast) return false;
        const in_addr_t source = local.sin_addr.s_addr != 0 ? local.sin_addr.s_addr : route->src;
        int owner = 0;
        if (!is_unicast(source) || !stack_.view().is_local(source, &owner)) return false;
        // Answers come in through the interface that owns the address; only one interface has the connection's rule.
        if (owner != route->ifindex) {
            log::once(log::Level::info,
                      "a TCP connection is left to the kernel: its route and its source are on different interfaces");
            return false;
        }
        const config::Endpoint here{source, local.sin_port}, there{to.sin_addr.s_addr, to.sin_port};
        if (config::rules().match(config::Role::tcp_client, there, &here) == config::Transport::os) {
            log::once(log::Level::info, "a TCP connection is left to the kernel: libvma.conf says so");
            return false;
        }
        if (stack_.ring(route->ifindex) == nullptr) {
            Stack::Control control(stack_);
            if (!control.mine || stack_.open_ring(route->ifindex) == nullptr) return false;
        }
        plan.ends = {source, to.sin_addr.s_addr, local.sin_port, to.sin_port};
        plan.autobind = local.sin_port == 0;
        return true;
    } catch (...) {
        return false;  // no memory: a kernel connection is a good connection
    }
}

// Reserves an ephemeral port of the source address in the kernel.
int TcpSocket::bind_shadow(int fd, Plan& plan) noexcept {
    int off = 0, on = 1;
    if (bind_no_port_) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
    const int r = bind_to(fd, plan.ends.local_addr, 0);
    const int error = errno;
    if (bind_no_port_) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (r != 0) return error == EADDRINUSE ? EADDRNOTAVAIL : error;
    plan.ends.local_port = name_of(fd).sin_port;
    autobound_ = true;
    return plan.ends.local_port != 0 ? 0 : EADDRNOTAVAIL;
}

// The port we took for connect() goes, as the kernel gives it back when a connection failed. A socket in state CLOSE keeps
// its port, but one that stops listening does not; and an address that was given by bind() stays, unless another is given
// without a port.
void TcpSocket::unbind_shadow(int fd) noexcept {
    if (!autobound_) return;
    if (os::listen(fd, 0) != 0) return;  // the port stays, and serves the next connect()
    dissolve(fd);
    autobound_ = false;
    if (bound_) return;  // the program chose the address, only the port was left to us
    bind_address(fd, INADDR_ANY, bind_no_port_);
}

// 0: under way, or errno. ours == false: nothing was done, the kernel shall connect.
int TcpSocket::start_connect(int fd, const sockaddr* addr, socklen_t len, bool& ours) {
    ours = false;
    sockaddr_in to{};
    if (len < sizeof to || len > sizeof(sockaddr_storage) || !UserMemory::readable(addr, sizeof to)) return 0;
    std::memcpy(&to, addr, sizeof to);
    Plan plan;
    int saved = errno;
    if (to.sin_family != AF_INET || !plan_connect(fd, to, plan)) {
        errno = saved;
        return 0;
    }
    urgent::prepare();
    learn_cookie(fd);
    settle_options(fd);
    if (plan.autobind)
        if (int error = bind_shadow(fd, plan)) {
            ours = true;
            return error;
        }
    icmp::start(stack_);
    tcp::Connection* c = tcp::Connection::create(stack_.paths(), plan.ends, options_);
    if (c == nullptr) {
        unbind_shadow(fd);
        errno = saved;
        return 0;
    }
    release_retired(0);
    in_edges_told_ = out_edges_told_ = 0;
    pending_error_.store(0, std::memory_order_relaxed);
    past_mss_.store(0, std::memory_order_relaxed);
    // Everything is in place before the first packet: the outcome may come while connect() still runs.
    connection_.store(c, std::memory_order_seq_cst);
    phase_.store(Phase::connecting, std::memory_order_release);
    c->set_owner(this);
    int error;
    {
        Inside here(*c);
        error = -c->connect();
    }
    if (error == 0) {
        set_phase(Phase::connecting);
        ours = true;
        errno = saved;
        return 0;
    }
    let_go(fd, false);
    errno = saved;
    if (error == EOPNOTSUPP) return 0;
    ours = true;
    return error;
}

int TcpSocket::connect(int fd, const sockaddr* addr, socklen_t len) {
    if (phase() == Phase::kernel) return os::connect(fd, addr, len);
    if (state_lock_.owned_by_me()) return failed(EALREADY);  // a signal handler inside a call that changes the state
    sa_family_t family = AF_INET;
    const bool readable = len >= sizeof family && UserMemory::readable(addr, sizeof family);
    if (readable) std::memcpy(&family, addr, sizeof family);
    int saved = errno;  // opening a ring, for one, leaves its traces
    flush();

    state_lock_.lock();
    struct Unlock {
        Lock* lock;
        void now() {
            if (lock != nullptr) std::exchange(lock, nullptr)->unlock();
        }
        ~Unlock() { now(); }
    } held{&state_lock_};

    if (has_connection()) {
        if (!readable) return failed(len < sizeof family || static_cast<int>(len) < 0 ? EINVAL : EFAULT);
        if (family == AF_UNSPEC) return disconnect(fd);
        if (phase() == Phase::connected) return failed(EISCONN);
        held.now();
        const int r = await_connect(fd, EALREADY);
        if (r == 0) errno = saved;
        return r;
    }
    if (family == AF_UNSPEC && readable) {
        const int r = os::connect(fd, addr, len);
        if (r == 0 && phase() == Phase::listening) stop_listening();
        return r;
    }
    if (phase() == Phase::listening) return os::connect(fd, addr, len);  // EISCONN

    bool ours = false;
    if (const int error = start_connect(fd, addr, len, ours); ours) {
        held.now();
        if (error != 0) return failed(error);
        const int r = await_connect(fd, EINPROGRESS);
        if (r == 0) errno = saved;
        return r;
    }
    // Any thread's call from now on is the kernel's. A connect() that fails at once leaves a socket that may try elsewhere.
    settle_options(fd);
    set_phase(Phase::kernel);
    held.now();
    errno = saved;
    const int r = os::connect(fd, addr, len);
    const bool over = r != 0 && errno != EINPROGRESS && errno != EINTR && errno != EALREADY && errno != EISCONN;
    if (over && phase() == Phase::kernel) set_phase(Phase::fresh);
    return r;
}

// Waits for the outcome. `under_way`: what a call that does not wait (so long) says.
int TcpSocket::await_connect(int fd, int under_way) {
    tcp::Connection* c;
    {
        Use use(*this);
        c = use.connection;
        if (c == nullptr) return failed(ECONNABORTED);
        // The kernel's first answer is this one, however quick the peer's.
        if (under_way == EINPROGRESS && nonblock_.load(std::memory_order_relaxed)) return failed(under_way);
        if (still_connecting(*c)) {
            if (nonblock_.load(std::memory_order_relaxed)) return failed(under_way);
            if (inside(*c)) return failed(under_way);
            Waiting w(sndtimeo_ns_.load(std::memory_order_relaxed));
            const int error = wait(-1, w, [&] { return !still_connecting(*c); });
            if (error == EAGAIN) return failed(under_way);
            if (error != 0) return failed(error);
        }
    }
    state_lock_.lock();
    int error = 0;
    // Another thread may have been told meanwhile, or have let go of the connection.
    if (connection_.load(std::memory_order_relaxed) != c) {
        error = phase() == Phase::kernel ? 0 : ECONNABORTED;  // established, and handed over meanwhile
    } else if (phase() == Phase::connecting) {
        if (c->state() == tcp::State::close) {
            error = c->take_error();
            if (error == 0) error = ECONNABORTED;
            let_go(fd, false);
        } else {
            set_phase(Phase::connected);
        }
    }
    state_lock_.unlock();
    return error == 0 ? 0 : failed(error);
}

// connect(AF_UNSPEC), and shutdown() of a connection that is not there yet.
int TcpSocket::disconnect(int fd) noexcept {
    const tcp::Connection* c = connection_.load(std::memory_order_relaxed);
    int error = c->peek_error();
    switch (c->state()) {
        case tcp::State::close:
        case tcp::State::time_wait: break;
        case tcp::State::closing:
        case tcp::State::last_ack:
            if (c->unsent_bytes() != 0) error = ECONNRESET;
            break;
        default: error = ECONNRESET;
    }
    if (error != 0) pending_error_.store(error, std::memory_order_relaxed);
    let_go(fd, true);
    return 0;
}

void TcpSocket::let_go(int fd, bool reset) noexcept {
    tcp::Connection* c = connection_.exchange(nullptr, std::memory_order_seq_cst);
    if (c == nullptr) return;
    const tcp::Endpoints c_ends = c->endpoints();
    {
        Inside here(*c);
        c->close(reset);
    }
    past_mss_.store(c->mss(), std::memory_order_relaxed);
    retire(c, nullptr);
    release_retired(0);
    int saved = errno;
    unbind_shadow(fd);
    // The address that the listener was bound to is the accepted socket's own.
    if (accepted_ && listen_addr_ != 0 && !rebound_.load(std::memory_order_relaxed))
        bound_ = bind_address(fd, listen_addr_, bind_no_port_);
    last_addr_.store(bound_ ? name_of(fd).sin_addr.s_addr : 0, std::memory_order_relaxed);
    last_port_.store(c_ends.local_port, std::memory_order_relaxed);
    rebound_.store(false, std::memory_order_relaxed);
    errno = saved;
    accepted_ = false;
    set_phase(Phase::fresh);
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
    const in_port_t port = name_of(fd).sin_port;
    if (port != 0 && os::shutdown(fd, SHUT_RDWR) == 0) {
        if (name_of(fd).sin_port != 0 || bind_to(fd, listen_addr_, port) == 0)
            listener->hold_port(InternalFd(os::fcntl(fd, F_DUPFD_CLOEXEC, 3)));
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

// ---- the kernel takes over ----

bool TcpSocket::handover(int fd, const char* why) noexcept {
    if (phase() == Phase::kernel) return true;
    if (!has_connection()) {
        leave_to_kernel(fd, why);
        return true;
    }
    if (state_lock_.owned_by_me() || stuck_.load(std::memory_order_relaxed)) return false;
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
                    log::warn("a TCP connection cannot be moved to the kernel ({}): {}", why, result.error().what);
            } catch (...) {
                log::warn("a TCP connection cannot be moved to the kernel ({}): out of memory", why);
            }
            if (!moved) c->finish_freeze(false);
        } else {
            log::once(log::Level::warn, "a TCP connection in this state cannot be moved to the kernel ({}): {}", why,
                      strerrordesc_np(error));
        }
        if (moved) {
            log::once(log::Level::info, "a TCP connection is moved to the kernel: {}", why);
            c->set_owner(nullptr);
            connection_.store(nullptr, std::memory_order_seq_cst);
            retire(c, nullptr);
            release_retired(0);
            set_phase(Phase::kernel);
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
    flush();
    state_lock_.lock();
    switch (phase()) {
        case Phase::fresh:
            log::once(log::Level::info, "a TCP socket is left to the kernel: {}", why);
            settle_options(fd);
            set_phase(Phase::kernel);
            break;
        case Phase::listening: {
            // Who is in our queue already can still be accepted; new connections come to the shadow.
            log::once(log::Level::info, "a listening TCP socket is left to the kernel: {}", why);
            suspended_.store(false, std::memory_order_relaxed);
            Stack::Control control(stack_);
            if (control.mine) drop_rules();
            break;
        }
        default: break;
    }
    state_lock_.unlock();
    errno = saved;
}

}  // namespace vma::sockets
