// SPDX-License-Identifier: BSD-2-Clause
// The lock of a ring's receive side, and the work left to the thread that unlocks it.
//
// It guards Receiver, RxQueue and FlowTable, and serialises Recovery. TxQueue's lock and the locks of sinks
// are taken inside it. It is not held while calling into a program.
//
// Two kinds of work come up where a thread may not wait for this lock: a sink detaches while it holds locks
// of its own, and a completion tells of an error. Such work is noted here, and the thread that unlocks does
// it (Ring::run_deferred).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "libvma/ring/frame_sink.h"
#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class ReceiveLock {
  public:
    struct Detach {
        verbs::FlowSpec spec;
        FrameSink* sink = nullptr;
        bool drain = false;  // the sink still gets what is in the device's queue
    };

    explicit ReceiveLock(Ring& ring) noexcept : ring_(ring) {}

    // For a loop that polls. It would take the lock again before a waiter can wake up, so false, too, while a
    // thread waits in Hold.
    bool try_lock_to_poll() noexcept {
        if (__builtin_expect(waiters_.load(std::memory_order_relaxed) == 0 && lock_.try_lock(), 1))
            return true;
        if (!lock_.owned_by_me()) contended();
        return false;
    }
    bool try_lock_once() noexcept { return lock_.try_lock(); }
    [[gnu::always_inline]] void unlock() noexcept {
        if (__builtin_expect(pending_.load(std::memory_order_relaxed), 0)) run();
        lock_.unlock();
        // What was noted while the lock was still held would wait for the next poll.
        while (__builtin_expect(pending_.load(std::memory_order_seq_cst), 0) && lock_.try_lock()) {
            run();
            lock_.unlock();
        }
    }
    // Of a signal handler: it interrupted this thread inside the lock. Of a sink: it is inside deliver().
    bool owned_by_me() const noexcept { return lock_.owned_by_me(); }

    // How often a thread found the lock taken.
    std::uint64_t waits() const noexcept { return waits_.load(std::memory_order_relaxed); }

    // Holds the lock, even against threads that poll without pause. `mine` is false where the thread had the
    // lock before: then nothing is locked or unlocked.
    class Hold {
      public:
        explicit Hold(ReceiveLock& lock) noexcept : mine(!lock.owned_by_me()), lock_(lock) {
            if (!mine) return;
            lock_.waiters_.fetch_add(1, std::memory_order_relaxed);
            if (!lock_.lock_.try_lock()) {
                lock_.contended();
                lock_.lock_.lock();
            }
            lock_.waiters_.fetch_sub(1, std::memory_order_relaxed);
        }
        ~Hold() {
            if (mine) lock_.unlock();
        }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        const bool mine;

      private:
        ReceiveLock& lock_;
    };

    // ---- deferred work: any thread, any lock held ----
    // Without memory the rule stays; the sink lives on and drops its frames.
    void note_detach(const Detach& detach) noexcept;
    // A completion told of an error: the ring has to recover.
    void note_error() noexcept;
    bool error_noted() const noexcept { return broken_.load(std::memory_order_relaxed); }
    bool pending() const noexcept { return pending_.load(std::memory_order_acquire); }
    // Runs deferred work now. If the lock is held, its holder runs it on unlock.
    void attend() noexcept;

    // ---- for Ring::run_deferred(), with the lock held ----
    enum class Next { nothing, recover, detach };
    // What to do next; `detach` is taken off the list then.
    Next next(Detach& detach) noexcept;
    // The error noted has been dealt with.
    void settle_error() noexcept;

  private:
    void run() noexcept;
    [[gnu::cold]] void contended() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }

    Lock lock_;
    std::atomic<unsigned> waiters_{0};
    std::atomic<bool> pending_{false};  // detaches_ or broken_; set under work_lock_
    std::atomic<bool> broken_{false};   // changed under work_lock_
    Ring& ring_;
    Lock work_lock_;  // a leaf
    std::vector<Detach> detaches_;
    std::atomic<std::uint64_t> waits_{0};
};

}  // namespace vma::ring
