// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll over descriptors of which some are offloaded.
//
// An offloaded socket's descriptor is a real kernel socket. Who knows whether it is ready depends on the socket
// (sockets::Readiness). For most, the kernel answers for everything but data that waits in the library: so each call asks
// the kernel about the program's own descriptors, unchanged, and adds "readable" for what our sockets hold. For a TCP
// connection the kernel's socket is only a shadow, so the kernel is not asked about it, and all events are ours. Results,
// errno, signal and timeout semantics are the kernel's: select, poll and epoll_wait are never restarted after a handler,
// whatever SA_RESTART says; ppoll's mask holds for the whole call; a timeout never ends early.
//
// How a call waits: it looks once; it polls the rings for VMA_SELECT_POLL microseconds, looking at the kernel once in
// VMA_SELECT_POLL_OS_RATIO rounds; then it sleeps in one kernel call on the program's descriptors, the rings' event
// channels and the thread's Waiter.
//
// Out of reach: an offloaded member of an epoll set that is waited on through a path the library does not see (io_uring,
// a raw system call) shows only what the kernel knows, a TCP connection of ours nothing; so does a set in a process that
// received it over a unix socket.
//
// pthread_cancel unwinds through all of these, so none is noexcept. std::bad_alloc may leave them.
#pragma once

#include <cstdint>

#include "libvma/os/libc_types.h"

namespace vma::iomux {

// poll(2) and ppoll(2). timeout: null waits for ever. mask: may be null.
int poll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);

// select(2) and pselect(2). remaining: when not null and there is a timeout, receives what is left of it, also when
// the call fails.
int select(int nfds, fd_set* r, fd_set* w, fd_set* e, const timespec* timeout, const sigset_t* mask,
           timespec* remaining);

// The number of descriptors a select() with this nfds really concerns. The kernel cuts nfds to the size of the process's
// descriptor table, and old programs pass getdtablesize() with sets of 1024 bits, which works because that table is
// small. The library's own high descriptors make it larger, so the sets must not be read or written past this.
int select_limit(int nfds) noexcept;

// epoll_ctl(2). The first offloaded member turns `epfd` into an EpollSet in sockets::g_fds.
int epoll_ctl(int epfd, int op, int fd, epoll_event* event);

// epoll_wait(2), epoll_pwait(2), epoll_pwait2(2). timeout: null waits for ever.
int epoll_wait(int epfd, epoll_event* events, int maxevents, const timespec* timeout, const sigset_t* mask);

// The program has received `fd` over a unix socket. It may be one more number of an EpollSet.
void received(int fd) noexcept;

// epoll_wait on a descriptor that is no EpollSet. A thread may sleep there when another thread adds the first offloaded
// socket; it must then wake up and wait as above, or it would never see that socket's data. So it is counted while it
// sleeps, and the library wakes it through an event of its own, which this class keeps from the program.
class KernelWait {
  public:
    KernelWait(int epfd, const timespec* timeout) noexcept;
    ~KernelWait();
    KernelWait(const KernelWait&) = delete;
    KernelWait& operator=(const KernelWait&) = delete;

    // An EpollSet has appeared: call iomux::epoll_wait instead of the kernel.
    bool superseded() const noexcept;
    // Takes the library's event out of the n events the kernel returned; returns how many are left. -1: nothing but
    // ours was there, so call iomux::epoll_wait with remaining().
    int filter(epoll_event* events, int n) const noexcept;
    const timespec* remaining() noexcept;

  private:
    int epfd_;
    bool counted_;
    bool infinite_;
    std::uint64_t deadline_ns_ = 0;
    timespec left_{};
};

// The same as one call: `kernel` is the program's call as it stands.
template <class Call>
int kernel_epoll_wait(int epfd, epoll_event* events, int maxevents, const timespec* timeout, const sigset_t* mask,
                      Call&& kernel) {
    int n;
    timespec left;
    const timespec* limit;
    {
        KernelWait wait(epfd, timeout);
        if (!wait.superseded()) {
            n = kernel();
            if (n <= 0) return n;
            n = wait.filter(events, n);
            if (n > 0) return n;
        }
        limit = wait.remaining();
        if (limit != nullptr) {
            left = *limit;
            limit = &left;
        }
    }
    return epoll_wait(epfd, events, maxevents, limit, mask);
}

}  // namespace vma::iomux
