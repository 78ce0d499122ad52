// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/stack.h"

#include <limits.h>

#include <atomic>
#include <mutex>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/fatal_signals.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signals.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handing.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/statistics.h"
#include "libvma/sockets/tcp_socket.h"
#include "libvma/sockets/udp_socket.h"
#include "libvma/sockets/waiter.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace vma::sockets {
namespace {

enum State : int { idle, starting, up, off };
std::atomic<int> g_state{idle};
std::atomic<Stack*> g_stack{nullptr};
Lock g_start_lock;

// In a forked child everything the parent had stays the parent's: the table is emptied (handing.h), so inherited sockets
// are plain kernel sockets, and the stack is forgotten, so that the child's first own socket starts a new one.
void child_after_fork() {
    Waiter::reset_in_child();
    ring::TxFlusher::instance().reset_in_child();
    TcpSocket::reset_in_child();
    icmp::reset_in_child();
    new (&g_start_lock) Lock;
    g_stack.store(nullptr, std::memory_order_relaxed);
    if (g_state.load(std::memory_order_relaxed) != off) g_state.store(idle, std::memory_order_relaxed);
}

}  // namespace

std::uint64_t netns_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int saved = errno;
    if (os::getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) != 0) cookie = 0;
    errno = saved;
    return cookie;
}

void log_counters() noexcept {
    Stack* stack = Stack::running();
    if (stack == nullptr || !stack->control().try_lock()) return;
    try {
        stack->rings().log_counters();
    } catch (...) {
        // no memory for a line of the log
    }
    stack->control().unlock();
}

Stack* Stack::running() noexcept { return g_stack.load(std::memory_order_acquire); }

Stack* Stack::get(int fd) noexcept {
    int state = g_state.load(std::memory_order_acquire);
    if (state == up) return g_stack.load(std::memory_order_acquire);
    if (state == off || g_start_lock.owned_by_me()) return nullptr;  // owned: a signal handler's socket during start
    g_start_lock.lock();
    struct Unlock {
        ~Unlock() { g_start_lock.unlock(); }
    } unlock;
    if (g_state.load() == up) return g_stack.load();
    if (g_state.load() == off) return nullptr;
    try {
        if (runtime::inert()) {
            g_state = off;
            return nullptr;
        }
        log::start();
        config::print_start();
        if (config::get().offloaded_sockets == 0) {
            log::once(log::Level::info, "sockets are served by the kernel: VMA_OFFLOADED_SOCKETS is 0");
            g_state = off;
            return nullptr;
        }
        auto view = net::View::open();
        if (!view) {
            log::once(log::Level::warn, "sockets are served by the kernel: {}", view.error().what);
            g_state = off;
            return nullptr;
        }
        static std::once_flag hooks;
        std::call_once(hooks, [] {
            handing::start();
            runtime::at_fork({nullptr, nullptr, &child_after_fork});
            runtime::on_error(&UdpSocket::on_shadow_error);
        });
        auto* stack = new Stack(std::move(*view));
        stack->netns_ = netns_of(fd);
        stack->rings_.on_failure([stack](ring::Ring& ring) { stack->ring_failed(ring); });
        stack->listen();
        runtime::signals::start();
        runtime::fatal_signals::start(config::get().handle_sigintr != 0, config::get().handle_sigsegv != 0);
        g_stack.store(stack, std::memory_order_release);
        statistics::start();
        g_state.store(up, std::memory_order_release);
        return stack;
    } catch (const std::exception& e) {
        log::once(log::Level::error, "sockets are served by the kernel: start failed: {}", e.what());
        g_state = off;
        return nullptr;
    }
}

ring::Ring* Stack::ring(int ifindex) const noexcept {
    for (const OpenRing& entry : open_rings_) {
        const int known = entry.ifindex.load(std::memory_order_acquire);
        if (known == ifindex) return entry.ring.load(std::memory_order_relaxed);
        if (known == 0) break;
    }
    return nullptr;
}

template <class F>
void Stack::for_each_open(F&& visit) noexcept {
    for (OpenRing& entry : open_rings_) {
        if (entry.ifindex.load(std::memory_order_acquire) == 0) break;
        if (ring::Ring* ring = entry.ring.load(std::memory_order_relaxed)) visit(*ring);
    }
}

void Stack::flush() noexcept {
    for_each_open([](ring::Ring& ring) { ring.flush(); });
}

void Stack::ending(bool on) noexcept {
    for_each_open([on](ring::Ring& ring) { ring.ending(on); });
}

void Stack::drain() noexcept {
    for_each_open([](ring::Ring& ring) { ring.drain(); });
}

void Stack::ring_failed(ring::Ring& ring) noexcept {
    for (OpenRing& entry : open_rings_)
        if (entry.ring.load(std::memory_order_relaxed) == &ring) entry.ring.store(nullptr, std::memory_order_release);
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject*) {
        if (Ref<Socket> socket = g_fds.socket(fd)) socket->ring_failed(fd, ring);
    });
    TcpSocket::hand_over_orphans();
}

void Stack::progress() noexcept {
    constexpr int kMaxRounds = 64;  // under load there is always more
    for_each_open([](ring::Ring& ring) {
        for (int i = 0; !ring.rx_owned_by_me() && i < kMaxRounds && ring.poll() != 0; i++) {
        }
    });
}

void Stack::note_ring(int ifindex, ring::Ring* ring) noexcept {
    for (OpenRing& entry : open_rings_) {
        const int known = entry.ifindex.load(std::memory_order_relaxed);
        if (known == ifindex) return;
        if (known != 0) continue;
        entry.ring.store(ring, std::memory_order_relaxed);
        entry.ifindex.store(ifindex, std::memory_order_release);
        return;
    }
}

void Stack::add_dead(Steered* socket) noexcept {
    socket->next_dead_ = dead_.load(std::memory_order_relaxed);
    while (!dead_.compare_exchange_weak(socket->next_dead_, socket, std::memory_order_release)) {
    }
}

void Stack::bury_dead() noexcept {
    if (dead_.load(std::memory_order_relaxed) == nullptr) return;
    Steered* dead = dead_.exchange(nullptr, std::memory_order_acquire);
    while (dead != nullptr) {
        Steered* next = dead->next_dead_;
        dead->bury();
        dead = next;
    }
}

bool Stack::may_serve(const net::LocalAddress& a, in_addr_t wanted, int oif, Why& why) {
    if ((wanted != 0 && a.address != wanted) || !is_unicast(a.address) || (oif != 0 && a.ifindex != oif)) return false;
    net::Link link;
    std::string objection;
    if (!view().link(a.ifindex, link)) return false;
    if (ring::Rings::eligible(link, objection)) return true;
    if (why.reason == stats::Reason::foreign_address && !link.loopback)
        why = {stats::Reason::no_device, link.name + ": " + objection, {}};
    return false;
}

ring::Ring* Stack::open_ring(int ifindex, std::string* why) noexcept {
    if (ring::Ring* ring = rings_.find(ifindex)) {
        note_ring(ifindex, ring);
        return ring;
    }
    try {
        ring::Ring* ring = rings_.get(ifindex, why);
        if (ring != nullptr) {
            note_ring(ifindex, ring);
            for (Steered* socket : wildcards_) socket->refresh_rules();
        }
        return ring;
    } catch (...) {
        return nullptr;
    }
}

void Stack::listen() {
    view_->listen({.addresses_changed =
                       [this] {
                           control_.lock();
                           for (Steered* socket : wildcards_) socket->refresh_rules();
                           control_.unlock();
                       },
                   .link_changed =
                       [this](const net::Link& link) {
                           control_.lock();
                           rings_.link_changed(link);
                           if (link.up)
                               for (Steered* socket : wildcards_) socket->refresh_rules();
                           control_.unlock();
                       }});
    runtime::watch(view_->fd(), [this] { view_->process(); });
}

}  // namespace vma::sockets
