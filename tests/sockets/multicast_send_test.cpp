// SPDX-License-Identifier: BSD-2-Clause
// The choice for a datagram to a group, without a network: interface, source, TTL, Ethernet address, ring or
// kernel; and what /proc/net/igmp says.
#include "libvma/sockets/udp/multicast_send.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "libvma/sockets/host_memberships.h"
#include "libvma/sockets/udp/destination.h"

namespace vma::sockets {
namespace {

in_addr_t ip4(const char* text) { return inet_addr(text); }

TEST(GroupMac, LowBits) {
    EXPECT_EQ(group_mac(ip4("224.0.0.1")), (net::MacAddress{1, 0, 0x5e, 0, 0, 1}));
    EXPECT_EQ(group_mac(ip4("239.255.255.254")), (net::MacAddress{1, 0, 0x5e, 0x7f, 0xff, 0xfe}));
    // 32 groups share one address.
    EXPECT_EQ(group_mac(ip4("224.129.2.3")), group_mac(ip4("239.1.2.3")));
}

TEST(IsGroup, Borders) {
    EXPECT_FALSE(is_group(ip4("223.255.255.255")));
    EXPECT_TRUE(is_group(ip4("224.0.0.0")));
    EXPECT_TRUE(is_group(ip4("239.255.255.255")));
    EXPECT_FALSE(is_group(ip4("240.0.0.0")));
    EXPECT_FALSE(is_group(ip4("255.255.255.255")));
}

TEST(GroupPath, DefaultsAreTheRoutes) {
    const GroupPath p = group_path({});
    EXPECT_EQ(p.src, 0u);
    EXPECT_EQ(p.path.oif, 0);
    EXPECT_EQ(p.path.ttl, 1);
}

TEST(GroupPath, OptionsFillWhatIsNotBound) {
    SendAttributes from;
    from.multicast = {.ifindex = 7, .address = ip4("198.18.1.1"), .ttl = 9};
    from.path.ttl = 64;
    from.path.tos = 0xb8;
    from.path.mark = 3;
    GroupPath p = group_path(from);
    EXPECT_EQ(p.src, ip4("198.18.1.1"));
    EXPECT_EQ(p.path.oif, 7);
    EXPECT_EQ(p.path.ttl, 9) << "IP_TTL does not count";
    EXPECT_EQ(p.path.tos, 0xb8);
    EXPECT_EQ(p.path.mark, 3u);

    from.src_addr = ip4("198.18.2.1");
    p = group_path(from);
    EXPECT_EQ(p.src, ip4("198.18.2.1")) << "the bound address comes first";
    EXPECT_EQ(p.path.oif, 7);

    from.path.oif = 4;
    EXPECT_EQ(group_path(from).path.oif, 4) << "and so does the device";
}

TEST(PacketInfo, OneMessageAndNothingElse) {
    alignas(cmsghdr) char control[2 * CMSG_SPACE(sizeof(in_pktinfo))] = {};
    msghdr message{};
    message.msg_control = control;
    auto* c = reinterpret_cast<cmsghdr*>(control);
    auto put = [&](int level, int type, std::size_t length, std::size_t room) {
        *c = {.cmsg_len = length, .cmsg_level = level, .cmsg_type = type};
        in_pktinfo info{};
        info.ipi_ifindex = 5;
        info.ipi_spec_dst.s_addr = ip4("198.18.1.101");
        info.ipi_addr.s_addr = ip4("203.0.113.1");
        std::memcpy(CMSG_DATA(c), &info, sizeof info);
        message.msg_controllen = room;
    };
    constexpr std::size_t kLength = CMSG_LEN(sizeof(in_pktinfo)), kSpace = CMSG_SPACE(sizeof(in_pktinfo));
    for (const std::size_t room : {kLength, kSpace}) {
        PacketInfo info;
        put(IPPROTO_IP, IP_PKTINFO, kLength, room);
        EXPECT_TRUE(info.read(message));
        EXPECT_EQ(info, (PacketInfo{5, ip4("198.18.1.101"), true}));
    }
    PacketInfo info;
    put(IPPROTO_IP, IP_PKTINFO, kLength, kLength - 1);
    EXPECT_FALSE(info.read(message));
    put(IPPROTO_IP, IP_PKTINFO, kLength, 2 * kSpace);
    EXPECT_FALSE(info.read(message)) << "there may be another one";
    put(IPPROTO_IP, IP_PKTINFO, kLength - 1, kSpace);
    EXPECT_FALSE(info.read(message));
    put(IPPROTO_IP, IP_TTL, kLength, kSpace);
    EXPECT_FALSE(info.read(message));
    put(SOL_SOCKET, IP_PKTINFO, kLength, kSpace);
    EXPECT_FALSE(info.read(message));
    message.msg_control = nullptr;
    EXPECT_FALSE(info.read(message));
    EXPECT_FALSE(info.given);
}

TEST(KernelSendsGroup, RingOrKernel) {
    net::Route route{.kind = net::Route::Kind::multicast, .ifindex = 3};
    for (const bool loops : {false, true}) EXPECT_EQ(kernel_sends_group(route, loops, false), "");
    EXPECT_NE(kernel_sends_group(route, true, true), "");
    EXPECT_EQ(kernel_sends_group(route, false, true), "") << "no copy is wanted";
    route.copied_here = true;
    EXPECT_NE(kernel_sends_group(route, true, false), "");
    EXPECT_EQ(kernel_sends_group(route, false, false), "");
    route.copied_here = false;
    route.gateway = ip4("198.18.1.2");
    EXPECT_NE(kernel_sends_group(route, false, false), "") << "the frame goes to the gateway's address";
    for (const auto kind : {net::Route::Kind::unicast, net::Route::Kind::local, net::Route::Kind::broadcast,
                            net::Route::Kind::other})
        EXPECT_NE(kernel_sends_group({.kind = kind}, false, false), "");
}

TEST(HostMemberships, Parse) {
    const auto entries = HostMemberships::parse(
        "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"
        "1\tlo        :     1      V3\n"
        "\t\t\t\t010000E0     1 0:00000000\t\t0\n"
        "12\tveth1     :     2      V3\n"
        "\t\t\t\t030201EF     4 1:0000003A\t\t1\n"
        "\t\t\t\t010000E0     1 0:00000000\t\t0\n");
    const std::vector<HostMemberships::Entry> expected{
        {1, ip4("224.0.0.1"), 1}, {12, ip4("239.1.2.3"), 4}, {12, ip4("224.0.0.1"), 1}};
    EXPECT_EQ(entries, expected);
}

TEST(HostMemberships, ParsesAnything) {
    EXPECT_TRUE(HostMemberships::parse("").empty());
    EXPECT_TRUE(HostMemberships::parse("\n\n").empty());
    EXPECT_TRUE(HostMemberships::parse("\t\t\t\t030201EF 1 0:0\n").empty()) << "no interface before it";
    EXPECT_EQ(HostMemberships::parse("3\tx\n\t\t\t\t030201EF").size(), 1u);
    EXPECT_EQ(HostMemberships::parse("3\tx\n\t\n").size(), 1u);
    EXPECT_TRUE(HostMemberships::parse("99999999999999999999\n\tzz zz\n").empty());
}

// The timers of a membership that is being reported move; that is no change.
TEST(HostMemberships, TimersDoNotCount) {
    EXPECT_EQ(HostMemberships::parse("3\tx\n\t\t\t\t030201EF     1 1:0000003A\t\t1\n"),
              HostMemberships::parse("3\tx\n\t\t\t\t030201EF     1 0:00000000\t\t0\n"));
}

// Every interface with IPv4 is a member of all hosts.
TEST(HostMemberships, ReadsThisHost) {
    std::ifstream file("/proc/net/igmp");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const HostMemberships::Entry& e : HostMemberships::parse(text)) {
        EXPECT_GT(e.ifindex, 0);
        EXPECT_TRUE(is_group(e.group)) << text;
        EXPECT_GT(e.users, 0u);
    }
}

TEST(HostMemberships, ChangesCount) {
    HostMemberships memberships;
    const std::uint32_t before = memberships.version();
    memberships.changed();
    EXPECT_NE(memberships.version(), before);
    EXPECT_FALSE(memberships.seen(1, ip4("239.1.2.3"))) << "nothing was looked at yet";
    EXPECT_FALSE(memberships.forwards());
}

}  // namespace
}  // namespace vma::sockets
