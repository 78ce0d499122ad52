// SPDX-License-Identifier: BSD-2-Clause
// What a new TCP socket is like: the system's settings (sysctl) and the VMA_TCP_* parameters.
#pragma once

#include "libvma/tcp/connection.h"

namespace vma::sockets {

// `fd`: a TCP socket without set options, which the kernel is asked about the first time.
tcp::Options default_tcp_options(int fd) noexcept;
// The system's settings may have changed since: takes those that the kernel looks at later. `fd`: the shadow.
// True: `options` has changed. Costs little where nothing has.
bool follow_settings(int fd, tcp::Options& options) noexcept;
// Sets on a new socket's shadow what the parameters want otherwise than the kernel; no call when they want
// nothing.
void set_tcp_defaults_on(int fd) noexcept;
// net.core.somaxconn, which listen(2) cuts the backlog to.
unsigned somaxconn() noexcept;
// Whether packets are sent with DF under this IP_MTU_DISCOVER.
bool forbids_fragments(int mtu_discover) noexcept;
// SO_RCVBUF and SO_SNDBUF as the kernel reports them, as bytes of data.
std::uint32_t window_of_receive_buffer(int value) noexcept;

}  // namespace vma::sockets
