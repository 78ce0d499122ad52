// SPDX-License-Identifier: BSD-2-Clause
// Packets that were received by a device of ours are given to the kernel: real sockets of the kernel have to
// get them as if they had come by the interface. The peer's side is made of an AF_PACKET socket on a veth:
// what it sends is not sent, but given; what the kernel answers comes out of the interface, as it would for a
// real peer.
#include "libvma/net/kernel_path.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "libvma/net/checksum.h"

namespace vma::net {
namespace {

constexpr const char *kOwn = "198.18.0.1", *kPeer = "198.18.0.2";
constexpr MacAddress kOwnMac{2, 0, 0, 0, 0, 1}, kPeerMac{2, 0, 0, 0, 0, 2};
constexpr std::size_t kIp = 14;
constexpr int kLimitMs = 5000;

void run(const std::string& command) { ASSERT_EQ(system((command + " 2>&1").c_str()), 0) << command; }

struct Fd {
    explicit Fd(int fd) : fd(fd) { EXPECT_GE(fd, 0) << strerror(errno); }
    ~Fd() { close(fd); }
    Fd(const Fd&) = delete;
    int fd;
};

sockaddr_in address(const char* ip, std::uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = inet_addr(ip);
    a.sin_port = htons(port);
    return a;
}
void put16(std::vector<std::uint8_t>& f, std::size_t at, unsigned v) {
    f.at(at) = static_cast<std::uint8_t>(v >> 8);
    f.at(at + 1) = static_cast<std::uint8_t>(v);
}
void put32(std::vector<std::uint8_t>& f, std::size_t at, std::uint32_t v) {
    put16(f, at, v >> 16);
    put16(f, at + 2, v & 0xffff);
}
std::uint32_t get32(const std::vector<std::uint8_t>& f, std::size_t at) {
    return std::uint32_t{f.at(at)} << 24 | f.at(at + 1) << 16 | f.at(at + 2) << 8 | f.at(at + 3);
}

// An IPv4 packet in an Ethernet frame; `options` and `l4` follow the header.
std::vector<std::uint8_t> frame(std::uint8_t protocol, const std::vector<std::uint8_t>& l4,
                                std::uint16_t fragment = 0, std::uint16_t id = 0,
                                const std::vector<std::uint8_t>& options = {}, const char* from = kPeer,
                                const char* to = kOwn) {
    std::vector<std::uint8_t> f(kIp + 20);
    std::copy(kOwnMac.begin(), kOwnMac.end(), f.begin());
    std::copy(kPeerMac.begin(), kPeerMac.end(), f.begin() + 6);
    put16(f, 12, 0x0800);
    f[kIp] = static_cast<std::uint8_t>(0x45 + options.size() / 4);
    put16(f, kIp + 2, static_cast<unsigned>(20 + options.size() + l4.size()));
    put16(f, kIp + 4, id);
    put16(f, kIp + 6, fragment);
    f[kIp + 8] = 64;
    f[kIp + 9] = protocol;
    put32(f, kIp + 12, ntohl(inet_addr(from)));
    put32(f, kIp + 16, ntohl(inet_addr(to)));
    f.insert(f.end(), options.begin(), options.end());
    const std::uint16_t sum =
        static_cast<std::uint16_t>(~checksum_fold(checksum_add(f.data() + kIp, 20 + options.size(), 0)));
    std::memcpy(&f[kIp + 10], &sum, 2);
    f.insert(f.end(), l4.begin(), l4.end());
    return f;
}
void seal(std::vector<std::uint8_t>& l4, std::uint8_t protocol, std::size_t field) {
    put16(l4, field, 0);
    const std::uint64_t pseudo =
        pseudo_header_sum(inet_addr(kPeer), inet_addr(kOwn), protocol, static_cast<std::uint32_t>(l4.size()));
    const std::uint16_t sum =
        static_cast<std::uint16_t>(~checksum_fold(checksum_add(l4.data(), l4.size(), pseudo)));
    std::memcpy(&l4[field], &sum, 2);
}
std::vector<std::uint8_t> datagram(std::uint16_t from, std::uint16_t to, const std::string& payload) {
    std::vector<std::uint8_t> l4(8);
    put16(l4, 0, from);
    put16(l4, 2, to);
    put16(l4, 4, static_cast<unsigned>(8 + payload.size()));
    l4.insert(l4.end(), payload.begin(), payload.end());
    seal(l4, IPPROTO_UDP, 6);
    return l4;
}

class KernelPathTest : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (unshare(CLONE_NEWNET) != 0) FAIL() << "needs root (CAP_SYS_ADMIN): " << strerror(errno);
        run("ip link set lo up");
        run("ip link add near type veth peer name far");
        run("ip link set near address 02:00:00:00:00:01 && ip link set far address 02:00:00:00:00:02");
        run("ip addr add 198.18.0.1/24 dev near && ip link set near up && ip link set far up");
        run("ip neigh add 198.18.0.2 lladdr 02:00:00:00:00:02 dev near nud permanent");
        for (const char* where : {"all", "default", "near", "lo"})
            run("sysctl -qw net.ipv4.conf." + std::string(where) +
                ".rp_filter=" + std::to_string(GetParam()));
        path.open("test", [](in_addr_t a) { return a == inet_addr(kOwn); });
        ASSERT_TRUE(static_cast<bool>(path));
    }
    bool give(const std::vector<std::uint8_t>& f) {
        // In two pieces, as a long frame of the device.
        const std::size_t first = std::min<std::size_t>(f.size(), 80);
        const std::span<const std::uint8_t> pieces[2]{{f.data(), first},
                                                      {f.data() + first, f.size() - first}};
        return path.give(FramePieces(pieces, 2), kOwnMac);
    }
    static std::string receive(int fd, msghdr* control = nullptr) {
        pollfd p{fd, POLLIN, 0};
        if (::poll(&p, 1, kLimitMs) != 1) return "nothing came";
        std::string text(70000, '\0');
        iovec iov{text.data(), text.size()};
        sockaddr_in from{};
        msghdr m{};
        if (control != nullptr) m = *control;
        m.msg_name = &from;
        m.msg_namelen = sizeof from;
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        const ssize_t n = recvmsg(fd, &m, 0);
        if (control != nullptr) control->msg_controllen = m.msg_controllen;
        text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
        EXPECT_EQ(from.sin_family == AF_INET ? from.sin_addr.s_addr : inet_addr(kPeer), inet_addr(kPeer));
        return text;
    }
    static int udp_socket(std::uint16_t port, const char* device = nullptr, const char* ip = kOwn) {
        const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const std::string name = device != nullptr ? device : "";  // empty: not bound
        EXPECT_EQ(
            setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name.data(), static_cast<socklen_t>(name.size())), 0);
        const sockaddr_in a = address(ip, port);
        EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), 0);
        return fd;
    }
    KernelPath path;
};

TEST_P(KernelPathTest, ADatagramReachesItsSocket) {
    Fd own(udp_socket(2000)), any(udp_socket(2001, nullptr, "0.0.0.0"));
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2000, "to the address"))));
    EXPECT_EQ(receive(own.fd), "to the address");
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2001, "to any"))));
    EXPECT_EQ(receive(any.fd), "to any");
}

TEST_P(KernelPathTest, AConnectedSocketOfThePeerGetsIt) {
    Fd fd(udp_socket(2000));
    const sockaddr_in peer = address(kPeer, 1000);
    ASSERT_EQ(connect(fd.fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0);
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1001, 2000, "from another port"))));
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2000, "from the peer"))));
    EXPECT_EQ(receive(fd.fd), "from the peer");
}

TEST_P(KernelPathTest, ASocketOfTheDeviceGetsItAndSeesTheInterface) {
    Fd fd(udp_socket(2000, "near"));
    const int on = 1;
    ASSERT_EQ(setsockopt(fd.fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on), 0);
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2000, "by the device"))));
    char buffer[128];
    msghdr m{};
    m.msg_control = buffer;
    m.msg_controllen = sizeof buffer;
    EXPECT_EQ(receive(fd.fd, &m), "by the device");
    const cmsghdr* c = CMSG_FIRSTHDR(&m);
    ASSERT_NE(c, nullptr);
    in_pktinfo info;
    std::memcpy(&info, CMSG_DATA(c), sizeof info);
    EXPECT_EQ(info.ipi_ifindex, static_cast<int>(if_nametoindex("near")));
    EXPECT_EQ(info.ipi_addr.s_addr, inet_addr(kOwn));
}

TEST_P(KernelPathTest, FragmentsBecomeTheirDatagram) {
    Fd fd(udp_socket(2000));
    std::string payload(5000, '\0');
    for (std::size_t i = 0; i < payload.size(); i++) payload[i] = static_cast<char>('a' + i % 26);
    const std::vector<std::uint8_t> l4 = datagram(1000, 2000, payload);
    for (const std::uint16_t id : {std::uint16_t{4711}, std::uint16_t{0}}) {
        // The last one first.
        for (std::size_t at = l4.size() / 1400 * 1400;; at -= 1400) {
            const std::size_t length = std::min<std::size_t>(1400, l4.size() - at);
            const std::uint16_t more = at + length < l4.size() ? kMoreFragments : 0;
            const std::vector<std::uint8_t> part(l4.begin() + static_cast<long>(at),
                                                 l4.begin() + static_cast<long>(at + length));
            EXPECT_TRUE(give(frame(IPPROTO_UDP, part, static_cast<std::uint16_t>(more | at / 8), id)));
            if (at == 0) break;
        }
        EXPECT_TRUE(receive(fd.fd) == payload) << "identification " << id;
    }
}

TEST_P(KernelPathTest, IpOptionsAreTheKernels) {
    Fd fd(udp_socket(2000));
    const std::vector<std::uint8_t> nops{1, 1, 1, 0};
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2000, "with options"), 0, 1, nops)));
    EXPECT_EQ(receive(fd.fd), "with options");
}

TEST_P(KernelPathTest, ABadSumStaysBad) {
    Fd fd(udp_socket(2000));
    auto l4 = datagram(1000, 2000, "damaged");
    l4.back() ^= 1;
    EXPECT_TRUE(give(frame(IPPROTO_UDP, l4)));
    auto f = frame(IPPROTO_UDP, datagram(1000, 2000, "bad header"));
    f[kIp + 8] ^= 1;
    EXPECT_FALSE(give(f));
    EXPECT_TRUE(give(frame(IPPROTO_UDP, datagram(1000, 2000, "right"))));
    EXPECT_EQ(receive(fd.fd), "right");
}

TEST_P(KernelPathTest, WhatIsNotToBeGivenIsNot) {
    const auto l4 = datagram(1000, 2000, "x");
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, kPeer, "224.0.0.5")));
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, kPeer, "255.255.255.255")));
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, kPeer, "198.18.0.255")));
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, kPeer, "198.18.0.9"))) << "would be forwarded";
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, kOwn, kOwn))) << "claims to be from here";
    EXPECT_FALSE(give(frame(IPPROTO_UDP, l4, 0, 0, {}, "127.0.0.1", kOwn)));
    auto f = frame(IPPROTO_UDP, l4);
    std::copy(kOwnMac.begin(), kOwnMac.end(), f.begin() + 6);
    EXPECT_FALSE(give(f)) << "this host sent it";
    f = frame(IPPROTO_UDP, l4);
    f[0] ^= 2;
    EXPECT_FALSE(give(f)) << "for another station";
    f = frame(IPPROTO_UDP, l4);
    f.resize(f.size() - 1);
    EXPECT_FALSE(give(f)) << "cut";
    f.resize(20);
    EXPECT_FALSE(give(f));
    EXPECT_FALSE(path.give({}, kOwnMac));
    EXPECT_EQ(path.failures(), 0u);
}

// A TCP connection of the kernel's whose peer is played here: handshake, data both ways, FIN.
TEST_P(KernelPathTest, ATcpConnectionLives) {
    const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Fd listener(listening);
    const sockaddr_in a = address(kOwn, 2000);
    ASSERT_EQ(bind(listening, reinterpret_cast<const sockaddr*>(&a), sizeof a), 0);
    ASSERT_EQ(listen(listening, 1), 0);
    Fd wire(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP)));
    sockaddr_ll where{};
    where.sll_family = AF_PACKET;
    where.sll_protocol = htons(ETH_P_IP);
    where.sll_ifindex = static_cast<int>(if_nametoindex("far"));
    ASSERT_EQ(bind(wire.fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);

    std::uint32_t seq = 5000, ack = 0;
    auto send = [&](std::uint8_t flags, const std::string& payload = "") {
        std::vector<std::uint8_t> l4(20);
        put16(l4, 0, 1000);
        put16(l4, 2, 2000);
        put32(l4, 4, seq);
        put32(l4, 8, ack);
        l4[12] = 5 << 4;
        l4[13] = flags;
        put16(l4, 14, 60000);
        l4.insert(l4.end(), payload.begin(), payload.end());
        seal(l4, IPPROTO_TCP, 16);
        EXPECT_TRUE(give(frame(IPPROTO_TCP, l4)));
        seq += static_cast<std::uint32_t>(payload.size()) + ((flags & 3) != 0 ? 1 : 0);
    };
    // The kernel's next segment with one of these flags, or with payload.
    auto expect = [&](std::uint8_t flags) -> std::string {
        for (;;) {
            pollfd p{wire.fd, POLLIN, 0};
            if (::poll(&p, 1, kLimitMs) != 1) return "nothing came";
            std::vector<std::uint8_t> f(4096);
            const ssize_t n = recv(wire.fd, f.data(), f.size(), 0);
            if (n < 54 || f[kIp + 9] != IPPROTO_TCP) continue;
            const std::size_t total = static_cast<std::size_t>(f[kIp + 2]) << 8 | f[kIp + 3],
                              at = 34 + (f[34 + 12] >> 4 << 2);
            const std::string payload(f.begin() + static_cast<long>(at),
                                      f.begin() + static_cast<long>(kIp + total));
            if ((f[34 + 13] & flags) == 0 && (payload.empty() || (flags & 8) == 0)) continue;
            ack = get32(f, 38) + static_cast<std::uint32_t>(payload.size()) + ((f[34 + 13] & 3) != 0 ? 1 : 0);
            return payload;
        }
    };
    send(0x02);
    EXPECT_EQ(expect(0x02), "");
    send(0x10);
    pollfd p{listening, POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, kLimitMs), 1);
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    Fd connection(accept(listening, reinterpret_cast<sockaddr*>(&peer), &length));
    EXPECT_EQ(peer.sin_addr.s_addr, inet_addr(kPeer));
    send(0x18, "question");
    EXPECT_EQ(receive(connection.fd), "question");
    ASSERT_EQ(::send(connection.fd, "answer", 6, 0), 6);
    EXPECT_EQ(expect(0x08), "answer");
    send(0x10);
    send(0x11);
    EXPECT_EQ(receive(connection.fd), "");
    shutdown(connection.fd, SHUT_WR);
    expect(0x01);
    send(0x10);
}

INSTANTIATE_TEST_SUITE_P(RpFilter, KernelPathTest, testing::Values(0, 1),
                         [](const auto& info) { return "rp_filter_" + std::to_string(info.param); });

}  // namespace
}  // namespace vma::net
