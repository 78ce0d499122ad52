// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll over descriptors of which some are offloaded.
//
// An offloaded socket's descriptor is a real kernel socket. sockets::Readiness tells which side knows whether
// the socket is ready. For most sockets, the kernel answers for everything but data that waits in the
// library. So each call asks the kernel about the program's own descriptors, unchanged, and adds "readable"
// for the library's data. A TCP connection's kernel socket is only a shadow, so the call does not ask the
// kernel, and all events are the library's. Results, errno, signal and timeout semantics are the kernel's.
// select, poll and epoll_wait are never restarted after a handler, whatever SA_RESTART says. ppoll's mask
// holds for the whole call; a timeout never ends early.
//
// How a call waits: it looks once. Then it polls the rings for VMA_SELECT_POLL microseconds, and asks the
// kernel once in VMA_SELECT_POLL_OS_RATIO rounds. Then it sleeps in one kernel call on the program's
// descriptors, the rings' event channels and the thread's Waiter.
//
// The library does not see a wait on an epoll set by io_uring or a raw system call. An offloaded member then
// shows only the kernel's events, and an offloaded TCP connection none. The same is true of a set in a
// process that received the set over a unix socket.
//
// pthread_cancel unwinds through all of these, so none is noexcept. std::bad_alloc may leave them.
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>

#include "libvma/os/libc_types.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/region.h"

namespace vma::iomux {

// poll(2) and ppoll(2). timeout: null waits for ever. mask: may be null.
int poll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);

// select(2) and pselect(2). remaining: when not null and there is a timeout, receives the time left, also
// when the call fails.
int select(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, const sigset_t* mask,
           timespec* remaining);

// The number of descriptors that a select() with this nfds really concerns. The kernel cuts nfds to the size
// of the process's descriptor table. Old programs pass getdtablesize() with sets of 1024 bits, which works
// because that table is small. The library's own high descriptors make the table larger, so the library must
// not read or write the sets past this number.
int select_limit(int nfds) noexcept;

// epoll_ctl(2). The first offloaded member turns `epfd` into an EpollSet in sockets::g_fds.
int epoll_ctl(int epfd, int op, int fd, epoll_event* event);

// epoll_wait(2), epoll_pwait(2), epoll_pwait2(2). timeout: null waits for ever.
int epoll_wait(int epfd, epoll_event* events, int maxevents, const timespec* timeout, const sigset_t* mask);

// The program has received `fd` over a unix socket. It may be one more number of an EpollSet.
void received(int fd) noexcept;

// A call that sleeps in the kernel on sets of which none is an EpollSet. Another thread may add the first
// offloaded socket to one of them. Then this thread must wake up and wait as above, or it would never see
// that socket's data. So the library counts the thread while it sleeps, and wakes it by an event of its own,
// which this class keeps from the program.
class KernelWait {
  public:
    // sets: the program's sets, possibly none. They outlive this object.
    KernelWait(std::span<const int> sets, const timespec* timeout) noexcept;
    ~KernelWait();
    KernelWait(const KernelWait&) = delete;
    KernelWait& operator=(const KernelWait&) = delete;

    // One of the sets is an EpollSet now: call iomux's function instead of the kernel's.
    bool superseded() const noexcept;
    // Removes the library's event from the n events of epoll_wait(); returns how many are left. -1: there was
    // no other event, so call iomux::epoll_wait with remaining().
    int filter(epoll_event* events, int n) const noexcept;
    // The rest of the timeout, stored in `left`; null for an infinite one.
    const timespec* remaining(timespec& left) const noexcept;

  private:
    std::span<const int> sets_;
    unsigned ticket_ = 0;
    bool infinite_;
    clock::Time deadline_;
};

// EpollSet::without_kicked() of the set under `epfd`.
int without_kicked(int epfd, epoll_event* events, int n) noexcept;

// epoll_wait() on a descriptor that is no EpollSet; `kernel` is the program's own call.
template <class Call>
int kernel_epoll_wait(int epfd, epoll_event* events, int maxevents, const timespec* timeout,
                      const sigset_t* mask, Call&& kernel) {
    timespec left;
    for (;;) {
        int n = 0;
        {
            KernelWait wait({&epfd, 1}, timeout);
            if (!wait.superseded()) {
                n = kernel();
                if (n <= 0) return n;
                n = wait.filter(events, n);
                if (n > 0 && !wait.superseded()) return n;
            }
            timeout = wait.remaining(left);
        }
        {
            runtime::Region region;
            if (n > 0 && (n = without_kicked(epfd, events, n)) > 0) return n;
            n = epoll_wait(epfd, events, maxevents, timeout, mask);
        }
        if (n >= 0 || errno != runtime::kAskKernel) return n;
    }
}

// poll() or select() of kernel descriptors only, some of them sets. `ours(timeout)`: the same call in iomux.
template <class Call, class Ours>
int kernel_poll(std::span<const int> sets, const timespec* timeout, Call&& kernel, Ours&& ours) {
    timespec left;
    {
        KernelWait wait(sets, timeout);
        if (!wait.superseded()) {
            const int n = kernel();
            if (n < 0 || !wait.superseded()) return n;
        }
        timeout = wait.remaining(left);
    }
    return ours(timeout);
}

}  // namespace vma::iomux
