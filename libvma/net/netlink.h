// SPDX-License-Identifier: BSD-2-Clause
// A NETLINK_ROUTE socket of our own. Messages are built and taken apart with libnl, but the descriptor is
// ours: it has to live among the internal descriptors (runtime/internal_fd.h), and its system calls must not
// enter the interposed functions, neither of which libnl's own socket allows.
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
    // In the calling thread's network namespace, bound to a port the kernel picks.
    static Result<NetlinkSocket> open();

    int fd() const noexcept { return fd_.get(); }
    // Joins the multicast group `group` (RTNLGRP_*); false with errno.
    bool join(unsigned group) noexcept;
    // Asks for a receive buffer of `bytes`; beyond the system's limit where the process may.
    void enlarge_receive_buffer(int bytes) noexcept;

    // Sends one request. False with errno. Never allocates.
    bool send(const nlmsghdr* message) noexcept;
    // Takes one datagram that the kernel sent, without waiting. The messages' bytes, or -errno: -EAGAIN when
    // there is none, -ENOBUFS when announcements were lost, -EMSGSIZE when it did not fit `buffer`. Never
    // allocates.
    ssize_t receive(std::span<std::uint8_t> buffer) noexcept;

    // Asks for a table (`type` RTM_GET*, with its family header) and calls `each` for every entry. An
    // interrupted dump (the table changed meanwhile) is begun again after calling `restart`. Returns 0 or an
    // errno value.
    int dump(int type, const void* header, std::size_t header_length, const std::function<void()>& restart,
             const std::function<void(nlmsghdr*)>& each);

    std::uint32_t next_sequence() noexcept { return ++sequence_; }

  private:
    InternalFd fd_;
    std::uint32_t sequence_ = 0;
};

}  // namespace vma::net
