// SPDX-License-Identifier: BSD-2-Clause
// Does the kernel have a connection? A rule for a listening port also matches the segments of connections that the kernel
// serves on it: those moved to it.
#pragma once

#include <netinet/in.h>

namespace vma::net {

// Addresses and ports in network order. `ifindex`: the interface its segments come in by. True for any state but LISTEN,
// TIME_WAIT included; false also where the kernel does not tell (sock_diag(7) is missing or not allowed). In the calling
// thread's network namespace. System calls only: no lock, no memory, errno untouched.
bool kernel_has_tcp(in_addr_t local_addr, in_port_t local_port, in_addr_t remote_addr, in_port_t remote_port,
                    int ifindex) noexcept;

}  // namespace vma::net
