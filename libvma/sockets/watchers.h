// SPDX-License-Identifier: BSD-2-Clause
// Whom a socket tells when its readiness changes: threads that sleep (Waiter) and epoll sets (ReadyHook).
//
// lock() guards both lists. A socket that queues data guards the queue by the same lock, so that an arrival
// costs one lock and not two. The lock is a leaf.
#pragma once

#include <cstdint>

#include "libvma/runtime/lock.h"
#include "libvma/sockets/ready_hook.h"
#include "libvma/sockets/waiter.h"

namespace vma::sockets {

class Watchers {
  public:
    Lock& lock() noexcept { return lock_; }
    // Did a signal handler interrupt this thread while it held the lock?
    bool locked_by_me() const noexcept { return lock_.owned_by_me(); }

    // With lock() held. `events`: see ReadyHook::wake().
    void wake_held(std::uint32_t events) noexcept {
        signal_held();
        hooks_.wake_all(events);
    }
    void signal_held() noexcept {
        if (!waiters_.empty()) waiters_.signal_all();
    }
    void wake_sets_held(std::uint32_t events) noexcept { hooks_.wake_all(events); }
    // Without it; nothing happens in a handler that interrupted its holder.
    void wake(std::uint32_t events) noexcept;

    // See Socket::add_waiter() and Socket::subscribe(). False also in a handler that interrupted the holder.
    bool add(Waiter* waiter) noexcept;
    void remove(Waiter* waiter) noexcept;
    bool add(ReadyHook* hook) noexcept;
    bool remove(ReadyHook* hook) noexcept;
    // May the kernel's part of an epoll set have the socket?
    bool in_kernel_sets() noexcept;

  private:
    Lock lock_;
    WaiterList waiters_;
    ReadyHooks hooks_;
};

}  // namespace vma::sockets
