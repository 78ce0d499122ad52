// SPDX-License-Identifier: BSD-2-Clause
// A listening TCP socket: its rules, and accept() from two queues.
//
// The shadow listens as well, for loopback and all interfaces that are not ours. Rules are in place before it
// does: a SYN that the kernel had answered in between would be a connection of the kernel's whose packets are
// steered to us.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/privileges.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/defaults.h"
#include "libvma/sockets/tcp/wait.h"
#include "libvma/tcp/timers/engine.h"

namespace vma::sockets {
namespace {

// An accept() in so many looks at the kernel's queue first, so that neither queue waits for the other to run
// dry.
constexpr unsigned kKernelTurn = 16;

unsigned clamped(int backlog) noexcept { return std::min(static_cast<unsigned>(backlog), somaxconn()); }

}  // namespace

// ---- rules ----

std::vector<TcpSocket::Rule> TcpSocket::wanted_rules(Why& why) {
    std::vector<Rule> wanted;
    why.reason = stats::Reason::foreign_address;
    if (closed_.load(std::memory_order_acquire) || listener_.load(std::memory_order_acquire) == nullptr)
        return wanted;
    if (!privileges::tcp_may_be_ours()) {
        why = {stats::Reason::process, "the program has given up CAP_NET_ADMIN", {}};
        return wanted;
    }
    for (const net::LocalAddress& a : stack_.view().addresses()) {
        if (!stack_.may_serve(a, listen_addr_, options_.path.oif, why)) continue;
        const config::Decision decision =
            config::decide(config::Role::tcp_server, {a.address, listen_port_}, nullptr);
        if (decision.os()) {
            why = {stats::Reason::rule, {}, decision.text()};
            continue;
        }
        why.rule = decision.text();
        ring::Ring* ring = stack_.open_ring(a.ifindex, &why.detail);
        if (ring == nullptr) {
            why.reason = stats::Reason::no_device;
            continue;
        }
        wanted.push_back({ring, {IPPROTO_TCP, a.address, listen_port_, 0, 0}});
    }
    return wanted;
}

void TcpSocket::set_rules(std::vector<Rule> wanted, Why& why) noexcept {
    tcp::Listener* listener = listener_.load(std::memory_order_acquire);
    auto has = [](const std::vector<Rule>& list, const Rule& r) {
        return std::any_of(list.begin(), list.end(),
                           [&](const Rule& x) { return x.ring == r.ring && x.spec == r.spec; });
    };
    const ring::Share share = !reuseport_         ? ring::Share::latest
                              : listen_addr_ == 0 ? ring::Share::spread_any
                                                  : ring::Share::spread;
    std::vector<Rule> now;
    try {
        now.reserve(wanted.size());  // what is attached is noted
        for (const Rule& r : wanted) {
            if (has(rules_, r)) {
                now.push_back(r);
            } else if (auto added = r.ring->attach(r.spec, listener, share); added) {
                // The kernel completes handshakes while the program does something else; here the engine has
                // to.
                tcp::Engine::instance().started(*r.ring);
                now.push_back(r);
            } else {
                why = {stats::Reason::no_room, added.error().what, {}};
                log::once(log::Level::warn, "a TCP listener on {} is served by the kernel: {}",
                          r.ring->attr().name, added.error().what);
            }
        }
    } catch (...) {
        log::once(log::Level::warn, "a TCP listener is served by the kernel: out of memory");
    }
    for (const Rule& r : rules_) {
        if (has(now, r)) continue;
        r.ring->detach(r.spec, listener);
        tcp::Engine::instance().stopped(*r.ring);
    }
    rules_ = std::move(now);

    unsigned n = 0;
    for (const Rule& r : rules_) {
        bool known = false;
        for (unsigned i = 0; i < n; i++) known |= rings_[i].load(std::memory_order_relaxed) == r.ring;
        if (!known && n < kMaxRings) rings_[n++].store(r.ring, std::memory_order_relaxed);
    }
    if (ring_count_.exchange(n, std::memory_order_acq_rel) != n) tell_waiters();
}

void TcpSocket::drop_rules() noexcept {
    if (listed_) stack_.remove_wildcard(this);
    listed_ = false;
    Why why;
    set_rules({}, why);
}

void TcpSocket::add_rules() noexcept {
    refresh_rules();
    if (listed_) return;
    try {
        stack_.add_wildcard(this);
        listed_ = true;
    } catch (...) {
        // it will not follow changes of addresses
    }
}

void TcpSocket::end_listener() noexcept {
    drop_rules();
    tcp::Listener* listener = listener_.load(std::memory_order_acquire);
    listener->set_owner(nullptr);
    listener->close();
}

void TcpSocket::refresh_rules() noexcept {
    try {
        Why why;
        std::vector<Rule> wanted = wanted_rules(why);
        set_rules(std::move(wanted), why);
        if (ring_count_.load(std::memory_order_relaxed) != 0)
            decided({stats::Path::offloaded, stats::Reason::none, {}, why.rule});
        else
            decided(why.decision(stats::Path::kernel));
    } catch (...) {
        log::once(log::Level::warn, "a TCP listener is served by the kernel: out of memory");
    }
}

// ---- listen ----

int TcpSocket::listen(int fd, int backlog) {
    if (phase() == Phase::fresh && handing::shared_since(born_))
        leave_to_kernel(fd, "a forked child has it, too");
    if (phase() == Phase::kernel) return os::listen(fd, backlog);
    if (state_lock_.owned_by_me() || stack_.control().owned_by_me())
        return failed(EINVAL);  // in a signal handler
    state_lock_.lock();
    struct Unlock {
        Lock& lock;
        ~Unlock() { lock.unlock(); }
    } unlock{state_lock_};
    if (has_connection()) return failed(EINVAL);
    if (phase() == Phase::listening) {
        const int r = os::listen(fd, backlog);
        if (r == 0) listener_.load(std::memory_order_relaxed)->set_backlog(clamped(backlog));
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
    sockaddr_in name{};
    socklen_t len = sizeof name;
    auto* raw = reinterpret_cast<sockaddr*>(&name);
    if (os::getsockname(fd, raw, &len) != 0 || name.sin_family != AF_INET) return os::listen(fd, backlog);
    if (name.sin_port == 0) {
        // listen() of an unbound socket takes a port of its own choice; the rules have to know it before.
        name.sin_family = AF_INET;
        if (os::bind(fd, raw, sizeof name) != 0 || os::getsockname(fd, raw, &len) != 0 || name.sin_port == 0)
            return os::listen(fd, backlog);
    }
    if (name.sin_addr.s_addr != 0 && !is_unicast(name.sin_addr.s_addr)) {
        decided({stats::Path::kernel, statistics::reason_of_address(name.sin_addr.s_addr)});
        return os::listen(fd, backlog);
    }
    icmp::start(stack_);
    tcp::Listener* listener =
        tcp::Listener::create(stack_.paths(), name.sin_port, options_, clamped(backlog));
    if (listener == nullptr) return os::listen(fd, backlog);

    urgent::prepare();
    release_retired(0);
    learn_cookie(fd);
    listen_addr_ = name.sin_addr.s_addr;
    listen_port_ = name.sin_port;
    {
        Stack::Control control(stack_);
        listener_.store(listener, std::memory_order_seq_cst);
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

void TcpSocket::stop_listening() noexcept {
    int saved = errno;
    tcp::Listener* listener = listener_.load(std::memory_order_relaxed);
    if (listener != nullptr) {
        {
            Stack::Control control(stack_);
            end_listener();
        }
        listener_.store(nullptr, std::memory_order_seq_cst);
        retire(nullptr, listener);
        release_retired(0);
    }
    set_phase(Phase::fresh);
    decided({});
    errno = saved;
}

// ---- accept ----

bool TcpSocket::kernel_has_connection(int fd) noexcept {
    pollfd p{fd, POLLIN, 0};
    timespec now{};
    return os::raw_syscall(SYS_ppoll, &p, 1, &now, nullptr, sizeof(std::uint64_t)) > 0;
}

// Never waits. O_NONBLOCK of the shadow is the program's, so a blocking listener is asked first; one thread
// at a time, for two could see the same connection and one would wait for the next.
int TcpSocket::accept_from_kernel(int fd, sockaddr* addr, socklen_t* len, int flags) {
    const runtime::NoCancel whole;
    const socklen_t room = placeholders::possible() ? placeholders::room_of(addr, len) : 0;
    int accepted = -1;
    if (nonblock_.load(std::memory_order_relaxed)) {
        accepted = os::accept4(fd, addr, len, flags);
    } else {
        if (!kernel_accept_lock_.try_lock()) return failed(EAGAIN);
        struct Unlock {
            Lock& lock;
            ~Unlock() { lock.unlock(); }
        } unlock{kernel_accept_lock_};
        if (!kernel_has_connection(fd)) return failed(EAGAIN);
        accepted = os::accept4(fd, addr, len, flags);
    }
    if (accepted < 0) return accepted;
    g_fds.drop_stale(accepted);
    return placeholders::possible() ? placeholders::accepted(accepted, addr, len, room, flags) : accepted;
}

// Puts those who wait in our queue where every process that has the listener can accept them.
void TcpSocket::offer_waiting() noexcept {
    Use use(*this);
    while (use.listener != nullptr && use.listener->pending() != 0) {
        placeholders::Placeholder placeholder(listen_addr_, listen_port_);
        if (!placeholder) return;
        const int fd = accept_ours(*use.listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) return;
        InternalFd connection;
        if (auto socket = g_fds.socket(fd)) {
            socket->leave_to_kernel(fd, "it waited at a listener that a forked child has, too");
            if (!socket->offloaded()) connection = InternalFd::copy_of(fd);
        }
        g_fds.remove(fd);
        os::close(fd);
        if (connection) placeholder.stands_for(std::move(connection));
    }
}

// EAGAIN: another thread was faster.
int TcpSocket::accept_ours(tcp::Listener& listener, sockaddr* addr, socklen_t* len, int flags) {
    const runtime::NoCancel whole;
    // Descriptor and memory first: where they are lacking, the connection stays in the queue.
    const int fd = os::socket(AF_INET, SOCK_STREAM | flags, 0);
    if (fd < 0) return -1;
    g_fds.drop_stale(fd);
    void* memory = take_memory();
    tcp::Connection* c = memory == nullptr ? nullptr : listener.accept();
    if (c == nullptr) {
        if (memory != nullptr) give_memory(memory);
        os::close(fd);
        return failed(memory == nullptr ? ENOMEM : EAGAIN);
    }
    auto* socket = new (memory) TcpSocket(stack_, flags);
    socket->accepted_ = true;
    socket->listen_addr_ = listen_addr_;
    socket->verified_at_.store(clock::ticks(), std::memory_order_relaxed);
    socket->connection_.store(c, std::memory_order_relaxed);
    socket->phase_.store(Phase::connected, std::memory_order_release);
    socket->rcvtimeo_ns_.store(rcvtimeo_ns_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    socket->sndtimeo_ns_.store(sndtimeo_ns_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    socket->receive_lowat_.store(receive_lowat_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    socket->linger_s_.store(linger_s_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    socket->report_inq_.store(report_inq_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    if (!state_lock_.owned_by_me()) {
        state_lock_.lock();
        socket->inherited_ = set_options_;
        state_lock_.unlock();
        socket->has_inherited_.store(socket->inherited_ != nullptr, std::memory_order_relaxed);
    }
    socket->tally_.open(stats::Protocol::tcp, fd, SOCK_STREAM, (flags & SOCK_NONBLOCK) == 0);
    const stats::SocketBlock* listeners = tally_.block();
    socket->decided({stats::Path::offloaded,
                     stats::Reason::none,
                     {},
                     listeners != nullptr ? stats::text_of(listeners->rule) : std::string_view{}});
    socket->describe();
    statistics::joined(*socket);
    c->set_owner(socket);
    const bool inserted = g_fds.insert(fd, socket);
    if (inserted && c->urgent_seen()) urgent::ring_bell();
    if (inserted && is_standard_stream(fd)) socket->leave_to_kernel(fd, "a standard stream");
    socket->unref();
    if (!inserted) {
        c->close(true);
        os::close(fd);
        return failed(ENFILE);
    }
    if (addr != nullptr) {
        const tcp::Endpoints& ends = c->endpoints();
        if (copy_name(ends.remote_addr, ends.remote_port, addr, len) != 0) {
            const int error = errno;  // the kernel closes the connection, too
            g_fds.remove(fd);
            os::close(fd);
            return failed(error);
        }
    }
    return fd;
}

int TcpSocket::accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    if (phase() != Phase::listening || (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != 0) {
        const int accepted = Socket::accept4(fd, addr, len, flags);
        if (accepted >= 0) g_fds.drop_stale(accepted);
        return accepted;
    }
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
    if (suspended_.load(std::memory_order_relaxed)) resume();
    Waiting w(rcvtimeo_ns_.load(std::memory_order_relaxed));
    const unsigned ratio = static_cast<unsigned>(config::get().rx_udp_poll_os_ratio);
    int saved = errno;
    for (;;) {
        if (phase() != Phase::listening) return Socket::accept4(fd, addr, len, flags);  // EINVAL
        {
            Use use(*this);
            if (use.listener == nullptr) continue;
            if (use.listener->pending() == 0) {
                flush();
                progress();
            }
            const bool kernel_first =
                accepts_.fetch_add(1, std::memory_order_relaxed) % kKernelTurn == kKernelTurn - 1;
            if (use.listener->pending() != 0 && !kernel_first) {
                const int accepted = accept_ours(*use.listener, addr, len, flags);
                if (accepted >= 0) errno = saved;
                if (accepted >= 0 || errno != EAGAIN) return accepted;
            }
            const int accepted = accept_from_kernel(fd, addr, len, flags);
            if (accepted >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return accepted;
            if (use.listener->pending() != 0) continue;
            if (nonblock_.load(std::memory_order_relaxed) || interrupted_own_code()) return failed(EAGAIN);
        }
        const int error = wait(fd, w, [&] {
            if (phase() != Phase::listening) return true;
            Use use(*this);
            if (use.listener == nullptr || use.listener->pending() != 0) return true;
            return (ratio == 0 ? w.spins == 0 : w.spins % ratio == 0) && kernel_has_connection(fd);
        });
        if (error == EAGAIN) return failed(EAGAIN);
        if (error != 0) return failed(error);
        errno = saved;
    }
}

}  // namespace vma::sockets
