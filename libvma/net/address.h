// SPDX-License-Identifier: BSD-2-Clause
// Addresses and ports that name a socket or its peer, for both families. Here alone they are converted from
// and to sockaddr.
//
// The data path carries IPv4 only, so frames, flow rules and routes keep in_addr_t. An Address holds IPv4 as
// an IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2), so that v4() is one load. Code converts where a
// name enters or leaves the data path, once.
#pragma once

#include <fmt/core.h>
#include <netinet/in.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace vma::net {

class Address {
  public:
    // The unspecified address of IPv4, which also stands for "none".
    constexpr Address() noexcept : Address(in_addr_t{0}) {}
    // Network byte order, as everywhere below.
    constexpr explicit Address(in_addr_t v4) noexcept : words_{0, 0, kMapped, v4} {}
    // An IPv4-mapped one is an address of IPv4.
    explicit Address(const in6_addr& v6) noexcept : words_(std::bit_cast<Words>(v6)) {}

    constexpr bool is_v4() const noexcept { return (words_[0] | words_[1] | (words_[2] ^ kMapped)) == 0; }
    // Only of an address of IPv4.
    constexpr in_addr_t v4() const noexcept { return words_[3]; }
    // IPv4 as an IPv4-mapped address.
    in6_addr v6() const noexcept { return std::bit_cast<in6_addr>(words_); }

    // 0.0.0.0 or ::
    constexpr bool is_any() const noexcept {
        return (words_[0] | words_[1] | words_[3]) == 0 && (words_[2] == kMapped || words_[2] == 0);
    }
    // 127/8 or ::1
    constexpr bool is_loopback() const noexcept {
        if (is_v4()) return host(v4()) >> 24 == 127;
        return (words_[0] | words_[1] | words_[2]) == 0 && host(words_[3]) == 1;
    }
    constexpr bool is_multicast() const noexcept {
        return is_v4() ? host(v4()) >> 28 == 0xe : host(words_[0]) >> 24 == 0xff;
    }
    // An address of one host that packets travel to. That leaves out the unspecified ones, loopback and
    // multicast; of IPv4 also the broadcast address. As in the kernel, 0/8 and 240/4 are ordinary otherwise.
    constexpr bool is_unicast() const noexcept {
        if (!is_v4()) return !is_any() && !is_loopback() && !is_multicast();
        const std::uint32_t a = host(v4());
        return a != 0 && a >> 24 != 127 && a >> 28 != 0xe && a != 0xffffffff;
    }

    // As inet_ntop(3) writes it: "198.18.0.1", "2001:db8::1".
    std::string text() const;

    friend constexpr bool operator==(const Address&, const Address&) noexcept = default;

  private:
    using Words = std::array<std::uint32_t, 4>;
    static constexpr std::uint32_t host(std::uint32_t word) noexcept {
        return std::endian::native == std::endian::little ? __builtin_bswap32(word) : word;
    }
    static constexpr std::uint32_t kMapped = std::endian::native == std::endian::little ? 0xffff0000 : 0xffff;

    Words words_;
};

struct Endpoint {
    constexpr Endpoint() noexcept = default;
    constexpr Endpoint(const Address& a, in_port_t p) noexcept : address(a), port(p) {}
    constexpr Endpoint(in_addr_t a, in_port_t p) noexcept : address(a), port(p) {}
    explicit Endpoint(const sockaddr_in& name) noexcept : Endpoint(name.sin_addr.s_addr, name.sin_port) {}
    // Nothing: `name` is shorter than its family needs, or of another family. The flow label and the scope of
    // IPv6 stay with the caller.
    static std::optional<Endpoint> of(const sockaddr* name, socklen_t length) noexcept;

    // "198.18.0.1:80", "[2001:db8::1]:80"
    std::string text() const;

    friend constexpr bool operator==(const Endpoint&, const Endpoint&) noexcept = default;

    Address address;
    in_port_t port = 0;  // network order; 0: none
};

// Both ends of a connection or of a connected socket.
struct Endpoints {
    friend constexpr bool operator==(const Endpoints&, const Endpoints&) noexcept = default;

    Endpoint local, remote;
};

// The data path's way to write a name; both in network order.
inline sockaddr_in ipv4_name(in_addr_t address, in_port_t port) noexcept {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = address;
    name.sin_port = port;
    return name;
}

// An endpoint as programs and the kernel write it: a sockaddr_in or sockaddr_in6.
class SocketName {
  public:
    explicit SocketName(const Endpoint& endpoint) noexcept;

    const sockaddr* get() const noexcept { return &name_.any; }
    socklen_t size() const noexcept { return size_; }

  private:
    union {
        sockaddr any;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } name_;
    socklen_t size_;
};

}  // namespace vma::net

namespace std {
template <>
struct hash<vma::net::Address> {
    size_t operator()(const vma::net::Address& address) const noexcept;
};
template <>
struct hash<vma::net::Endpoint> {
    size_t operator()(const vma::net::Endpoint& endpoint) const noexcept;
};
}  // namespace std

template <>
struct fmt::formatter<vma::net::Address> : fmt::formatter<fmt::string_view> {
    fmt::format_context::iterator format(const vma::net::Address& address, fmt::format_context& out) const;
};
template <>
struct fmt::formatter<vma::net::Endpoint> : fmt::formatter<fmt::string_view> {
    fmt::format_context::iterator format(const vma::net::Endpoint& endpoint, fmt::format_context& out) const;
};
