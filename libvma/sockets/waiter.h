// SPDX-License-Identifier: BSD-2-Clause
// A thread about to sleep in a receive, select, poll or epoll_wait call.
//
// The ring's channel wakes it for frames that no thread has taken yet; but another thread may poll the same
// ring and queue a datagram for this thread's socket. So a sleeper puts its Waiter on each socket it waits
// for, and whoever queues a datagram signals the waiters of that socket. Each thread has one, made on first
// use.
#pragma once

#include <atomic>

#include "libvma/runtime/wake_fd.h"

namespace vma::sockets {

class Waiter {
  public:
    // The calling thread's waiter; nullptr when no eventfd can be made (the caller then sleeps in short
    // slices).
    static Waiter* mine() noexcept;

    int fd() const noexcept { return event_.get(); }
    // Any thread; nothing happens in the waiter's own. One system call for the first signal since clear(),
    // none for further ones.
    void signal() noexcept;
    // The owner, before it looks at its sockets for the last time.
    void clear() noexcept;
    // Forget all in a forked child.
    static void reset_in_child() noexcept;

    Waiter() = default;

  private:
    WakeFd event_;
    std::atomic<bool> signalled_{false};
};

// The waiters on one socket; guarded by the socket's lock. The first few lie in the list, more in memory that
// comes from mmap, as the waiters' own does.
class WaiterList {
  public:
    bool empty() const noexcept { return count_ == 0; }
    unsigned size() const noexcept { return count_ + more_count_; }
    // False: there is no memory.
    bool add(Waiter* w) noexcept {
        if (count_ < kHere) {
            list_[count_++] = w;
            return true;
        }
        Link* link = take_link();
        if (link == nullptr) return false;
        *link = {w, more_};
        more_ = link;
        more_count_++;
        return true;
    }
    void remove(Waiter* w) noexcept {
        for (unsigned i = 0; i < count_; i++)
            if (list_[i] == w) {
                list_[i] = more_ != nullptr ? pop() : list_[--count_];
                return;
            }
        for (Link* link = more_; link != nullptr; link = link->next)
            if (link->waiter == w) {
                link->waiter = more_->waiter;
                pop();
                return;
            }
    }
    void signal_all() noexcept {
        for (unsigned i = 0; i < count_; i++) list_[i]->signal();
        for (Link* link = more_; link != nullptr; link = link->next) link->waiter->signal();
    }

  private:
    friend class Waiter;
    struct Link {
        Waiter* waiter;
        Link* next;
    };
    static Link* take_link() noexcept;
    static void give_link(Link* link) noexcept;
    Waiter* pop() noexcept {
        Link* link = more_;
        Waiter* waiter = link->waiter;
        more_ = link->next;
        more_count_--;
        give_link(link);
        return waiter;
    }

    static constexpr unsigned kHere = 8;
    Waiter* list_[kHere]{};
    unsigned count_ = 0, more_count_ = 0;
    Link* more_ = nullptr;  // nothing there unless list_ is full
    static Link* free_links_;
};

}  // namespace vma::sockets
