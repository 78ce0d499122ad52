// SPDX-License-Identifier: BSD-2-Clause
// Ports of connections that outlive their descriptor.
//
// A connection that the program has closed goes on until the peer has everything and TIME_WAIT is over. Its
// local port must stay taken in the kernel for so long, or another socket could get it, and meet the old
// connection's packets at the peer. So a copy of the shadow is kept. There is a bound; beyond it the oldest
// goes first, as in the kernel, where TIME_WAIT sockets over net.ipv4.tcp_max_tw_buckets are given up.
#pragma once

#include "libvma/runtime/internal_fd.h"
#include "libvma/tcp/connection.h"

namespace vma::sockets {

// Keeps what `copy`, of the shadow, is bound to until `connection` is over. Takes a reference of its own.
// Nothing happens in a signal handler that interrupted this function, or when `copy` is empty. Preserves
// errno.
void keep_port(InternalFd copy, tcp::Connection* connection) noexcept;

}  // namespace vma::sockets
