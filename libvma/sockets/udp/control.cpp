// SPDX-License-Identifier: BSD-2-Clause
// A UDP socket's life and names: creation, bind, connect, close, and which flow rules follow from them.
#include <algorithm>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/error_watch.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/object_pool.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/udp_socket.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets {
namespace {

constinit ObjectPool<UdpSocket> g_udp_pool;

bool is_host_address(in_addr_t a) noexcept {
    std::uint32_t h = ntohl(a);
    return h != 0 && h != 0xffffffff && (h >> 28) != 0xe && (h >> 24) != 127;
}

int int_option(int fd, int level, int name, int otherwise) noexcept {
    int value = otherwise;
    socklen_t len = sizeof value;
    return os::getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

}  // namespace

UdpSocket* UdpSocket::create(Stack& stack, int fd, int type) noexcept {
    void* memory = g_udp_pool.take();
    if (memory == nullptr) return nullptr;
    auto* socket = new (memory) UdpSocket(stack, fd, type);
    socket->tally_.open(stats::Protocol::udp, fd, SOCK_DGRAM, (type & SOCK_NONBLOCK) == 0);
    statistics::joined(*socket);
    return socket;
}

namespace {
void renew_udp_pool() noexcept { g_udp_pool.reset_in_child(); }
VMA_RENEW_IN_CHILD(renew_udp_pool);
}  // namespace

UdpSocket::UdpSocket(Stack& stack, int fd, int type) noexcept : stack_(stack), born_(handing::generation()) {
    socklen_t len = sizeof cookie_;
    if (os::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie_, &len) != 0) cookie_ = 0;
    nonblock_.store((type & SOCK_NONBLOCK) != 0, std::memory_order_relaxed);
    token_ = reinterpret_cast<std::uintptr_t>(this);
    os_polls_left_ = static_cast<std::uint32_t>(config::get().rx_udp_poll_os_ratio);
}

UdpSocket::~UdpSocket() {
    while (ring::RxBuffer* b = pop(false)) b->release();
    if (member_.load(std::memory_order_relaxed)) statistics::forget_memberships(*this);
    statistics::left(*this);
}

void UdpSocket::recycle() noexcept {
    this->~UdpSocket();
    g_udp_pool.give(this);
}

void UdpSocket::bury() noexcept {
    drop_rules();
    wake_waiters();
    unref();
}

bool UdpSocket::lives_elsewhere() const noexcept { return handing::shared_since(born_); }

// The port is to be free when close() returns.
void UdpSocket::before_last_close(int fd) noexcept {
    if (carries_state() && handing::shared_since(born_)) {
        leave_to_kernel(fd, "closed here, open in another process");
        handing::complete_sets();
    }
    if (errors_watched_) runtime::unwatch_errors(fd);
}

void UdpSocket::last_fd_closed() noexcept {
    closed_.store(true, std::memory_order_release);
    // A handler that interrupted the stack's own code must not wait for the locks its thread holds: the rules
    // go with the next control operation, and meanwhile what they match is dropped.
    if (stack_.control().owned_by_me() || interrupted_library_code()) {
        if (try_ref()) stack_.add_dead(this);
        return;
    }
    {
        Stack::Control control(stack_);
        drop_rules();
    }
    wake_waiters();
}

void UdpSocket::wake_waiters() noexcept {
    if (queue_lock_.owned_by_me()) return;
    queue_lock_.lock();
    waiters_.signal_all();
    hooks_.wake_all(0);
    queue_lock_.unlock();
}

void UdpSocket::on_shadow_error(std::uint64_t token) noexcept {
    auto* socket = reinterpret_cast<UdpSocket*>(static_cast<std::uintptr_t>(token));
    if (!socket->try_ref()) return;  // its memory is always a socket's: see object_pool.h
    socket->shadow_event_.store(true, std::memory_order_release);
    socket->unref();
}

// Only of a socket that gets errors at all: connected, or with IP_RECVERR. Under the control lock.
void UdpSocket::watch_errors(int fd) noexcept {
    if (errors_watched_) return;
    errors_watched_ = true;
    runtime::watch_errors(fd, token_);
}

// ---- names and rules ----

void UdpSocket::read_names(int fd) noexcept {
    sockaddr_in a{};
    socklen_t len = sizeof a;
    local_addr_ = 0;
    local_port_ = 0;
    if (os::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &len) == 0 && a.sin_family == AF_INET) {
        local_addr_ = a.sin_addr.s_addr;
        local_port_ = a.sin_port;
    }
    len = sizeof a;
    peer_addr_ = 0;
    peer_port_ = 0;
    int saved = errno;
    if (os::getpeername(fd, reinterpret_cast<sockaddr*>(&a), &len) == 0 && a.sin_family == AF_INET) {
        peer_addr_ = a.sin_addr.s_addr;
        peer_port_ = a.sin_port;
    }
    errno = saved;
}

void UdpSocket::read_attributes(int fd) noexcept {
    SendAttributes a;
    // A connected or bound socket has a source; one bound to INADDR_ANY takes the route's.
    a.src_addr = local_addr_;
    a.src_port = local_port_;
    a.tos = static_cast<std::uint8_t>(int_option(fd, IPPROTO_IP, IP_TOS, 0));
    a.ttl = static_cast<std::uint8_t>(int_option(fd, IPPROTO_IP, IP_TTL, 64));
    a.pmtu_discover = int_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    a.mark = static_cast<std::uint32_t>(int_option(fd, SOL_SOCKET, SO_MARK, 0));
    char device[16] = "";
    socklen_t len = sizeof device;
    if (os::getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &len) == 0 && device[0] != 0)
        for (const net::Link& link : stack_.view().links())
            if (link.name == device) a.oif = link.ifindex;
    std::uint64_t limit = static_cast<std::uint64_t>(int_option(fd, SOL_SOCKET, SO_RCVBUF, 212992));
    queue_limit_.store(std::max(limit, static_cast<std::uint64_t>(config::get().rx_bytes_min)));
    reuseport_ = int_option(fd, SOL_SOCKET, SO_REUSEPORT, 0) != 0;

    send_lock_.lock();
    attributes_ = a;
    attributes_version_.fetch_add(1, std::memory_order_release);
    send_lock_.unlock();
}

std::vector<UdpSocket::Rule> UdpSocket::wanted_rules(bool only_route, Why& why) {
    std::vector<Rule> wanted;
    why.reason = stats::Reason::not_bound;
    waits_for_device_ = false;
    if (left_ || closed_ || local_port_ == 0) return wanted;
    if (rules_.empty() && handing::shared_since(born_)) {
        why = {stats::Reason::process, "a forked child has it, too", {}};
        return wanted;
    }
    auto allowed = [&](in_addr_t addr) {
        const config::Decision decision =
            config::decide(config::Role::udp_receiver, {addr, local_port_}, nullptr);
        if (decision.os()) why = {stats::Reason::rule, {}, {}};
        why.rule = decision.text();
        return !decision.os();
    };
    auto ring_of = [&](int ifindex) {
        ring::Ring* ring = stack_.rings().get(ifindex, &why.detail);
        if (ring == nullptr) {
            why.reason = stats::Reason::no_device;
            waits_for_device_ |= stack_.rings().held(ifindex);
        } else {
            // Notes it for senders: the first one would need the control lock, and the kernel sent if it was
            // held.
            stack_.open_ring(ifindex);
        }
        return ring;
    };
    verbs::FlowSpec spec{IPPROTO_UDP, 0, local_port_, peer_addr_, peer_port_};

    if (peer_addr_ != 0) {
        // Connected: one peer, one local address, the interface of the route there.
        config::Endpoint local{local_addr_, local_port_}, peer{peer_addr_, peer_port_};
        if (auto decision = config::decide(config::Role::udp_connect, peer, &local); decision.os()) {
            why = {stats::Reason::rule, {}, decision.text()};
            decide_receive(why);
            left_ = true;
            tally_.decided(stats::Direction::tx, why.decision(stats::Path::kernel));
            return wanted;
        }
        why.reason = statistics::reason_of_address(is_host_address(local_addr_) ? peer_addr_ : local_addr_);
        if (!is_host_address(local_addr_) || !is_host_address(peer_addr_) || !allowed(local_addr_))
            return wanted;
        net::RouteQuery query{peer_addr_,      local_addr_, attributes_.oif, attributes_.mark,
                              attributes_.tos, IPPROTO_UDP, local_port_,     peer_port_};
        auto route = stack_.view().route(query);
        why.reason = route ? statistics::reason_of_route(*route) : stats::Reason::no_route;
        if (why.reason != stats::Reason::none) return wanted;
        spec.dst_addr = local_addr_;
        if (ring::Ring* ring = ring_of(route->ifindex)) wanted.push_back({ring, spec});
        // Answers may come in through the interface that owns the address, when that is another one and
        // rp_filter allows it.
        int owner = 0;
        if (stack_.view().is_local(local_addr_, &owner) && owner != route->ifindex &&
            stack_.view().sources(owner).accepts(peer_addr_))
            if (ring::Ring* ring = ring_of(owner)) wanted.push_back({ring, spec});
        return wanted;
    }
    why.reason = statistics::reason_of_address(local_addr_);
    if (why.reason == stats::Reason::none || local_addr_ == 0) why.reason = stats::Reason::foreign_address;
    for (const net::LocalAddress& a : stack_.view().addresses()) {
        if (!stack_.may_serve(a, local_addr_, attributes_.oif, why)) continue;
        if (!allowed(a.address)) continue;
        ring::Ring* ring = only_route ? stack_.rings().find(a.ifindex) : ring_of(a.ifindex);
        if (ring == nullptr) continue;
        spec.dst_addr = a.address;
        wanted.push_back({ring, spec});
    }
    return wanted;
}

void UdpSocket::set_rules(std::vector<Rule> wanted, Why& why) noexcept {
    auto same = [](const Rule& a, const Rule& b) { return a.ring == b.ring && a.spec == b.spec; };
    auto has = [&](const std::vector<Rule>& list, const Rule& r) {
        return std::any_of(list.begin(), list.end(), [&](const Rule& x) { return same(x, r); });
    };
    // What was announced to the old rings is announced anew below.
    const std::int64_t announced = std::exchange(announced_, 0);
    if (announced != 0)
        for (unsigned i = 0; i < ring_count_; i++)
            rings_[i].load(std::memory_order_relaxed)->expect(-announced);
    // New rules first, so that no datagram of a kept peer takes the way through the kernel in between.
    std::vector<Rule> now;
    try {
        now.reserve(wanted.size());  // what is attached is noted
        for (Rule& r : wanted) {
            if (has(rules_, r)) {
                now.push_back(r);
            } else if (auto added = r.ring->attach(r.spec, this, share()); added) {
                now.push_back(r);
            } else {
                why = {stats::Reason::no_room, added.error().what, {}};
                log::once(log::Level::warn, "a UDP flow on {} is served by the kernel: {}",
                          r.ring->attr().name, added.error().what);
            }
        }
    } catch (...) {
        why.reason = stats::Reason::no_memory;
        log::once(log::Level::warn, "a UDP socket is served by the kernel: out of memory");
    }
    for (Rule& r : rules_)
        if (!has(now, r)) r.ring->detach(r.spec, this);
    rules_ = std::move(now);

    unsigned n = 0;
    bool moved = false;
    for (Rule& r : rules_) {
        bool known = false;
        for (unsigned i = 0; i < n; i++) known |= rings_[i].load(std::memory_order_relaxed) == r.ring;
        if (known || n == kMaxRings) continue;
        moved |= rings_[n++].exchange(r.ring, std::memory_order_relaxed) != r.ring;
    }
    moved |= ring_count_.exchange(n, std::memory_order_acq_rel) != n;
    update_control_wanted();
    announce_queue();
    if (moved)
        wake_waiters();  // threads that wait must wait on these rings, and no longer on the kernel's side
                         // alone
}

void UdpSocket::announce_queue() noexcept {
    // The kernel charges a small datagram about this much of SO_RCVBUF.
    constexpr std::uint64_t kKernelCost = 768;
    const auto now = static_cast<std::int64_t>(ring_count_ == 0 ? 0 : queue_limit_.load() / kKernelCost);
    if (now == announced_) return;
    for (unsigned i = 0; i < ring_count_; i++)
        rings_[i].load(std::memory_order_relaxed)->expect(now - announced_);
    announced_ = now;
}

void UdpSocket::drop_rules() noexcept {
    if (wildcard_listed_) stack_.remove_wildcard(this);
    wildcard_listed_ = false;
    Why why;
    set_rules({}, why);
}

void UdpSocket::update_rules(bool only_route) noexcept {
    try {
        Why why;
        std::vector<Rule> wanted = wanted_rules(only_route, why);
        set_rules(std::move(wanted), why);
        decide_receive(why);
        bool wildcard = !closed_ && !left_ && local_port_ != 0 &&
                        ((local_addr_ == 0 && peer_addr_ == 0) || waits_for_device_);
        if (wildcard && !wildcard_listed_) {
            stack_.add_wildcard(this);
            wildcard_listed_ = true;
        } else if (!wildcard && wildcard_listed_) {
            stack_.remove_wildcard(this);
            wildcard_listed_ = false;
        }
    } catch (...) {
        log::once(log::Level::warn, "a UDP socket is served by the kernel: out of memory");
    }
}

// A socket that is left to the kernel knows why already.
void UdpSocket::decide_receive(const Why& why) noexcept {
    if (left_ || closed_) return;
    if (ring_count_ != 0)
        tally_.decided(stats::Direction::rx, {stats::Path::offloaded, stats::Reason::none, {}, why.rule});
    else
        tally_.decided(stats::Direction::rx,
                       why.decision(why.reason == stats::Reason::not_bound ? stats::Path::undecided
                                                                           : stats::Path::kernel));
}

void UdpSocket::refresh_rules() noexcept { update_rules(!bound_explicitly_); }

// ---- calls ----

int UdpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    int r = os::bind(fd, addr, len);
    if (r != 0 || left_) return r;
    int saved = errno;
    Stack::Control control(stack_);
    if (control.mine) {
        bound_explicitly_ = true;
        read_names(fd);
        read_attributes(fd);
        update_rules(false);
    }
    publish();
    errno = saved;
    return r;
}

int UdpSocket::connect(int fd, const sockaddr* addr, socklen_t len) {
    flush();
    int r = os::connect(fd, addr, len);
    if (left_) return r;
    int saved = errno;
    Stack::Control control(stack_);
    if (control.mine) {
        read_names(fd);
        read_attributes(fd);
        update_rules(false);
        if (ring_count_ != 0) watch_errors(fd);
    }
    publish();
    errno = saved;
    return r;
}

void UdpSocket::after_autobind(int fd) noexcept {
    Stack::Control control(stack_);
    if (!control.mine || local_port_ != 0) return;
    read_names(fd);
    read_attributes(fd);
    // Only rings that exist, and the one of this route, which resolve() opens: a client need not attach
    // everywhere.
    update_rules(true);
    publish();
}

int UdpSocket::shutdown(int fd, int how) {
    flush();
    int r = os::shutdown(fd, how);
    int saved = errno;
    // Linux marks an unconnected UDP socket as shut down as well, while it answers ENOTCONN.
    if (r == 0 || saved == ENOTCONN) {
        if (how == SHUT_WR || how == SHUT_RDWR) set_kernel_tx(shut, true), show_kernel_tx();
        if (how == SHUT_RD || how == SHUT_RDWR) {
            rx_shut_.store(true, std::memory_order_release);
            wake_waiters();
        }
    }
    errno = saved;
    return r;
}

void UdpSocket::leave_to_kernel(int, const char* why) noexcept {
    int saved = errno;
    if (left_.exchange(true)) return;
    log::once(log::Level::info, "a UDP socket is left to the kernel: {}", why);
    const stats::Reason reason = statistics::reason_of(why);
    const stats::Decision decision{stats::Path::kernel, reason, why};
    tally_.decided(stats::Direction::rx, decision);
    tally_.decided(stats::Direction::tx, decision);
    flush();
    {
        Stack::Control control(stack_);
        if (control.mine) drop_rules();
    }
    // Others than our receive calls will want what has come already.
    if (reason != stats::Reason::option && reason != stats::Reason::flags) give_queue_to_kernel();
    errno = saved;
}

// The rules go with the program; and when exec fails, the socket goes on as it was.
void UdpSocket::before_exec(int fd) noexcept {
    if (handing::shared_since(born_)) return Socket::before_exec(fd);
    const int saved = errno;
    give_queue_to_kernel();
    errno = saved;
}

// What is in the queue of a socket that nobody else has is for nobody.
void UdpSocket::before_process_end(int fd) noexcept {
    if (handing::shared_since(born_)) leave_to_kernel(fd, "the program ends");
}

// The ring is not to be had any more, so its rules go, and destinations are looked up again.
void UdpSocket::ring_failed(int fd, ring::Ring&) noexcept {
    if (left_ || closed_) return;
    int saved = errno;
    Stack::Control control(stack_);
    if (control.mine) {
        read_attributes(fd);
        update_rules(!bound_explicitly_);
    }
    errno = saved;
}

// ---- statistics ----

void UdpSocket::publish() noexcept {
    stats::SocketBlock* block = tally_.block();
    if (block == nullptr || queue_lock_.owned_by_me()) return;
    queue_lock_.lock();
    stats::store(block->rx_queue_packets, queued_.load(std::memory_order_relaxed));
    stats::store(block->rx_queue_bytes, queued_payload());
    queue_lock_.unlock();
    stats::store(block->rx_queue_limit, queue_limit_.load(std::memory_order_relaxed));
    const int fd = statistics::number_of(*this, block->fd);
    stats::Describe guard(block->sequence);
    if (!guard) return;
    statistics::put_number(*block, fd);
    block->blocking = !nonblock_.load(std::memory_order_relaxed);
    statistics::put_address(block->local, local_addr_, local_port_);
    statistics::put_address(block->peer, peer_addr_, peer_port_);
    if (closed_.load(std::memory_order_relaxed)) return;  // its rules are gone; the report tells where it was
    const bool any = ring_count_.load(std::memory_order_acquire) != 0;
    statistics::put_ring(*block, any ? rings_[0].load(std::memory_order_relaxed) : nullptr,
                         stack_.present_view());
}

void UdpSocket::zero_counters() noexcept {
    stats::SocketBlock* block = tally_.block();
    if (block == nullptr) return;
    queue_lock_.lock();
    stats::store(block->rx_offload.packets, 0);
    stats::store(block->rx_offload.bytes, 0);
    stats::store(block->rx_drop_packets, 0);
    stats::store(block->rx_drop_bytes, 0);
    stats::store(block->rx_queue_max_packets, queued_.load(std::memory_order_relaxed));
    stats::store(block->rx_queue_max_bytes, queued_payload());
    queue_lock_.unlock();
    send_lock_.lock();
    stats::store(block->tx_offload.packets, 0);
    stats::store(block->tx_offload.bytes, 0);
    send_lock_.unlock();
}

}  // namespace vma::sockets
