// SPDX-License-Identifier: BSD-2-Clause
// IPv4 socket addresses as text, and the calls around them.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

namespace vma_perf {

// "198.18.1.2" -> address. Throws Failure with kUsage for anything else.
sockaddr_in make_address(const std::string& ip, std::uint16_t port);
std::string ip_text(const sockaddr_in& address);
std::uint16_t port_of(const sockaddr_in& address);
// A name or address of a host -> its first IPv4 address as text. Throws Failure with kUnreachable.
std::string resolve(const std::string& host);

sockaddr_in local_address(int fd);
sockaddr_in peer_address(int fd);
// bind(), and the address that was got. Throws Failure.
sockaddr_in bind_to(int fd, const sockaddr_in& address);

inline const sockaddr* as_sockaddr(const sockaddr_in& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}
inline sockaddr* as_sockaddr(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

}  // namespace vma_perf
