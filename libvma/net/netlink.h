// SPDX-License-Identifier: BSD-2-Clause
// The library's own netlink socket: NETLINK_ROUTE, or NETLINK_SOCK_DIAG. libnl builds and parses the
// messages, but not on a socket of libnl. The descriptor has to live among the internal descriptors
// (runtime/internal_fd.h), and its system calls must bypass the interposed functions. libnl's socket allows
// neither.
#pragma once

#include <linux/netlink.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::net {

class NetlinkSocket {
  public:
    // Opens a socket in the calling thread's network namespace, bound to a port that the kernel picks.
    static Result<NetlinkSocket> open(int protocol = NETLINK_ROUTE);

    int fd() const noexcept { return fd_.get(); }
    // Joins the multicast group `group` (RTNLGRP_*).
    Result<void> join(unsigned group);
    // Asks for a receive buffer of `bytes`, above the system's limit where the process may.
    void enlarge_receive_buffer(int bytes) noexcept;

    // Sends one request. 0 or -errno, which stays untouched. Never allocates.
    int send(const nlmsghdr* message) noexcept;
    // Takes one datagram of the kernel, without waiting. Returns the messages' bytes, or -errno: -EAGAIN when
    // there is none, -ENOBUFS when announcements were lost, -EMSGSIZE when the datagram did not fit `buffer`.
    // Never allocates.
    ssize_t receive(std::span<std::uint8_t> buffer) noexcept;

    // Asks for a table (`type` RTM_GET*, with its family header) and calls `each` for every entry. After an
    // interrupted dump (the table changed meanwhile) calls `restart` and begins again. `what` names the table
    // in an error.
    Result<void> dump(const char* what, int type, const void* header, std::size_t header_length,
                      const std::function<void()>& restart, const std::function<void(nlmsghdr*)>& each);

    std::uint32_t next_sequence() noexcept { return ++sequence_; }

  private:
    InternalFd fd_;
    std::uint32_t sequence_ = 0;
};

// Calls `each` for the RTM_NEWLINK message of each interface, perhaps several times. On a socket of its own.
void for_each_link(const std::function<void(nlmsghdr*)>& each);

}  // namespace vma::net
