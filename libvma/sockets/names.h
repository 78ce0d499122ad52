// SPDX-License-Identifier: BSD-2-Clause
// How socket calls answer: names of sockets, and errors.
#pragma once

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "libvma/net/address.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

// -1 with errno, as a system call ends.
inline int failed(int error) noexcept {
    errno = error;
    return -1;
}

// What getsockname(2) and accept(2) do with a name: cut to the room, tell the whole length. 0, or -1 with
// errno.
inline int copy_name(const net::Endpoint& endpoint, sockaddr* addr, socklen_t* len) noexcept {
    if (!UserMemory::writable(len, sizeof *len)) return failed(EFAULT);
    if (static_cast<int>(*len) < 0) return failed(EINVAL);
    const net::SocketName name(endpoint);
    const std::size_t n = std::min(*len, name.size());
    if (!UserMemory::writable(addr, n)) return failed(EFAULT);
    std::memcpy(addr, name.get(), n);
    *len = name.size();
    return 0;
}

}  // namespace vma::sockets
