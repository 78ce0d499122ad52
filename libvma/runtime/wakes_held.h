// SPDX-License-Identifier: BSD-2-Clause
// Wake-ups that a thread holds back while it has locks that the woken threads need.
//
// A thread that is woken often runs at once, on the waker's own processor. If it needs a lock that the waker
// still has, it sleeps again, and the waker has to wake it once more.
#pragma once

#include <cstddef>

#include "libvma/runtime/wake_fd.h"

namespace vma {

// Make one before the lock is taken, or let it outlive the lock. Its end wakes whom it held back. Inside
// another one it does nothing.
class WakesHeld {
  public:
    WakesHeld() noexcept : outer_(t_held) {
        if (outer_ == nullptr) t_held = this;
    }
    ~WakesHeld() {
        if (outer_ != nullptr) return;
        t_held = nullptr;
        for (std::size_t i = 0; i < count_; i++) WakeFd::wake(fds_[i]);
    }
    WakesHeld(const WakesHeld&) = delete;
    WakesHeld& operator=(const WakesHeld&) = delete;

    // Makes an eventfd readable, now or when the locks are free. The descriptor stays open.
    static void wake(int fd) noexcept {
        if (WakesHeld* held = t_held; held != nullptr && held->count_ < kRoom)
            held->fds_[held->count_++] = fd;
        else
            WakeFd::wake(fd);
    }

  private:
    static constexpr std::size_t kRoom = 16;  // beyond, a thread is woken at once
    static inline constinit thread_local WakesHeld* t_held = nullptr;

    WakesHeld* const outer_;
    std::size_t count_ = 0;
    int fds_[kRoom];
};

}  // namespace vma
