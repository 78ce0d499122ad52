// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/lock.h"

#include <linux/futex.h>

#include "libvma/os/raw_syscall.h"

namespace vma {

void Lock::lock_slow() noexcept {
    for (int i = 0; i < kSpins; i++) {
        cpu_relax();
        if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
    }
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree)
        os::raw_syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kContended, 0, 0, 0);
    owner_.store(thread_token(), std::memory_order_relaxed);
}

void Lock::wake() noexcept {
    os::raw_syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

}  // namespace vma
