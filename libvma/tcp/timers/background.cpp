// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/timers/background.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

alignas(Background) std::byte g_memory[sizeof(Background)];
std::atomic<Background*> g_background{nullptr};
Lock g_make_lock;

}  // namespace

Background& Background::instance() noexcept {
    if (Background* engine = g_background.load(std::memory_order_acquire)) return *engine;
    const std::lock_guard guard(g_make_lock);
    Background* engine = g_background.load(std::memory_order_relaxed);
    if (engine == nullptr) {
        engine = new (g_memory) Background;  // never destroyed: threads outlive static destructors
        engine->wheel_.next_deadline();      // from here on it says when somebody has to wake for a timer
        g_background.store(engine, std::memory_order_release);
    }
    return *engine;
}

namespace {
void forget_background() noexcept {
    g_background.store(nullptr, std::memory_order_relaxed);
    new (&g_make_lock) Lock;
}
VMA_RENEW_IN_CHILD(forget_background);
}  // namespace

// ---- timers ----

void Background::wake(void* self) noexcept { static_cast<Background*>(self)->set_timer(); }

void Background::set_timer() noexcept {
    if (by_hand_.load(std::memory_order_relaxed)) return;
    int none = 0;
    if (timer_state_.compare_exchange_strong(none, 1)) {
        const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (fd < 0) {
            log::once(log::Level::error, "TCP timers stand still: timerfd_create failed");
            timer_state_ = 0;
            return;
        }
        timer_fd_ = InternalFd(fd);
        try {
            runtime::watch(timer_fd_.get(), [this] { timer_readable(); });
        } catch (const std::bad_alloc&) {  // the next timer that is armed tries again
            timer_fd_.reset();
            timer_state_ = 0;
            return;
        }
        timer_state_.store(2, std::memory_order_release);
    }
    while (timer_state_.load(std::memory_order_acquire) == 1) cpu_relax();
    if (timer_state_.load(std::memory_order_acquire) != 2) return;
    // Two threads may both come here; the one that is late sets what it read late.
    const std::lock_guard guard(timer_lock_);
    Time next = wheel_.next_deadline();
    // Never more often than the internal thread's other work.
    const config::Params& params = config::get();
    const Nsec grain = Msec(std::max(params.tcp_timer_resolution_msec, params.timer_resolution_msec));
    if (next != TimerWheel::kNever && grain > TimerWheel::kTick)
        next = Time((next.time_since_epoch() + grain - Nsec(1)) / grain * grain);
    itimerspec spec{};
    if (next != TimerWheel::kNever) {
        const Time now = Clock::now();
        spec.it_value = clock::to_timespec(next > now ? next - now : Nsec(1));
    }
    timerfd_settime(timer_fd_.get(), 0, &spec, nullptr);
}

void Background::timer_readable() noexcept {
    std::uint64_t expirations;
    (void)!os::read(timer_fd_.get(), &expirations, sizeof expirations);
    wheel_.expire(Clock::now());
    set_timer();
}

// ---- rings nobody polls ----

void Background::started(ring::Ring& ring) noexcept {
    if (by_hand_.load(std::memory_order_relaxed)) return;
    bool start = false;
    lock_.lock();
    auto it = std::find_if(rings_.begin(), rings_.end(), [&](const Used& u) { return u.ring == &ring; });
    try {
        if (it == rings_.end()) it = rings_.insert(rings_.end(), Used{&ring});
        it->connections++;
        start = !ticking_ && config::get().progress_engine_interval != 0 &&
                config::get().progress_engine_wce_max != 0;
        if (start) ticking_ = true;
    } catch (...) {
    }
    lock_.unlock();
    if (!start) return;
    try {
        runtime::every(clock::Msec(config::get().progress_engine_interval), [this] { return tick(); });
    } catch (const std::bad_alloc&) {
        const std::lock_guard guard(lock_);
        ticking_ = false;  // the next connection tries again
    }
}

void Background::stopped(ring::Ring& ring) noexcept {
    const std::lock_guard guard(lock_);
    for (Used& u : rings_)
        if (u.ring == &ring && u.connections != 0) u.connections--;
}

bool Background::tick() noexcept {
    // Rings are never destroyed while the process lives, so pointers may be used without the lock.
    ring::Ring* poll[16];
    std::size_t count = 0;
    bool any = false;
    lock_.lock();
    for (Used& u : rings_) {
        if (u.connections == 0) continue;
        any = true;
        const std::uint32_t polls = u.ring->polls();
        if (polls == u.polls_seen && count < std::size(poll)) poll[count++] = u.ring;
        u.polls_seen = polls;
    }
    if (!any) ticking_ = false;
    lock_.unlock();
    if (!any) return false;
    const auto most = static_cast<unsigned>(config::get().progress_engine_wce_max);
    for (std::size_t i = 0; i < count; i++) {
        for (unsigned done = 0; done < most;) {
            const unsigned n = poll[i]->poll();
            if (n == 0) break;
            done += n;
        }
        poll[i]->flush();
        const std::lock_guard guard(lock_);
        for (Used& u : rings_)
            if (u.ring == poll[i]) u.polls_seen = poll[i]->polls();
    }
    return true;
}

// ---- TIME_WAIT ----

void Background::time_wait_entered(Connection& c) noexcept {
    Connection* oldest = nullptr;
    lock_.lock();
    c.links().tw_prev = tw_last_;
    c.links().tw_next = nullptr;
    (tw_last_ != nullptr ? tw_last_->links().tw_next : tw_first_) = &c;
    tw_last_ = &c;
    c.links().tw_listed = true;
    if (++tw_count_ > kMaxTimeWait) {
        oldest = tw_first_;
        if (!oldest->try_ref()) oldest = nullptr;
    }
    lock_.unlock();
    if (oldest == &c) {
        c.unref_later();
    } else if (oldest != nullptr) {
        oldest->abandon_quietly();
        oldest->unref();  // its own lock is not ours: what is to be done later it would learn only by chance
    }
}

void Background::time_wait_left(Connection& c) noexcept {
    const std::lock_guard guard(lock_);
    if (c.links().tw_listed) {
        (c.links().tw_prev != nullptr ? c.links().tw_prev->links().tw_next : tw_first_) = c.links().tw_next;
        (c.links().tw_next != nullptr ? c.links().tw_next->links().tw_prev : tw_last_) = c.links().tw_prev;
        c.links().tw_listed = false;
        tw_count_--;
    }
}

// ---- orphans ----

void Background::orphaned(Connection& c) noexcept {
    const std::lock_guard guard(lock_);
    if (!c.links().orphan_listed) {
        c.links().orphan_next = orphans_;
        c.links().orphan_prev = nullptr;
        if (orphans_ != nullptr) orphans_->links().orphan_prev = &c;
        orphans_ = &c;
        orphan_count_.fetch_add(1, std::memory_order_relaxed);
        c.links().orphan_listed = true;
    }
}

void Background::unlist_orphan(Connection& c) noexcept {
    if (!c.links().orphan_listed) return;
    (c.links().orphan_prev != nullptr ? c.links().orphan_prev->links().orphan_next : orphans_) =
        c.links().orphan_next;
    if (c.links().orphan_next != nullptr) c.links().orphan_next->links().orphan_prev = c.links().orphan_prev;
    orphan_count_.fetch_sub(1, std::memory_order_relaxed);
    c.links().orphan_listed = false;
}

void Background::orphan_left(Connection& c) noexcept {
    const std::lock_guard guard(lock_);
    unlist_orphan(c);
}

Connection* Background::take_orphan() noexcept {
    if (lock_.owned_by_me()) return nullptr;
    const std::lock_guard guard(lock_);
    Connection* taken = nullptr;
    while (taken == nullptr && orphans_ != nullptr) {
        Connection* c = orphans_;
        unlist_orphan(*c);
        if (c->try_ref()) taken = c;
    }
    return taken;
}

}  // namespace vma::tcp
