// SPDX-License-Identifier: BSD-2-Clause
// A listening TCP socket: its rules, listen(), and what becomes of it in a fork or when it ends.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/privileges.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/listening.h"
#include "libvma/tcp/timers/background.h"

namespace vma::sockets {
namespace {

unsigned clamped(int backlog) noexcept { return std::min(static_cast<unsigned>(backlog), somaxconn()); }

}  // namespace

// ---- rules ----

std::vector<FlowRules::Rule> TcpListening::wanted_rules(Why& why) {
    std::vector<FlowRules::Rule> wanted;
    why.reason = stats::Reason::foreign_address;
    if (closed() || transport_.listener() == nullptr) return wanted;
    if (!privileges::tcp_may_be_ours()) {
        why = {stats::Reason::process, "the program has given up CAP_NET_ADMIN", {}};
        return wanted;
    }
    for (const net::LocalAddress& a : stack_.view().addresses()) {
        if (!stack_.may_serve(a, name_.listening().address, options_.next().path.oif, why)) continue;
        const config::Verdict decision =
            config::decide(config::Role::tcp_server, {a.address, name_.listening().port}, nullptr);
        if (decision.os()) {
            why = {stats::Reason::rule, {}, decision.text()};
            continue;
        }
        why.rule = decision.text();
        ring::Ring* ring = stack_.open_ring(a.ifindex, lane_at(a), &why.detail);
        if (ring == nullptr) {
            why.reason = stats::Reason::no_device;
            continue;
        }
        stack_.take_strays();
        const verbs::FlowSpec spec{IPPROTO_TCP, a.address, name_.listening().port, 0, 0};
        wanted.push_back({&ring->home_of(spec), spec});
    }
    return wanted;
}

void TcpListening::set_rules(std::vector<FlowRules::Rule> wanted, Why& why) noexcept {
    const ring::Share share = !options_.reuseport()                ? ring::Share::latest
                              : name_.listening().address.is_any() ? ring::Share::spread_any
                                                                   : ring::Share::spread;
    FlowRules::Target target{transport_.listener(), share, "a TCP listener"};
    // The kernel completes handshakes while the program does something else; here the engine has to.
    target.attached = [](ring::Ring& ring) { tcp::Background::instance().started(ring); };
    target.detached = [](ring::Ring& ring) { tcp::Background::instance().stopped(ring); };
    if (rules_.set(std::move(wanted), target, why)) watchers_.wake(0);
}

void TcpListening::drop_rules() noexcept {
    rules_.unfollow(stack_, this);
    Why why;
    set_rules({}, why);
}

void TcpListening::add_rules() noexcept {
    refresh_rules();
    try {
        rules_.follow(stack_, this);
    } catch (...) {
        // it will not follow changes of addresses
    }
}

void TcpListening::end_listener() noexcept {
    drop_rules();
    tcp::Listener* listener = transport_.listener();
    listener->set_owner(nullptr);
    listener->close();
}

void TcpListening::refresh_rules() noexcept {
    try {
        Why why;
        std::vector<FlowRules::Rule> wanted = wanted_rules(why);
        set_rules(std::move(wanted), why);
        if (rules_.any())
            decided({stats::Path::offloaded, stats::Reason::none, {}, why.rule});
        else
            decided(why.decision(stats::Path::kernel));
    } catch (...) {
        log::once(log::Level::warn, "a TCP listener is served by the kernel: out of memory");
    }
}

// ---- readiness ----

std::uint32_t TcpListening::ready_events() const noexcept {
    Pin pin(transport_);
    if (pin.connection != nullptr) return pin.connection->events_asked();
    if (pin.listener != nullptr) {
        if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
        return pin.listener->pending() != 0 ? EPOLLIN | EPOLLRDNORM : 0u;
    }
    return pending_error_.load(std::memory_order_relaxed) != 0 ? static_cast<std::uint32_t>(EPOLLERR) : 0u;
}

// ---- listen ----

// What connections get that come from now on.
void TcpListening::follow(int fd, tcp::Listener& listener) noexcept {
    if (!state_lock_.try_lock()) return;  // the next accept() does it
    if (follow_settings(fd, options_.next()))
        listener.change([fd](tcp::Options& o) { (void)follow_settings(fd, o); });
    state_lock_.unlock();
}

int TcpListening::listen(int fd, int backlog) {
    if (phase() == Phase::fresh && shared()) leave_to_kernel(fd, leave::forked_child_has_it);
    if (phase() == Phase::kernel) return os::listen(fd, backlog);
    if (state_lock_.owned_by_me() || stack_.control().owned_by_me())
        return failed(EINVAL);  // in a signal handler
    const std::lock_guard guard(state_lock_);
    if (has_connection()) return failed(EINVAL);
    if (phase() == Phase::listening) {
        const int r = os::listen(fd, backlog);
        if (r == 0) transport_.listener()->set_backlog(clamped(backlog));
        return r;
    }
    if (const std::string* rule = config::rules().all_os(config::Role::tcp_server)) {
        log::once(log::Level::info, "TCP listeners are served by the kernel: {}", *rule);
        const int r = os::listen(fd, backlog);
        if (r == 0) set_phase(Phase::kernel);
        if (r == 0) decided({stats::Path::kernel, stats::Reason::rule, {}, *rule});
        return r;
    }
    int saved = errno;
    net::Endpoint name = shadow::name_of(fd);
    if (name.port == 0) {
        // listen() of an unbound socket takes a port of its own choice; the rules have to know it before.
        if (shadow::bind_to(fd, name) == 0) name = shadow::name_of(fd);
        if (name.port == 0) return os::listen(fd, backlog);
    }
    if (!name.address.is_any() && !name.address.is_unicast()) {
        decided({stats::Path::kernel, statistics::reason_of_address(name.address)});
        return os::listen(fd, backlog);
    }
    icmp::start(stack_);
    (void)follow_settings(fd, options_.next());
    tcp::Listener* listener =
        tcp::Listener::create(stack_.paths(), name.port, options_.next(), clamped(backlog));
    if (listener == nullptr) return os::listen(fd, backlog);

    urgent::prepare();
    transport_.release_retired();
    shadow_.learn(fd);
    name_.set_listening(name);
    {
        Stack::Control control(stack_);
        transport_.set(listener);
        add_rules();
    }
    used_.store(false, std::memory_order_relaxed);
    suspended_.store(false, std::memory_order_relaxed);
    const int r = os::listen(fd, backlog);
    if (r != 0) {
        const int error = errno;
        stop_listening();
        return failed(error);
    }
    phase_.store(Phase::listening, std::memory_order_release);
    listener->set_owner(this);
    set_phase(Phase::listening);
    describe();
    errno = saved;
    return 0;
}

void TcpListening::stop_listening() noexcept {
    const ErrnoKept kept;
    tcp::Listener* listener = transport_.listener();
    if (listener != nullptr) {
        {
            Stack::Control control(stack_);
            end_listener();
        }
        transport_.retire(transport_.take_listener());
    }
    set_phase(Phase::fresh);
    decided({});
}

// ---- a listener whose connections come to the kernel ----

void TcpListening::let_handshakes_end() noexcept {
    Pin pin(transport_);
    if (pin.listener != nullptr && rules_.any())
        placeholders::let_handshakes_end(*pin.listener, [&] { progress(pin); });
}

void TcpListening::suspend_for_good() noexcept {
    suspended_.store(false, std::memory_order_relaxed);
    Stack::Control control(stack_);
    if (control.mine)
        drop_rules();
    else
        transport_.listener()->leave_new_to_kernel(false);
}

// Puts the connections of the accept queue where every process that has the listener can accept them.
void TcpListening::offer_waiting() noexcept {
    Pin pin(transport_);
    while (pin.listener != nullptr && pin.listener->pending() != 0) {
        placeholders::Placeholder placeholder(name_.listening());
        if (!placeholder) return;
        const int fd = accept_ours(*pin.listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        InternalFd connection;
        if (auto socket = g_fds.socket(fd)) {
            socket->leave_to_kernel(fd, leave::forked_child_has_listener);
            if (!socket->offloaded()) connection = InternalFd::copy_of(fd);
        }
        g_fds.remove(fd);
        os::close(fd);
        if (connection) placeholder.stands_for(std::move(connection));
    }
}

// A listener that this process has not used yet is probably for its children (a server with workers). What
// arrived here in the time until a child comes for it could not be accepted; so until then the kernel
// takes connections.
void TcpListening::before_fork(int) noexcept {
    if (phase() != Phase::listening || used_.load(std::memory_order_relaxed) || interrupted_own_code())
        return;
    {
        Pin pin(transport_);
        let_handshakes_end();
        Stack::Control control(stack_);
        if (!control.mine || !rules_.follows()) {
            if (pin.listener != nullptr) pin.listener->leave_new_to_kernel(false);
            return;
        }
        suspended_.store(true, std::memory_order_relaxed);
        drop_rules();
        decided({stats::Path::kernel, stats::Reason::process,
                 "a forked child may accept; this process has not yet"});
    }
    offer_waiting();
}

// This process accepts itself after all.
void TcpListening::resume() noexcept {
    if (interrupted_own_code()) return;
    const std::lock_guard guard(state_lock_);
    if (phase() == Phase::listening && suspended_.exchange(false, std::memory_order_relaxed)) {
        Stack::Control control(stack_);
        transport_.listener()->leave_new_to_kernel(false);
        if (control.mine) add_rules();
    }
}

// ---- close ----

bool TcpListening::end_with_last_number(int fd) noexcept {
    if (interrupted_own_code()) {
        bury_later();
        return false;
    }
    {
        Stack::Control control(stack_);
        end_listener();
    }
    // Another process that has the listener keeps its port, too, and needs it listening.
    if (shadow_.is(fd) && !shared()) keep_listening_port(fd);
    return true;
}

// The port stays taken while connections live that came in there. A socket that stops listening keeps a port
// that bind() chose; another has to be bound again.
void TcpListening::keep_listening_port(int fd) noexcept {
    tcp::Listener* listener = transport_.listener();
    if (!listener->has_connections()) return;
    const ErrnoKept kept;
    const in_port_t port = shadow::name_of(fd).port;
    if (port != 0 && os::shutdown(fd, SHUT_RDWR) == 0) {
        if (shadow::name_of(fd).port != 0 || shadow::bind_to(fd, {name_.listening().address, port}) == 0)
            listener->hold_port(copy_shadow(fd));
    }
}

void TcpListening::bury() noexcept {
    end_listener();
    watchers_.wake(0);
    unref();
}

}  // namespace vma::sockets
