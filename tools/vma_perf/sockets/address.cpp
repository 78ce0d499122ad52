// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "tools/vma_perf/status.h"

namespace vma_perf {

sockaddr_in make_address(const std::string& ip, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1)
        throw Failure(kUsage, ip + " is no IPv4 address");
    return address;
}

std::string ip_text(const sockaddr_in& address) {
    char text[INET_ADDRSTRLEN];
    return inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
}

std::uint16_t port_of(const sockaddr_in& address) { return ntohs(address.sin_port); }

std::string resolve(const std::string& host) {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (error != 0) throw Failure(kUnreachable, fmt::format("{}: {}", host, gai_strerror(error)));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
    return ip_text(*reinterpret_cast<const sockaddr_in*>(found->ai_addr));
}

sockaddr_in local_address(int fd) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    if (getsockname(fd, as_sockaddr(address), &length) != 0) fail_errno("getsockname");
    return address;
}

sockaddr_in peer_address(int fd) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    if (getpeername(fd, as_sockaddr(address), &length) != 0) fail_errno("getpeername");
    return address;
}

sockaddr_in bind_to(int fd, const sockaddr_in& address) {
    if (bind(fd, as_sockaddr(address), sizeof address) != 0)
        fail_errno(fmt::format("bind to {} port {}", ip_text(address), port_of(address)));
    return local_address(fd);
}

}  // namespace vma_perf
