// SPDX-License-Identifier: BSD-2-Clause
// The kernel's list of UDP sockets that may receive multicast.
#include "libvma/net/udp_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::net {
namespace {

Result<std::vector<UdpListener>> listeners() {
    auto socket = NetlinkSocket::open(NETLINK_SOCK_DIAG);
    if (!socket) return std::unexpected(socket.error());
    return udp_listeners(*socket);
}

struct Bound {
    int fd;
    std::uint64_t cookie = 0;
    explicit Bound(int family) : fd(socket(family, SOCK_DGRAM, 0)) {}
    ~Bound() { close(fd); }
    bool bind_to(const sockaddr* name, socklen_t size) {
        socklen_t length = sizeof cookie;
        return bind(fd, name, size) == 0 && getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0;
    }
    bool bind_to(const char* address) {
        const sockaddr_in name = ipv4_name(inet_addr(address), 0);
        return bind_to(reinterpret_cast<const sockaddr*>(&name), sizeof name);
    }
    std::optional<UdpListener> listed() const {
        auto all = listeners();
        if (!all) return {};
        auto it = std::ranges::find(*all, cookie, &UdpListener::cookie);
        return it != all->end() ? std::optional(*it) : std::nullopt;
    }
    in_port_t port() const {
        sockaddr_in name{};
        socklen_t length = sizeof name;
        getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length);
        return name.sin_port;
    }
};

TEST(UdpSockets, ThoseThatMayReceiveMulticastAreListed) {
    Bound any(AF_INET), group(AF_INET), host(AF_INET), none(AF_INET);
    ASSERT_TRUE(any.bind_to("0.0.0.0"));
    ASSERT_TRUE(group.bind_to("239.1.2.3"));
    ASSERT_TRUE(host.bind_to("127.0.0.1"));
    ASSERT_TRUE(listeners());
    ASSERT_TRUE(any.listed());
    EXPECT_EQ(any.listed()->port, any.port());
    EXPECT_EQ(any.listed()->address, in_addr_t{0});
    ASSERT_TRUE(group.listed());
    EXPECT_EQ(group.listed()->address, inet_addr("239.1.2.3"));
    EXPECT_FALSE(host.listed());
}

TEST(UdpSockets, ASocketOfIpv6ReceivesIpv4UnlessItSaysNo) {
    Bound both(AF_INET6), alone(AF_INET6);
    if (both.fd < 0) return;  // a kernel without IPv6 has no such sockets
    const int on = 1;
    setsockopt(alone.fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    ASSERT_TRUE(both.bind_to(reinterpret_cast<const sockaddr*>(&any), sizeof any));
    ASSERT_TRUE(alone.bind_to(reinterpret_cast<const sockaddr*>(&any), sizeof any));
    ASSERT_TRUE(both.listed());
    EXPECT_EQ(both.listed()->address, in_addr_t{0});
    EXPECT_FALSE(alone.listed());
}

}  // namespace
}  // namespace vma::net
