// SPDX-License-Identifier: BSD-2-Clause
// Does the kernel have a connection? A rule for a listening port also matches the segments of connections
// that the kernel serves on it: those moved to it.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/runtime/internal_fd.h"

namespace vma::net {

class KernelTcp {
  public:
    // Addresses and ports in network order. `ifindex`: the interface its segments come in by. True for any
    // state but LISTEN, TIME_WAIT included; false also where the kernel does not tell (sock_diag(7) is
    // missing or not allowed). In the network namespace of the first call's thread. Two system calls; the
    // first call, and a forked child's first one, makes the socket. No memory, errno untouched. One thread at
    // a time.
    bool has(in_addr_t local_addr, in_port_t local_port, in_addr_t remote_addr, in_port_t remote_port,
             int ifindex) noexcept;

  private:
    InternalFd socket_;
    std::uint32_t sequence_ = 0;
};

}  // namespace vma::net
