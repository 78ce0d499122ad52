// SPDX-License-Identifier: BSD-2-Clause
// Socket addresses of IPv4 as programs give and get them.
#pragma once

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

// An address of one host that packets travel to: neither 0/8, loopback, multicast, reserved nor broadcast.
inline bool is_unicast(in_addr_t a) noexcept {
    const std::uint32_t h = ntohl(a);
    return (h >> 24) != 0 && (h >> 24) != 127 && (h >> 28) < 0xe;
}

// -1 with errno, as a system call ends.
inline int failed(int error) noexcept {
    errno = error;
    return -1;
}

// What getsockname(2) and accept(2) do with a name: cut to the room, tell the whole length. 0, or -1 with
// errno.
inline int copy_name(in_addr_t address, in_port_t port, sockaddr* addr, socklen_t* len) noexcept {
    if (!UserMemory::writable(len, sizeof *len)) return failed(EFAULT);
    if (static_cast<int>(*len) < 0) return failed(EINVAL);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = address;
    name.sin_port = port;
    const std::size_t n = std::min<std::size_t>(*len, sizeof name);
    if (!UserMemory::writable(addr, n)) return failed(EFAULT);
    std::memcpy(addr, &name, n);
    *len = sizeof name;
    return 0;
}

}  // namespace vma::sockets
