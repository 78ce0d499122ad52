// SPDX-License-Identifier: BSD-2-Clause
// The kernel socket under a socket of the library's: it holds the port, and its name. errno stays where it is
// not the answer.
#pragma once

#include <cstdint>

#include "libvma/net/address.h"

namespace vma::sockets::shadow {

// getsockname(); 0.0.0.0 and port 0 if it has no IPv4 name.
net::Endpoint name_of(int fd) noexcept;
// getpeername(), the same.
net::Endpoint peer_of(int fd) noexcept;

// SO_COOKIE, which tells sockets apart whatever their numbers; 0: the kernel does not tell, or it is none.
std::uint64_t cookie_of(int fd) noexcept;

// bind().
int bind_to(int fd, const net::Endpoint& name) noexcept;

// Binds the address alone. `kept`: IP_BIND_ADDRESS_NO_PORT is the program's choice, and stays.
bool bind_address(int fd, const net::Address& address, bool kept) noexcept;

// connect(AF_UNSPEC).
int dissolve(int fd) noexcept;

}  // namespace vma::sockets::shadow
