// SPDX-License-Identifier: BSD-2-Clause
// The kernel socket under a socket of the library's: it holds the port, and its name. errno stays where it is
// not the answer.
#pragma once

#include <netinet/in.h>

#include <cstdint>

namespace vma::sockets::shadow {

// getsockname(); all zero if it has no IPv4 name.
sockaddr_in name_of(int fd) noexcept;
// getpeername(), the same.
sockaddr_in peer_of(int fd) noexcept;

// SO_COOKIE, which tells sockets apart whatever their numbers; 0: the kernel does not tell, or it is none.
std::uint64_t cookie_of(int fd) noexcept;

// bind(); both in network order.
int bind_to(int fd, in_addr_t addr, in_port_t port) noexcept;

// Binds the address alone. `kept`: IP_BIND_ADDRESS_NO_PORT is the program's choice, and stays.
bool bind_address(int fd, in_addr_t addr, bool kept) noexcept;

// connect(AF_UNSPEC).
int dissolve(int fd) noexcept;

}  // namespace vma::sockets::shadow
