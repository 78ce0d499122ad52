// SPDX-License-Identifier: BSD-2-Clause
// How a socket tells epoll sets that its events may have changed.
//
// A set with 10,000 members of which few are active must not ask all of them in each epoll_wait. So a member
// is asked only after it has called its hooks, the way the kernel's sockets call their wait queues. A hook
// lies in its owner's memory (an epoll set's entry), so that hanging it up needs no memory and cannot fail.
//
// Order of locks: the owner's lock, then the socket's, then whatever leaf lock a hook takes.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace vma::sockets {

// What the kernel's sockets say when data or room has come (sock_def_readable, sk_stream_write_space).
// Whoever asked for one of these bits is woken, and an edge then shows all that is true: so data makes an
// edge for who asked for EPOLLPRI.
inline constexpr std::uint32_t kWakeIn = EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND;
inline constexpr std::uint32_t kWakeOut = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;

class ReadyHook {
  public:
    ReadyHook() = default;
    ReadyHook(const ReadyHook&) = delete;
    ReadyHook& operator=(const ReadyHook&) = delete;

    // The socket's events may have changed, and the change is visible already. `events`: what this wake-up is
    // for, as EPOLL* bits, like the key of the kernel's wake-ups (kWakeIn for data, kWakeOut for room; with
    // EPOLLERR, EPOLLHUP, EPOLLRDHUP where these became true); 0: something else: readiness(), rings(), the
    // last descriptor was closed. Called with the socket's lock held, in any thread, also in signal handlers:
    // takes leaf locks at most, never calls the socket.
    virtual void wake(std::uint32_t events) noexcept = 0;
    // Is the socket in the kernel's set of this hook, as far as the hook knows? Any thread.
    virtual bool in_kernel_set() const noexcept { return false; }

  protected:
    ~ReadyHook() = default;

  private:
    friend class ReadyHooks;
    ReadyHook* next_ = nullptr;
    ReadyHook** link_ = nullptr;  // what points to this one; null: on no list
};

// The hooks of one socket; guarded by the socket's lock.
class ReadyHooks {
  public:
    bool in_kernel_sets() const noexcept {
        const ReadyHook* hook = first_;
        while (hook != nullptr && !hook->in_kernel_set()) hook = hook->next_;
        return hook != nullptr;
    }
    void add(ReadyHook* hook) noexcept {
        hook->next_ = first_;
        hook->link_ = &first_;
        if (first_ != nullptr) first_->link_ = &hook->next_;
        first_ = hook;
    }
    void remove(ReadyHook* hook) noexcept {
        if (hook->link_ == nullptr) return;
        *hook->link_ = hook->next_;
        if (hook->next_ != nullptr) hook->next_->link_ = hook->link_;
        hook->next_ = nullptr;
        hook->link_ = nullptr;
    }
    void wake_all(std::uint32_t events) noexcept {
        for (ReadyHook* hook = first_; hook != nullptr; hook = hook->next_) hook->wake(events);
    }

  private:
    ReadyHook* first_ = nullptr;
};

}  // namespace vma::sockets
