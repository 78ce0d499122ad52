// SPDX-License-Identifier: BSD-2-Clause
// Which multicast datagrams a socket receives, as Linux decides it.
#include "libvma/sockets/udp/memberships.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "libvma/sockets/membership_options.h"

namespace vma::sockets {
namespace {

constexpr int kOne = 3, kTwo = 4;
const in_port_t kPort = htons(5000), kOther = htons(5001);

in_addr_t ip(const char* text) { return inet_addr(text); }
const in_addr_t kGroup = ip("239.1.2.3"), kAlias = ip("239.129.2.3");
const net::Endpoint kSource(ip("198.18.1.2"), htons(7000)), kElse(ip("198.18.1.9"), htons(7000));

GroupListener bound_to(const char* address) {
    GroupListener s;
    s.ends.local = {ip(address), kPort};
    return s;
}

bool gets(const GroupListener& s, int ifindex = kOne, const net::Endpoint& from = kSource,
          in_addr_t group = kGroup, in_port_t port = kPort) {
    return s.wants(group, port, ifindex) && s.senders(group, ifindex).include(from.address.v4(), from.port);
}

TEST(Memberships, OneWhoJoinedReceivesOnThatInterfaceAlone) {
    GroupListener s = bound_to("0.0.0.0");
    s.all = false;
    EXPECT_FALSE(gets(s));
    s.memberships.set(kGroup, kOne, {});
    EXPECT_TRUE(gets(s));
    EXPECT_FALSE(gets(s, kTwo));
    EXPECT_FALSE(gets(s, kOne, kSource, kGroup, kOther));
    EXPECT_FALSE(gets(s, kOne, kSource, kAlias));
    s.memberships.erase(kGroup, kOne);
    EXPECT_FALSE(gets(s));
}

TEST(Memberships, MulticastAllDecidesWhereThereIsNoMembership) {
    GroupListener s = bound_to("0.0.0.0");
    EXPECT_TRUE(gets(s));
    // A membership decides by its own filter, whatever IP_MULTICAST_ALL says.
    s.memberships.set(kGroup, kOne, {false, {kElse.address.v4()}});
    EXPECT_FALSE(gets(s));
    EXPECT_TRUE(gets(s, kOne, kElse));
    EXPECT_TRUE(gets(s, kTwo));
}

TEST(Memberships, TheBoundAddressDecides) {
    GroupListener s = bound_to("239.1.2.3");
    EXPECT_TRUE(gets(s));
    EXPECT_FALSE(gets(s, kOne, kSource, kAlias));
    // A socket that is bound to an address of the host never receives multicast.
    s = bound_to("198.18.1.1");
    s.memberships.set(kGroup, kOne, {});
    EXPECT_FALSE(gets(s));
    EXPECT_FALSE(s.listens());
    s.ends.local.port = 0;
    EXPECT_FALSE(gets(s));
}

TEST(Memberships, ThePeerAndTheDeviceDecide) {
    GroupListener s = bound_to("239.1.2.3");
    s.ends.remote = kSource;
    EXPECT_TRUE(gets(s));
    EXPECT_FALSE(gets(s, kOne, kElse));
    EXPECT_FALSE(gets(s, kOne, {kSource.address, kOther}));
    s.ends.remote = {};
    s.device = kTwo;
    EXPECT_FALSE(gets(s));
    EXPECT_TRUE(gets(s, kTwo));
}

TEST(Memberships, FiltersIncludeOrExclude) {
    GroupListener s = bound_to("0.0.0.0");
    s.memberships.set(kGroup, kOne, {true, {kElse.address.v4()}});
    EXPECT_TRUE(gets(s));
    EXPECT_FALSE(gets(s, kOne, kElse));
    s.memberships.set(kGroup, kOne, {false, {}});
    EXPECT_FALSE(s.wants(kGroup, kPort, kOne));
    EXPECT_TRUE((GroupFilter{}).allows_all());
    EXPECT_FALSE((GroupFilter{false, {}}).allows_all());
    EXPECT_EQ(s.memberships.all().size(), 1u);
}

template <class T>
GroupRequest read(int name, const T& value, socklen_t length = sizeof(T)) {
    return GroupRequest::read(name, &value, length).value_or(GroupRequest{.ifindex = -1});
}

TEST(Memberships, EveryFormOfJoiningIsRead) {
    using Change = MembershipOption::Change;
    ip_mreq two{{kGroup}, {ip("198.18.1.1")}};
    GroupRequest r = read(IP_ADD_MEMBERSHIP, two);
    EXPECT_EQ(r.group, kGroup);
    EXPECT_EQ(r.interface, ip("198.18.1.1"));
    EXPECT_EQ(r.ifindex, 0);
    ip_mreqn three{{kGroup}, {0}, kTwo};
    r = read(IP_DROP_MEMBERSHIP, three);
    EXPECT_EQ(find_membership_option(IP_DROP_MEMBERSHIP)->change, Change::leave);
    EXPECT_EQ(r.ifindex, kTwo);
    EXPECT_EQ(read(IP_ADD_MEMBERSHIP, three, sizeof two).ifindex, 0);
    EXPECT_FALSE(GroupRequest::read(IP_ADD_MEMBERSHIP, &two, 4));

    ip_mreq_source source{};
    source.imr_multiaddr.s_addr = kGroup;
    source.imr_interface.s_addr = ip("198.18.1.1");
    source.imr_sourceaddr.s_addr = kSource.address.v4();
    for (int name : {IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP, IP_BLOCK_SOURCE, IP_UNBLOCK_SOURCE})
        EXPECT_EQ(read(name, source).interface, ip("198.18.1.1"));
    EXPECT_EQ(find_membership_option(IP_ADD_SOURCE_MEMBERSHIP)->change, Change::join);
    EXPECT_EQ(find_membership_option(IP_BLOCK_SOURCE)->change, Change::filter);

    group_source_req by_index{};
    by_index.gsr_interface = kTwo;
    const sockaddr_in name = net::ipv4_name(kGroup, 0);
    std::memcpy(&by_index.gsr_group, &name, sizeof name);
    for (int option : {MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP, MCAST_BLOCK_SOURCE,
                       MCAST_UNBLOCK_SOURCE, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP, MCAST_MSFILTER}) {
        r = read(option, by_index);
        EXPECT_EQ(r.group, kGroup);
        EXPECT_EQ(r.ifindex, kTwo);
    }
    EXPECT_EQ(read(IP_MSFILTER, source, 8).group, kGroup);
    EXPECT_FALSE(GroupRequest::read(IP_TTL, &two, sizeof two));
    ip_mreq unicast{{ip("198.18.1.1")}, {0}};
    EXPECT_FALSE(GroupRequest::read(IP_ADD_MEMBERSHIP, &unicast, sizeof unicast));
}

TEST(Memberships, WhichOptions) {
    for (const int name : {IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, IP_MSFILTER,
                           IP_BLOCK_SOURCE, MCAST_JOIN_GROUP, MCAST_LEAVE_SOURCE_GROUP, MCAST_MSFILTER})
        EXPECT_NE(find_membership_option(name), nullptr) << name;
    for (const int name : {IP_TTL, IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL})
        EXPECT_EQ(find_membership_option(name), nullptr) << name;
    for (const int name :
         {IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP, IP_BLOCK_SOURCE, IP_UNBLOCK_SOURCE,
          MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP, MCAST_BLOCK_SOURCE, MCAST_UNBLOCK_SOURCE})
        EXPECT_TRUE(find_membership_option(name)->one_source) << name;
    for (const int name : {IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP,
                           IP_MSFILTER, MCAST_MSFILTER})
        EXPECT_FALSE(find_membership_option(name)->one_source) << name;
}

TEST(Memberships, TheKernelTellsWhatASocketIsAMemberOf) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    ASSERT_GE(fd, 0);
    ip_mreqn request{{kGroup}, {0}, 1};  // the loopback interface
    EXPECT_FALSE(read_group_filter(fd, kGroup, 1));
    ASSERT_EQ(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), 0);
    EXPECT_EQ(read_group_filter(fd, kGroup, 1), GroupFilter{});
    EXPECT_FALSE(read_group_filter(fd, kAlias, 1));
    ip_mreq_source block{};
    block.imr_multiaddr.s_addr = kGroup;
    block.imr_interface.s_addr = ip("127.0.0.1");
    block.imr_sourceaddr.s_addr = kSource.address.v4();
    EXPECT_EQ(setsockopt(fd, IPPROTO_IP, IP_BLOCK_SOURCE, &block, sizeof block), 0);
    EXPECT_EQ(read_group_filter(fd, kGroup, 1), (GroupFilter{true, {kSource.address.v4()}}));
    EXPECT_EQ(setsockopt(fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof request), 0);
    EXPECT_FALSE(read_group_filter(fd, kGroup, 1));
    close(fd);
}

}  // namespace
}  // namespace vma::sockets
