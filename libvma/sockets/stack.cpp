// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/stack.h"

#include <limits.h>

#include <atomic>
#include <mutex>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fatal_signals.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signals.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/orphans.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/icmp.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/ring_watch.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/sockets/udp/udp_socket.h"
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

// In a forked child everything the parent had stays the parent's: the table is emptied
// (handover/shared_sockets.h), so inherited sockets are plain kernel sockets, and the stack is forgotten, so
// that the child's first own socket starts a new one.
void forget_stack() noexcept {
    g_stack.store(nullptr, std::memory_order_relaxed);
    if (g_state.load(std::memory_order_relaxed) != off) g_state.store(idle, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_stack);

// Locks that a thread holds around its fork(). What is done under them uses locks that only their library
// knows: the loader's, those of libibverbs, of a static object's first use. A child that had them from a
// thread in the middle of a device's opening would wait for ever.
struct HeldOverFork {
    unsigned nested = 0;  // fork() in another handler of the same fork()
    bool start = false;
    Stack* stack = nullptr;
    bool control = false, use = false;
};
constinit thread_local HeldOverFork t_held;

// Who forks inside the library, in the log's callback or in the handler of a fault, may have what another
// thread waits for, so it takes only what is free. So does a copy of the process that nobody told us of: the
// owner may not exist there.
bool take(Lock& lock) noexcept {
    if (runtime::t_deferral.depth == 1 && !lock.owned_by_me() && !runtime::in_foreign_process()) {
        lock.lock();
        return true;
    }
    return lock.try_lock();
}

// The first start itself may be under way in another thread when the program forks, so these hooks are there
// from the beginning. They come first, so their locks are taken last: other hooks change rules before.
void hold_over_fork() noexcept {
    HeldOverFork& held = t_held;
    if (held.nested++ != 0) return;
    held.start = take(g_start_lock);
    held.stack = Stack::running();
    if (held.stack == nullptr) return;
    held.control = take(held.stack->control());
    held.use = take(held.stack->use_lock());
}

void let_go_in_parent() noexcept {
    HeldOverFork& held = t_held;
    if (--held.nested != 0) return;
    if (held.use) held.stack->use_lock().unlock();
    if (held.control) held.stack->control().unlock();
    if (held.start) g_start_lock.unlock();
    held = {};
}

void let_go_in_child() noexcept {
    t_held = {};
    new (&g_start_lock) Lock;
}

__attribute__((constructor)) void hold_locks_over_forks() {
    runtime::at_fork({&hold_over_fork, &let_go_in_parent, &let_go_in_child});
}

}  // namespace

std::uint64_t netns_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    const ErrnoKept kept;
    if (os::getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) != 0) cookie = 0;
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
    if (state == off || g_start_lock.owned_by_me())
        return nullptr;  // owned: a signal handler's socket during start
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
        static std::once_flag hooks;
        std::call_once(hooks, [] {
            sharing::start();
            runtime::on_error(&UdpSocket::on_shadow_error);
        });
        auto* stack = new Stack(net::KernelView::make());
        stack->netns_ = netns_of(fd);
        stack->rings_.on_failure([stack](ring::Ring& ring) { stack->ring_failed(ring); });
        stack->rings_.on_freed([stack](int ifindex) { return stack->device_freed(ifindex); });
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

// Called for a socket or an epoll set that is used, maybe with locks of sockets held, and the control lock.
// The internal thread, which takes those, is not waited for.
void Stack::start_use() noexcept {
    if (use_lock_.owned_by_me()) return;  // the program's log callback uses a socket
    const int saved = errno;
    const runtime::NoCancel whole;
    const std::lock_guard guard(use_lock_);
    if (in_use_.load(std::memory_order_relaxed)) return;
    if (!in_my_namespace()) {
        log::once(log::Level::info,
                  "a thread in another network namespace uses the sockets first: the kernel serves them");
        errno = saved;
        return;
    }
    try {
        if (auto loaded = view_->load(); loaded) {
            listen();
            sharing::open_own_channel();
        } else {
            log::once(log::Level::warn, "sockets are served by the kernel: {}", loaded.error().what);
            g_state = off;  // for those that come; those that are there find no address and no route
        }
    } catch (const std::exception& e) {
        log::once(log::Level::error, "sockets are served by the kernel: start failed: {}", e.what());
        g_state = off;
    }
    statistics::serve();
    in_use_.store(true, std::memory_order_release);
    errno = saved;
}

// Is the calling thread in the namespace of the first socket? The view would be of another one.
bool Stack::in_my_namespace() const noexcept {
    const long fd = os::raw_syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return true;  // out of descriptors, which load() will say
    const std::uint64_t mine = netns_of(static_cast<int>(fd));
    os::raw_syscall(SYS_close, fd);
    return mine == netns_;
}

ring::Ring* Stack::ring(int ifindex, unsigned lane) const noexcept {
    const std::uint64_t place = place_of(ifindex, lane);
    for (const OpenRing& entry : open_rings_) {
        const std::uint64_t known = entry.place.load(std::memory_order_acquire);
        if (known == place) return entry.ring.load(std::memory_order_relaxed);
        if (known == 0) break;
    }
    return nullptr;
}

template <class F>
void Stack::for_each_open(F&& visit) noexcept {
    for (OpenRing& entry : open_rings_) {
        if (entry.place.load(std::memory_order_acquire) == 0) break;
        if (ring::Ring* ring = entry.ring.load(std::memory_order_relaxed)) visit(*ring);
    }
}

ring::Ring* Stack::ring_of_channel(int fd) noexcept {
    ring::Ring* found = nullptr;
    for_each_open([&](ring::Ring& ring) {
        if (ring.channel_fd() == fd) found = &ring;
    });
    return found;
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
        if (entry.ring.load(std::memory_order_relaxed) == &ring)
            entry.ring.store(nullptr, std::memory_order_release);
    orphans::leave(*this, ring);
}

bool Stack::device_freed(int ifindex) noexcept {
    Control control(*this);
    try {
        const bool again = rings_.retry(ifindex);
        // Those that wait for the device are on the list, too (UdpSocket::update_rules).
        if (rings_.find(ifindex) != nullptr) {
            open_ring(ifindex, 0);
            refresh_wildcards();
            groups_.reconsider();
            view_->outdate();  // what is sent goes another way now
        }
        return again;
    } catch (...) {
        return true;  // no memory now
    }
}

// Sockets may leave the list while it is gone through, or come back at its end.
void Stack::refresh_wildcards() noexcept {
    for (std::size_t i = wildcards_.size(); i-- > 0;)
        if (i < wildcards_.size()) wildcards_[i]->refresh_rules();
}

void Stack::progress() noexcept {
    constexpr int kMaxRounds = 64;  // under load there is always more
    for_each_open([](ring::Ring& ring) {
        for (int i = 0; !ring.rx_owned_by_me() && i < kMaxRounds && ring.poll() != 0; i++) {
        }
    });
}

// Without this the kernel resets a connection whose segment it gets.
void Stack::open_strays() noexcept {
    const ErrnoKept kept;
    if (!in_my_namespace() || strays_asked_.exchange(true)) return;
    auto to_ring = [this](std::span<std::uint8_t> frame, const net::ParsedFrame& parsed) {
        bool taken = false;
        for (const bool own_rule : {true, false})
            for_each_open([&](ring::Ring& ring) {
                if (!taken) taken = ring.take_stray(frame, parsed, own_rule);
            });
    };
    try {
        if (auto opened = rings_.strays().open(to_ring); !opened)
            log::info(
                "the kernel will reset an offloaded TCP connection when it gets one of its segments (IP "
                "options, "
                "fragments, other interfaces), for they cannot be taken back: {}",
                opened.error().what);
    } catch (const std::bad_alloc&) {
        log::info("TCP segments that reach the kernel are not taken back: out of memory");
    }
}

void Stack::note_ring(int ifindex, unsigned lane, ring::Ring* ring) noexcept {
    const std::uint64_t place = place_of(ifindex, lane);
    for (OpenRing& entry : open_rings_) {
        const std::uint64_t known = entry.place.load(std::memory_order_relaxed);
        if (known != 0 && known != place) continue;
        if (known == place && entry.ring.load(std::memory_order_relaxed) != nullptr) return;
        entry.ring.store(ring, std::memory_order_relaxed);
        entry.place.store(place, std::memory_order_release);
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

bool Stack::may_serve(const net::LocalAddress& a, const net::Address& wanted, int oif, Why& why) {
    if ((!wanted.is_any() && a.address != wanted.v4()) || !net::Address(a.address).is_unicast() ||
        (oif != 0 && a.ifindex != oif))
        return false;
    net::Link link;
    std::string objection;
    if (!view().link(a.ifindex, link)) return false;
    if (ring::Rings::eligible(link, objection)) return true;
    if (why.reason == stats::Reason::foreign_address && !link.loopback)
        why = {stats::Reason::no_device, link.name + ": " + objection, {}};
    return false;
}

ring::Ring* Stack::open_ring(int ifindex, unsigned lane, std::string* why) noexcept {
    if (ring::Ring* ring = rings_.find(ifindex, lane)) {
        note_ring(ifindex, lane, ring);
        return ring;
    }
    try {
        ring::Ring* ring = rings_.get(ifindex, lane, why);
        if (ring != nullptr) {
            note_ring(ifindex, lane, ring);
            refresh_wildcards();
        }
        return ring;
    } catch (...) {
        return nullptr;
    }
}

void Stack::listen() {
    view_->listen({.addresses_changed =
                       [this] {
                           const std::lock_guard guard(control_);
                           refresh_wildcards();
                           groups_.reconsider();
                       },
                   .link_changed =
                       [this](const net::Link& link) {
                           const std::lock_guard guard(control_);
                           rings_.link_changed(link);
                           if (link.up) refresh_wildcards();
                           groups_.reconsider();
                       },
                   .sources_changed =
                       [this] {
                           const std::lock_guard guard(control_);
                           try {
                               rings_.sources_changed();
                           } catch (...) {
                               // No memory: those of before stay.
                           }
                       }});
    runtime::watch(view_->fd(), [this] { view_->process(); });
}

}  // namespace vma::sockets
