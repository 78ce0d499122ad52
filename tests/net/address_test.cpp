// SPDX-License-Identifier: BSD-2-Clause
// One type for addresses of both families: what each address is, and the ways from and to sockaddr.
#include "libvma/net/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <unordered_set>

namespace vma::net {
namespace {

Address v4(const char* text) { return Address(inet_addr(text)); }
Address v6(const char* text) {
    in6_addr raw{};
    EXPECT_EQ(inet_pton(AF_INET6, text, &raw), 1) << text;
    return Address(raw);
}

static_assert(sizeof(Address) == 16 && std::is_trivially_copyable_v<Address>);
static_assert(std::is_trivially_copyable_v<Endpoints>);
constexpr Address kThis(0x0100007f);
static_assert(kThis.is_v4() && kThis.v4() == 0x0100007f && kThis.is_loopback() && Address().is_any());

TEST(Address, FamiliesAreTold) {
    EXPECT_TRUE(v4("198.18.0.1").is_v4());
    EXPECT_EQ(v4("198.18.0.1").v4(), inet_addr("198.18.0.1"));
    EXPECT_TRUE(v6("::ffff:198.18.0.1").is_v4());
    EXPECT_EQ(v6("::ffff:198.18.0.1"), v4("198.18.0.1"));
    for (const char* text : {"::", "::1", "::198.18.0.1", "2001:db8::1", "1::ffff:0:1", "64:ff9b::1.2.3.4"})
        EXPECT_FALSE(v6(text).is_v4()) << text;
}

TEST(Address, Unicast) {
    for (const char* yes : {"198.18.1.1", "10.0.0.1", "1.0.0.0", "223.255.255.254", "0.0.0.1", "0.1.2.3",
                            "240.0.0.1", "255.255.255.254"})
        EXPECT_TRUE(v4(yes).is_unicast()) << yes;
    for (const char* no : {"0.0.0.0", "127.0.0.1", "224.0.0.1", "239.255.255.255", "255.255.255.255"})
        EXPECT_FALSE(v4(no).is_unicast()) << no;
    for (const char* yes : {"2001:db8::1", "fe80::1", "fd00::1", "::2", "::ffff:10.0.0.1"})
        EXPECT_TRUE(v6(yes).is_unicast()) << yes;
    for (const char* no : {"::", "::1", "ff02::1", "::ffff:127.0.0.1"})
        EXPECT_FALSE(v6(no).is_unicast()) << no;
}

TEST(Address, Kinds) {
    EXPECT_TRUE(Address().is_any());
    EXPECT_TRUE(v6("::").is_any());
    EXPECT_FALSE(v6("0:0:0:0:0:1::").is_any());
    EXPECT_FALSE(v4("0.0.0.1").is_any());
    EXPECT_NE(v6("::"), Address());
    EXPECT_TRUE(v4("127.3.2.1").is_loopback());
    EXPECT_TRUE(v6("::1").is_loopback());
    EXPECT_FALSE(v6("1::1").is_loopback());
    EXPECT_TRUE(v4("224.0.0.1").is_multicast());
    EXPECT_FALSE(v4("255.255.255.255").is_multicast());
    EXPECT_TRUE(v6("ff02::1").is_multicast());
    EXPECT_FALSE(v6("fe80::1").is_multicast());
}

TEST(Address, Text) {
    EXPECT_EQ(fmt::format("{}", v4("198.18.0.1")), "198.18.0.1");
    EXPECT_EQ(fmt::format("{}", v6("2001:db8::1")), "2001:db8::1");
    EXPECT_EQ(fmt::format("<{:>14}>", Endpoint(v4("10.0.0.1"), htons(80))), "<   10.0.0.1:80>");
    EXPECT_EQ(fmt::format("{}", Endpoint(v6("::1"), htons(65535))), "[::1]:65535");
}

TEST(Address, Hash) {
    std::unordered_set<Endpoint> seen;
    for (std::uint16_t port = 0; port < 100; port++) {
        EXPECT_TRUE(seen.insert({v4("10.0.0.1"), port}).second);
        EXPECT_TRUE(seen.insert({v6("2001:db8::1"), port}).second);
        EXPECT_FALSE(seen.insert({v6("::ffff:10.0.0.1"), port}).second);
    }
}

TEST(SocketName, ThereAndBack) {
    for (const Endpoint& e : {Endpoint(v4("198.18.0.1"), htons(80)), Endpoint(v6("2001:db8::1"), htons(443)),
                              Endpoint(), Endpoint(v6("::"), 0)}) {
        const SocketName name(e);
        EXPECT_EQ(name.get()->sa_family, e.address.is_v4() ? AF_INET : AF_INET6);
        EXPECT_EQ(name.size(), e.address.is_v4() ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        EXPECT_EQ(Endpoint::of(name.get(), name.size()), e);
        EXPECT_FALSE(Endpoint::of(name.get(), name.size() - 1));
    }
}

TEST(SocketName, AsProgramsWriteIt) {
    const sockaddr_in in = ipv4_name(inet_addr("198.18.0.1"), htons(80));
    EXPECT_EQ(in.sin_family, AF_INET);
    EXPECT_EQ(Endpoint(in), Endpoint(inet_addr("198.18.0.1"), htons(80)));
    const SocketName same((Endpoint(in)));
    EXPECT_EQ(std::memcmp(same.get(), &in, sizeof in), 0);
}

TEST(SocketName, OtherFamilies) {
    sockaddr other{};
    other.sa_family = AF_UNIX;
    EXPECT_FALSE(Endpoint::of(&other, sizeof other));
    EXPECT_FALSE(Endpoint::of(&other, 1));
    EXPECT_FALSE(Endpoint::of(nullptr, 0));
}

}  // namespace
}  // namespace vma::net
