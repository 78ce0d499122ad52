// SPDX-License-Identifier: BSD-2-Clause
// The kernel's knowledge of an epoll set, and the way to wake threads that sleep in the set.
//
// An EpollSet is made late, when a kernel set gets its first offloaded member. By then the kernel set may
// have members, other descriptor numbers (dup), sets around it, and threads asleep in it. /proc tells about
// the first three. For the last, the library counts threads that are about to sleep in the kernel. It then
// puts an event of its own, always ready, into the kernel's set until these threads have woken up and left.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace vma::iomux {

// One line of /proc/self/fdinfo of an epoll descriptor.
struct KernelMember {
    int fd;                // the number at the time of EPOLL_CTL_ADD
    std::uint32_t events;  // with EPOLLERR and EPOLLHUP, which the kernel adds; without both when disarmed
    std::uint64_t data;
    std::uint64_t inode;
};

// The members of `epfd` without the library's own event; empty where /proc is not mounted.
std::vector<KernelMember> kernel_members(int epfd);

// Every epoll descriptor of the process but `except` and the library's own.
std::vector<int> epoll_descriptors(int except);

// Is it an epoll descriptor? False also where /proc is not mounted.
bool is_epoll(int fd) noexcept;

// Do both numbers refer to the same open file? False also when the kernel does not answer.
bool same_file(int a, int b) noexcept;

// Is `fd` a member of `epfd`, under this number and with its present file?
bool is_member(int epfd, int fd) noexcept;

// A disarmed EPOLLONESHOT member has lost all its events, even the implied ones.
inline bool kernel_disarmed(std::uint32_t events) noexcept {
    return (events & ~(EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)) == 0;
}

namespace sleepers {

// Counts a thread that will sleep in a call on these sets, WatchedSets::kMost at most. Returns the ticket for
// leave(), 0 if it counted no set. A thread sleeps in one place: after a jump out of a handler, its next
// enter() ends the old count.
unsigned enter(std::span<const int> epfds) noexcept;
void leave(unsigned ticket) noexcept;
// Is there an EpollSet under `epfd` now? Call it after enter(): then either this thread sees the set, or
// kick() sees the count.
bool superseded(int epfd) noexcept;
// A kick makes a set readable until its threads have woken up. Calls that ask the kernel whether a set is
// readable wait for that, for a short time.
extern std::atomic<int> g_kicks;  // kicks being made, or in a set; too high if such a set was closed
void await_settled() noexcept;
inline void settle() noexcept {
    if (__builtin_expect(g_kicks.load(std::memory_order_seq_cst) > 0, 0)) await_settled();
}

// Called after EpollSets were put under these numbers: wakes the threads that sleep there.
void kick(std::span<const int> epfds) noexcept;
// Is it the event of kick()?
bool is_kick(std::uint64_t data) noexcept;
std::uint64_t kick_data() noexcept;

}  // namespace sleepers

}  // namespace vma::iomux
