// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/watchers.h"

#include <mutex>

namespace vma::sockets {

void Watchers::wake(std::uint32_t events) noexcept {
    if (locked_by_me()) return;
    const std::lock_guard guard(lock_);
    wake_held(events);
}

bool Watchers::add(Waiter* waiter) noexcept {
    if (locked_by_me()) return false;
    const std::lock_guard guard(lock_);
    return waiters_.add(waiter);
}

void Watchers::remove(Waiter* waiter) noexcept {
    if (locked_by_me()) return;
    const std::lock_guard guard(lock_);
    waiters_.remove(waiter);
}

bool Watchers::add(ReadyHook* hook) noexcept {
    if (locked_by_me()) return false;
    const std::lock_guard guard(lock_);
    hooks_.add(hook);
    return true;
}

bool Watchers::remove(ReadyHook* hook) noexcept {
    if (locked_by_me()) return false;
    const std::lock_guard guard(lock_);
    hooks_.remove(hook);
    return true;
}

bool Watchers::in_kernel_sets() noexcept {
    if (locked_by_me()) return true;
    const std::lock_guard guard(lock_);
    return hooks_.in_kernel_sets();
}

}  // namespace vma::sockets
