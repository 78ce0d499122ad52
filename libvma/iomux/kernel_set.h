// SPDX-License-Identifier: BSD-2-Clause
// What the kernel knows about an epoll set, and the way to wake threads that sleep in it.
//
// An EpollSet comes into being late, when a kernel set gets its first offloaded member. By then the set may have
// members, other descriptor numbers (dup), sets around it, and threads asleep in it. /proc tells about the first
// three; for the last, threads that are about to sleep in the kernel are counted, and an event of the library's own,
// always ready, is put into the kernel's set until they have all woken up and left.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
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

// Counts a thread that will sleep in epoll_wait(epfd). False: no memory for the count.
bool enter(int epfd) noexcept;
// may_be_kicked: there is an EpollSet under `epfd` now.
void leave(int epfd, bool may_be_kicked) noexcept;

// After an EpollSet was put under `epfd`: wakes whoever sleeps there.
void kick(int epfd) noexcept;
// Is it the event that kick() makes?
bool is_kick(std::uint64_t data) noexcept;
std::uint64_t kick_data() noexcept;

void reset_in_child() noexcept;

}  // namespace sleepers

}  // namespace vma::iomux
