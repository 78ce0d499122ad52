// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/lock.h"

#include <linux/futex.h>

#include "libvma/os/raw_syscall.h"

namespace vma {

void Lock::lock_slow() noexcept {
    const std::uint32_t me = thread_number();
    for (int i = 0; i < kSpins; i++) {
        cpu_relax();
        if (word_.load(std::memory_order_relaxed) == 0 && try_lock()) return;
    }
    for (;;) {
        std::uint32_t word = word_.load(std::memory_order_relaxed);
        if (word == 0) {
            // Whether others still sleep is not known, so the next unlock wakes one.
            if (word_.compare_exchange_weak(word, me | kWaiters, std::memory_order_acquire, std::memory_order_relaxed))
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
