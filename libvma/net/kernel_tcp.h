// SPDX-License-Identifier: BSD-2-Clause
// Asks whether the kernel has a connection. A rule for a listening port also matches the segments of
// connections that the library handed over to the kernel.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/net/address.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::net {

class KernelTcp {
  public:
    // Of IPv4. `ifindex`: the interface that receives the connection's segments.
    // True for any state but LISTEN, TIME_WAIT included. False also without an answer (sock_diag(7) is
    // missing or not allowed). Asks in the network namespace of the first call's thread. Two system calls;
    // the first call, and a forked child's first one, makes the socket. Never allocates, errno untouched. One
    // thread at a time.
    bool has(const Endpoints& ends, int ifindex) noexcept;

  private:
    InternalFd socket_;
    std::uint32_t sequence_ = 0;
};

}  // namespace vma::net
