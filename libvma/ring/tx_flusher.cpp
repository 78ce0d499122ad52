// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/tx_flusher.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <new>

#include "libvma/os/raw_syscall.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/leader.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/verbs/lazy_kick.h"

namespace vma::ring {
namespace {

constexpr std::uint64_t kIdleNs = 2'000'000;
constexpr std::uint64_t kLongestPauseNs = 280'000;

void sleep_ns(std::uint64_t ns) noexcept {
    timespec t{0, static_cast<long>(ns)};
    os::raw_syscall(SYS_nanosleep, &t, 0);
}

// Its thread outlives main(). Not made at the first call, which fork() could find under way in another
// thread.
constinit NeverDestroyed<TxFlusher> g_flusher;

}  // namespace

TxFlusher& TxFlusher::instance() noexcept { return *g_flusher; }

void TxFlusher::add(Ring* ring) {
    lock_.lock();
    try {
        rings_.push_back(ring);
    } catch (...) {
        lock_.unlock();
        throw;
    }
    lock_.unlock();
}

void TxFlusher::remove(Ring* ring) noexcept {
    lock_.lock();
    std::erase(rings_, ring);
    lock_.unlock();
}

namespace {
void forget_flusher() noexcept { TxFlusher::instance().reset_in_child(); }
VMA_RENEW_IN_CHILD(forget_flusher);
}  // namespace

void TxFlusher::reset_in_child() noexcept { new (this) TxFlusher; }

void TxFlusher::wake() noexcept {
    if (asleep_.exchange(0, std::memory_order_acq_rel) == 0) return;
    if (started_) {
        os::raw_syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
        return;
    }
    started_ = true;  // only the caller that took asleep_ from 1 to 0 is here
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    int error = pthread_create(&thread, &attr, &TxFlusher::run, this);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    if (error == 0) {
        runtime::leader::own_threads.fetch_add(1);
    } else {  // try again with the next burst; receive calls flush meanwhile
        started_ = false;
        asleep_.store(1, std::memory_order_release);
    }
}

void* TxFlusher::run(void* self) {
    pthread_setname_np(pthread_self(), "vma-flush");
    prctl(PR_SET_TIMERSLACK, 1);  // the default of 50 us would be the whole promise
    static_cast<TxFlusher*>(self)->loop();
    return nullptr;
}

// Flushes the rings whose oldest held frame is of `age` ticks at `now`.
LookAtHeld TxFlusher::look(std::uint64_t now, std::uint64_t age) noexcept {
    LookAtHeld found;
    lock_.lock();
    for (Ring* ring : rings_) ring->flush_older(now, age, found);
    lock_.unlock();
    return found;
}

void TxFlusher::loop() noexcept {
    const std::uint64_t per_usec = clock::ticks_per_usec();
    const std::uint64_t age = verbs::LazyKick::kHoldLimitNs * per_usec / 1000;
    const std::uint64_t memory = kLongestPauseNs * per_usec / 1000;
    std::uint64_t idle_since = clock::ticks(), pause_ns = verbs::LazyKick::kHoldLimitNs;
    std::uint64_t sent_at = idle_since - memory;  // when frames had last been sent since the look before
    for (;;) {
        std::uint64_t now = clock::ticks();
        const LookAtHeld found = look(now, age);
        if (found.goes_on) sent_at = now;
        if (found.due != 0 || found.goes_on) idle_since = now;
        const bool goes_on = now - sent_at < memory;
        if (goes_on && !found.left)
            pause_ns = std::min(pause_ns + pause_ns / 4, kLongestPauseNs);
        else
            pause_ns = verbs::LazyKick::kHoldLimitNs;
        if (found.due != 0) {
            now = clock::ticks();
            const std::uint64_t until_due = found.due > now ? (found.due - now) * 1000 / per_usec : 1;
            sleep_ns(std::max<std::uint64_t>(until_due, goes_on ? pause_ns : 1));
            continue;
        }
        if (now - idle_since < kIdleNs / 1000 * per_usec) {
            sleep_ns(pause_ns);
            continue;
        }
        asleep_.store(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (look(now, age).due == 0)
            while (asleep_.load(std::memory_order_acquire) == 1)
                os::raw_syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, 0, 0, 0);
        else
            asleep_.store(0, std::memory_order_relaxed);
        idle_since = clock::ticks();
    }
}

}  // namespace vma::ring
