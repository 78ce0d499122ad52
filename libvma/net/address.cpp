// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <cstring>
#include <string_view>

namespace vma::net {

std::string Address::text() const {
    char out[INET6_ADDRSTRLEN];
    const in6_addr whole = v6();
    const in_addr_t word = v4();
    return is_v4() ? inet_ntop(AF_INET, &word, out, sizeof out)
                   : inet_ntop(AF_INET6, &whole, out, sizeof out);
}

std::optional<Endpoint> Endpoint::of(const sockaddr* name, socklen_t length) noexcept {
    sa_family_t family;
    if (length < sizeof family) return {};
    std::memcpy(&family, name, sizeof family);
    if (sockaddr_in v4; family == AF_INET && length >= sizeof v4) {
        std::memcpy(&v4, name, sizeof v4);
        return Endpoint(v4);
    }
    if (sockaddr_in6 v6; family == AF_INET6 && length >= sizeof v6) {
        std::memcpy(&v6, name, sizeof v6);
        return Endpoint(Address(v6.sin6_addr), v6.sin6_port);
    }
    return {};
}

std::string Endpoint::text() const {
    return address.is_v4() ? fmt::format("{}:{}", address.text(), ntohs(port))
                           : fmt::format("[{}]:{}", address.text(), ntohs(port));
}

SocketName::SocketName(const Endpoint& endpoint) noexcept : name_{}, size_(sizeof(sockaddr_in)) {
    if (endpoint.address.is_v4()) {
        name_.v4 = ipv4_name(endpoint.address.v4(), endpoint.port);
        return;
    }
    size_ = sizeof(sockaddr_in6);
    name_.v6 = {};
    name_.v6.sin6_family = AF_INET6;
    name_.v6.sin6_addr = endpoint.address.v6();
    name_.v6.sin6_port = endpoint.port;
}

}  // namespace vma::net

std::size_t std::hash<vma::net::Address>::operator()(const vma::net::Address& address) const noexcept {
    const in6_addr bytes = address.v6();
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&bytes), sizeof bytes});
}

std::size_t std::hash<vma::net::Endpoint>::operator()(const vma::net::Endpoint& endpoint) const noexcept {
    return std::hash<vma::net::Address>{}(endpoint.address) * 31 + endpoint.port;
}

fmt::format_context::iterator fmt::formatter<vma::net::Address>::format(const vma::net::Address& address,
                                                                        fmt::format_context& out) const {
    return fmt::formatter<fmt::string_view>::format(address.text(), out);
}

fmt::format_context::iterator fmt::formatter<vma::net::Endpoint>::format(const vma::net::Endpoint& endpoint,
                                                                         fmt::format_context& out) const {
    return fmt::formatter<fmt::string_view>::format(endpoint.text(), out);
}
