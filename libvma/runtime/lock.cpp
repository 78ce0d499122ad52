// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/lock.h"

#include <linux/futex.h>
#include <linux/membarrier.h>

#include "libvma/os/raw_syscall.h"

namespace vma {

void Lock::set_mode(LockMode mode) noexcept {
    mode_.store(mode == LockMode::single ? LockMode::spin : mode, std::memory_order_relaxed);
    favourite_.store(0, std::memory_order_relaxed);
    if (mode != LockMode::single) return;
    if (os::raw_syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
        favourite_.store(thread_number(), std::memory_order_relaxed);
}

void Lock::reset_in_child() noexcept {
    if (favourite() != 0) favourite_.store(thread_number(), std::memory_order_relaxed);
}

bool Lock::others_try_lock(std::uint32_t me) noexcept {
    std::uint32_t expected = 0;
    if (!other_.compare_exchange_strong(expected, me, std::memory_order_acquire, std::memory_order_relaxed))
        return false;
    os::raw_syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    if (word_.load(std::memory_order_acquire) == 0) return true;
    other_.store(0, std::memory_order_release);
    return false;
}

void Lock::lock_slow() noexcept {
    const std::uint32_t me = thread_number();
    if (favourite() != 0) {
        // No waiter is told when the lock comes free. A holder has the lock for less than a microsecond; a
        // waiter offers its core, in case the holder is not running.
        auto until = [](auto&& condition) {
            for (int i = 0; !condition(); i++) {
                cpu_relax();
                if (i >= kSpins) os::raw_syscall(SYS_sched_yield);
            }
        };
        if (me == favourite()) return until([&] { return try_lock(); });
        until([&] {
            std::uint32_t expected = 0;
            return other_.compare_exchange_weak(expected, me, std::memory_order_acquire,
                                                std::memory_order_relaxed);
        });
        // The favourite thread cannot take the lock while other_ is claimed.
        os::raw_syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        return until([&] { return word_.load(std::memory_order_acquire) == 0; });
    }
    for (int i = 0; i < kSpins && mode_ == LockMode::spin; i++) {
        cpu_relax();
        if (word_.load(std::memory_order_relaxed) == 0 && try_lock()) return;
    }
    while (mode_ == LockMode::yield) {
        for (int i = 0; i < kSpins; i++) {
            cpu_relax();
            if (word_.load(std::memory_order_relaxed) == 0 && try_lock()) return;
        }
        os::raw_syscall(SYS_sched_yield);
    }
    for (;;) {
        std::uint32_t word = word_.load(std::memory_order_relaxed);
        if (word == 0) {
            // This thread does not know whether others still sleep, so the next unlock wakes one.
            if (word_.compare_exchange_weak(word, me | kWaiters, std::memory_order_acquire,
                                            std::memory_order_relaxed))
                return;
            continue;
        }
        if (!(word & kWaiters)) {
            if (!word_.compare_exchange_weak(word, word | kWaiters, std::memory_order_relaxed)) continue;
            word |= kWaiters;
        }
        os::raw_syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, word, 0, 0, 0);
    }
}

void Lock::wake() noexcept { os::raw_syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }

}  // namespace vma
