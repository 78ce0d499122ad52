// SPDX-License-Identifier: BSD-2-Clause
// connect() of a TCP socket, how it is waited for, and how a connection is dissolved.
#include <netinet/in.h>

#include <cstring>
#include <optional>
#include <utility>

#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/handover/privileges.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/path_resolver.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/connecting.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {
namespace {

constexpr int kPortTries = 32;

}  // namespace

// ---- connect ----

// Can the library serve the connection to `to`? Finds its addresses and opens the interface's ring.
bool TcpConnecting::plan_connect(int fd, const net::Endpoint& to, Plan& plan) noexcept {
    auto left = [&](stats::Reason reason, std::string_view detail = {}) {
        plan.why.reason = reason;
        plan.why.detail = detail;
        return false;
    };
    if (to.port == 0) return left(stats::Reason::other, "there is no port 0");
    if (!to.address.is_unicast()) return left(statistics::reason_of_address(to.address));
    if (!privileges::tcp_may_be_ours())
        return left(stats::Reason::process, "the program has given up CAP_NET_ADMIN");
    try {
        net::Endpoint local;
        if (name_.bound()) local = shadow::name_of(fd);
        auto route = PathResolver(stack_).route(IPPROTO_TCP, {local, to}, options_.next().path);
        if (!route) return left(stats::Reason::no_route);
        if (const stats::Reason reason = statistics::reason_of_route(*route); reason != stats::Reason::none)
            return left(reason);
        if (local.address.is_any()) local.address = net::Address(route->src);
        int owner = 0;
        if (!local.address.is_unicast() || !stack_.view().is_local(local.address.v4(), &owner))
            return left(stats::Reason::foreign_address);
        // Answers come in through the interface that owns the address; only one interface has the
        // connection's rule.
        if (owner != route->ifindex) {
            log::once(log::Level::info,
                      "a TCP connection is left to the kernel: its route and its source are on different "
                      "interfaces");
            return left(stats::Reason::foreign_address,
                        "its route and its source are on different interfaces");
        }
        const config::Verdict decision = config::decide(config::Role::tcp_client, to, &local);
        plan.why.rule = decision.text();
        if (decision.os()) return left(stats::Reason::rule);
        plan.lane = lane_at({owner, local.address.v4()});
        if (stack_.ring(route->ifindex, plan.lane) == nullptr) {
            Stack::Control control(stack_);
            plan.why.reason = stats::Reason::no_device;
            if (!control.mine || stack_.open_ring(route->ifindex, plan.lane, &plan.why.detail) == nullptr)
                return false;
        }
        stack_.take_strays();
        plan.ends = {local, to};
        plan.autobind = local.port == 0;
        return true;
    } catch (const std::exception&) {
        plan.why.reason = stats::Reason::no_memory;
        return false;  // a kernel connection is a good connection
    }
}

// 0: under way, or -errno. !ours: nothing was done, the kernel shall connect.
int TcpConnecting::start_connect(int fd, const sockaddr* addr, socklen_t len, bool& ours, Why& why) {
    ours = false;
    why = {stats::Reason::other, "not an IPv4 address", {}};
    sockaddr_in to{};
    if (len < sizeof to || len > sizeof(sockaddr_storage) || !UserMemory::readable(addr, sizeof to)) return 0;
    std::memcpy(&to, addr, sizeof to);
    Plan plan;
    int saved = errno;
    if (to.sin_family != AF_INET) return 0;
    if (!plan_connect(fd, net::Endpoint(to), plan)) {
        why = std::move(plan.why);
        errno = saved;
        return 0;
    }
    urgent::prepare();
    shadow_.learn(fd);
    options_.settle(fd);
    options_.next().path.lane = plan.lane;
    (void)follow_settings(fd, options_.next());
    icmp::start(stack_);
    transport_.release_retired();
    // The kernel does not know about connections of the library in TIME_WAIT, so a port it finds may be taken
    // for this peer.
    int error;
    for (int attempt = 0;; attempt++) {
        if (plan.autobind && (error = name_.reserve(fd, plan.ends.local)) != 0) break;
        tcp::Connection* c = tcp::Connection::create(stack_.paths(), plan.ends, options_.next());
        if (c == nullptr) {
            name_.release(fd);
            why = {stats::Reason::no_memory, {}, {}};
            errno = saved;
            return 0;
        }
        in_edges_told_ = out_edges_told_ = 0;
        pending_error_.store(0, std::memory_order_relaxed);
        options_.set_past_mss(0);
        // Everything is in place before the first packet: the outcome may come while connect() still runs.
        transport_.set(c);
        phase_.store(Phase::connecting, std::memory_order_release);
        c->set_owner(this);
        if (const Filter* filter = filter_.load(std::memory_order_acquire); filter != nullptr)
            c->filter(filter->active());
        {
            ConnectionScope here(*c);
            error = c->connect();
        }
        if (error == 0) {
            set_phase(Phase::connecting);
            decided({stats::Path::offloaded, stats::Reason::none, {}, plan.why.rule});
            describe();
            break;
        }
        let_go(fd, false);
        if (error == -EOPNOTSUPP) {
            why = {stats::Reason::no_device, "no way over an offloaded interface", {}};
            errno = saved;
            return 0;
        }
        if (!plan.autobind || error != -EADDRNOTAVAIL || attempt == kPortTries) break;
    }
    ours = true;
    errno = saved;
    return error;
}

int TcpConnecting::connect(int fd, const sockaddr* addr, socklen_t len) {
    if (phase() == Phase::fresh && shared()) leave_to_kernel(fd, leave::forked_child_has_it);
    if (phase() == Phase::kernel) return Socket::connect(fd, addr, len);
    if (state_lock_.owned_by_me())
        return failed(EALREADY);  // a signal handler inside a call that changes the state
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
        if (family == AF_UNSPEC) {
            const runtime::NoCancel whole;
            return disconnect(fd);
        }
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

    std::optional<runtime::NoCancel> whole(std::in_place);
    bool ours = false;
    Why why;
    if (const int error = start_connect(fd, addr, len, ours, why); ours) {
        held.now();
        whole.reset();
        if (error != 0) return failed(-error);
        const int r = await_connect(fd, EINPROGRESS);
        if (r == 0) errno = saved;
        return r;
    }
    // Any thread's call from now on is the kernel's. A connect() that fails at once leaves a socket that may
    // try elsewhere.
    options_.settle(fd);
    set_phase(Phase::kernel);
    decided(why.decision(stats::Path::kernel));
    held.now();
    whole.reset();
    errno = saved;
    trying_kernel_.store(true, std::memory_order_relaxed);
    const int r = Socket::connect(fd, addr, len);
    if (r == 0 || errno != runtime::kAskKernel) kernel_connected(r);
    return r;
}

void TcpConnecting::kernel_connected(int result) noexcept {
    if (!trying_kernel_.exchange(false, std::memory_order_relaxed)) return;
    const bool refused =
        result != 0 && errno != EINPROGRESS && errno != EINTR && errno != EALREADY && errno != EISCONN;
    if (refused && phase() == Phase::kernel) set_phase(Phase::fresh);
}

// Waits for the outcome. `under_way`: what a call that does not wait (so long) says.
int TcpConnecting::await_connect(int fd, int under_way) {
    tcp::Connection* c;
    {
        Pin pin(transport_);
        c = pin.connection;
        if (c == nullptr) return failed(ECONNABORTED);
        // The kernel's first answer is this one, however quick the peer's.
        if (under_way == EINPROGRESS && nonblock_.load(std::memory_order_relaxed)) return failed(under_way);
        look(*c);
        if (still_connecting(*c)) {
            if (nonblock_.load(std::memory_order_relaxed)) return failed(under_way);
            if (ConnectionScope::interrupted(*c)) return failed(under_way);
            Waiting w(options_.send_timeout());
            const int error = wait(-1, w, [&] { return !still_connecting(*c); });
            if (error == -EAGAIN) return failed(under_way);
            if (error != 0) return failed(-error);
        }
    }
    const runtime::NoCancel whole;
    state_lock_.lock();
    int error = 0;
    // Another thread may have been told meanwhile, or have let go of the connection.
    if (transport_.connection() != c) {
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
int TcpConnecting::disconnect(int fd) noexcept {
    const tcp::Connection* c = transport_.connection();
    int error = c->peek_error();
    switch (c->state()) {
        case tcp::State::close:
        case tcp::State::time_wait:
            break;
        case tcp::State::closing:
        case tcp::State::last_ack:
            if (c->unsent_bytes() != 0) error = ECONNRESET;
            break;
        default:
            error = ECONNRESET;
    }
    if (error != 0) pending_error_.store(error, std::memory_order_relaxed);
    let_go(fd, true);
    return 0;
}

void TcpConnecting::let_go(int fd, bool reset) noexcept {
    tcp::Connection* c = transport_.take_connection();
    if (c == nullptr) return;
    const net::Endpoints c_ends = c->endpoints();
    {
        ConnectionScope here(*c);
        c->close(reset);
    }
    options_.set_past_mss(c->mss());
    transport_.retire(c);
    // The address that the listener was bound to is the accepted socket's own.
    name_.leave_connection(fd, c_ends.local.port, accepted_ ? name_.listening().address : net::Address());
    accepted_ = false;
    set_phase(Phase::fresh);
    decided({});
}

}  // namespace vma::sockets
