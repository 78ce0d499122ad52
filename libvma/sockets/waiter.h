// SPDX-License-Identifier: BSD-2-Clause
// A thread about to sleep in a receive, select, poll or epoll_wait call.
//
// The ring's channel wakes it for frames nobody has taken yet; but another thread may poll the same ring and queue a
// datagram for this thread's socket. So a sleeper puts its Waiter on each socket it waits for, and whoever queues a
// datagram signals the waiters of that socket. Each thread has one, made on first use.
#pragma once

#include <atomic>

#include "libvma/runtime/internal_fd.h"

namespace vma::sockets {

class Waiter {
  public:
    // The calling thread's waiter; nullptr when no eventfd can be made (the caller then sleeps in short slices).
    static Waiter* mine() noexcept;

    int fd() const noexcept { return event_.get(); }
    // Any thread; nothing happens in the waiter's own. One system call for the first signal since clear(), none for further
    // ones.
    void signal() noexcept;
    // The owner, before it looks at its sockets for the last time.
    void clear() noexcept;
    // Forget all in a forked child.
    static void reset_in_child() noexcept;

    Waiter() = default;

  private:
    InternalFd event_;
    std::atomic<bool> signalled_{false};
};

// A small set of waiters on one socket; guarded by the socket's lock.
class WaiterList {
  public:
    static constexpr unsigned kMax = 8;
    bool empty() const noexcept { return count_ == 0; }
    unsigned size() const noexcept { return count_; }
    bool add(Waiter* w) noexcept {
        if (count_ == kMax) return false;
        list_[count_++] = w;
        return true;
    }
    void remove(Waiter* w) noexcept {
        for (unsigned i = 0; i < count_; i++)
            if (list_[i] == w) {
                list_[i] = list_[--count_];
                return;
            }
    }
    void signal_all() noexcept {
        for (unsigned i = 0; i < count_; i++) list_[i]->signal();
    }

  private:
    Waiter* list_[kMax]{};
    unsigned count_ = 0;
};

}  // namespace vma::sockets
