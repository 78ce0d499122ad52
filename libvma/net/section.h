// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include <atomic>

#include "libvma/runtime/lock.h"

namespace vma::net {

// Holds one of the view's locks. A signal handler may interrupt the holder anywhere, also half-way through
// taking the lock, and ask again. So the thread notes that it is inside before it touches the lock. Where
// entered() is false, the handler must do without the lock. The view's locks are never nested, so one note
// for all of them is enough.
class Section {
  public:
    explicit Section(Lock& lock) noexcept : lock_(t_inside ? nullptr : &lock) {
        if (lock_ == nullptr) return;
        t_inside = true;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        lock_->lock();
    }
    ~Section() {
        if (lock_ == nullptr) return;
        lock_->unlock();
        std::atomic_signal_fence(std::memory_order_seq_cst);
        t_inside = false;
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    bool entered() const noexcept { return lock_ != nullptr; }
    static bool in_handler() noexcept { return t_inside; }

  private:
    static inline constinit thread_local volatile bool t_inside = false;
    Lock* lock_;
};

}  // namespace vma::net
