// SPDX-License-Identifier: BSD-2-Clause
// What the kernel knows about an epoll set, and the way to wake threads that sleep in it.
//
// An EpollSet comes into being late, when a kernel set gets its first offloaded member. By then the set may
// have members, other descriptor numbers (dup), sets around it, and threads asleep in it. /proc tells about
// the first three; for the last, threads that are about to sleep in the kernel are counted, and an event of
// the library's own, always ready, is put into the kernel's set until they have all woken up and left.
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

// The members of `epfd`; nothing where /proc is not mounted. The library's own event is left out.
std::vector<KernelMember> kernel_members(int epfd);

// Every epoll descriptor of the process but `except` and the library's own.
std::vector<int> epoll_descriptors(int except);

// Is it an epoll descriptor? False also where /proc is not mounted.
bool is_epoll(int fd) noexcept;

// Do both numbers refer to the same open file? False also when the kernel will not say.
bool same_file(int a, int b) noexcept;

// Is `fd` a member of `epfd`, under this number and with the file it stands for now?
bool is_member(int epfd, int fd) noexcept;

// A disarmed EPOLLONESHOT member has lost all its events, even the implied ones.
inline bool kernel_disarmed(std::uint32_t events) noexcept {
    return (events & ~(EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)) == 0;
}

namespace sleepers {

// Counts a thread that will sleep in a call on these sets, WatchedSets::kMost at most. Returns what leave()
// takes; 0: nothing is counted. A thread sleeps in one place: what it left by a jump out of a handler is not
// counted any more from its next enter() on.
unsigned enter(std::span<const int> epfds) noexcept;
void leave(unsigned ticket) noexcept;
// Is there an EpollSet under `epfd` now? Asked after enter(), so that either this thread sees the set or
// kick() its count.
bool superseded(int epfd) noexcept;
// A kick makes a set readable, until those it is for have woken up. Waits for that, for a moment: for calls
// that ask the kernel whether a set is readable.
extern std::atomic<int> g_kicks;  // being made, or in a set; more, if such a set was closed
void await_settled() noexcept;
inline void settle() noexcept {
    if (__builtin_expect(g_kicks.load(std::memory_order_seq_cst) > 0, 0)) await_settled();
}

// After EpollSets were put under these numbers: wakes whoever sleeps there.
void kick(std::span<const int> epfds) noexcept;
// Is it the event that kick() makes?
bool is_kick(std::uint64_t data) noexcept;
std::uint64_t kick_data() noexcept;

}  // namespace sleepers

}  // namespace vma::iomux
