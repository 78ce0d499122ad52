// SPDX-License-Identifier: BSD-2-Clause
// From which addresses packets are taken: prefixes become ranges, and ranges what the XDP program wants.
#include "libvma/net/sources.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "libvma/net/address.h"

namespace vma::net {
namespace {

SourcePrefix prefix(const char* address, unsigned length, bool accepted) {
    return {inet_addr(address), static_cast<std::uint8_t>(length), accepted};
}

// What the longest prefix says, the slow way.
bool slow(const std::vector<SourcePrefix>& prefixes, in_addr_t address) {
    if (!Address(address).is_unicast()) return false;
    int longest = -1;
    bool accepted = false;
    for (const SourcePrefix& p : prefixes) {
        const std::uint32_t mask = p.length == 0 ? 0 : ~std::uint32_t{0} << (32 - p.length);
        if (((ntohl(address) ^ ntohl(p.address)) & mask) != 0 || p.length < longest) continue;
        longest = p.length;
        accepted = p.accepted;
    }
    return accepted;
}

TEST(SourcesTest, WhatIsNeverASourceIsRefused) {
    const SourceFilter all;
    for (const char* address : {"0.0.0.0", "127.0.0.0", "127.0.0.1", "127.255.255.255", "224.0.0.0",
                                "224.0.0.1", "239.1.1.1", "239.255.255.255", "255.255.255.255"})
        EXPECT_FALSE(all.accepts(inet_addr(address))) << address;
    for (const char* address : {"0.0.0.1", "0.1.2.3", "1.0.0.0", "126.255.255.255", "128.0.0.0", "198.18.1.1",
                                "223.255.255.255", "240.0.0.0", "240.0.0.1", "255.255.255.254"})
        EXPECT_TRUE(all.accepts(inet_addr(address))) << address;
    EXPECT_TRUE(SourceFilter({prefix("224.0.0.0", 3, true)}).accepts(inet_addr("240.1.2.3")));
    EXPECT_FALSE(SourceFilter({prefix("224.0.0.0", 3, true)}).accepts(inet_addr("239.1.2.3")));
    EXPECT_FALSE(SourceFilter({prefix("255.255.255.255", 32, true)}).accepts(inet_addr("255.255.255.255")));
    EXPECT_FALSE(SourceFilter({prefix("127.0.0.0", 8, true)}).accepts(inet_addr("127.0.0.1")));
    EXPECT_FALSE(SourceFilter({prefix("224.0.0.0", 4, true)}).accepts(inet_addr("224.0.0.1")));
    EXPECT_TRUE(SourceFilter({prefix("0.0.0.0", 4, true)}).accepts(inet_addr("1.2.3.4")));
    EXPECT_FALSE(SourceFilter(std::vector<SourcePrefix>{}).accepts(inet_addr("198.18.1.2")))
        << "no route back at all";
}

TEST(SourcesTest, OwnAddressesAreAShortList) {
    const SourceFilter sources(
        {prefix("0.0.0.0", 0, true), prefix("198.18.1.1", 32, false), prefix("198.18.2.1", 32, false)});
    std::vector<in_addr_t> refused;
    EXPECT_TRUE(sources.refused_addresses(refused, 16));
    EXPECT_EQ(refused, (std::vector<in_addr_t>{inet_addr("198.18.1.1"), inet_addr("198.18.2.1")}));
    EXPECT_FALSE(sources.refused_addresses(refused, 1));
    EXPECT_FALSE(SourceFilter({prefix("198.18.0.0", 16, true)}).refused_addresses(refused, 16));
}

// Random tables against the slow way, at and around all edges; and the accepted prefixes say the same once
// more.
TEST(SourcesTest, LongestPrefixDecides) {
    std::mt19937 random(7);
    for (int round = 0; round < 300; round++) {
        std::vector<SourcePrefix> prefixes;
        for (unsigned n = random() % 20; n > 0; n--) {
            const unsigned length = random() % 33;
            const std::uint32_t mask = length == 0 ? 0 : ~std::uint32_t{0} << (32 - length);
            // Close to one another, so that they nest.
            const std::uint32_t base = random() % 4 == 0 ? random() : 0xc6120000u + random() % 1024;
            const SourcePrefix p{htonl(base & mask), static_cast<std::uint8_t>(length), random() % 2 == 0};
            std::erase_if(prefixes, [&](const SourcePrefix& q) {
                return q.address == p.address && q.length == p.length;
            });
            prefixes.push_back(p);
        }
        const SourceFilter sources(prefixes);
        std::vector<std::uint32_t> places;
        for (const SourcePrefix& p : prefixes) {
            const std::uint64_t size = std::uint64_t{1} << (32 - p.length);
            for (std::uint32_t at : {ntohl(p.address), static_cast<std::uint32_t>(ntohl(p.address) + size)})
                for (std::uint32_t d : {0u, 1u, ~0u}) places.push_back(at + d);
        }
        for (int i = 0; i < 50; i++) places.push_back(random());
        const std::vector<SourcePrefix> accepted = sources.accepted_prefixes();
        for (std::uint32_t place : places) {
            const in_addr_t address = htonl(place);
            ASSERT_EQ(sources.accepts(address), slow(prefixes, address)) << round << " " << place;
            ASSERT_EQ(slow(accepted, address), sources.accepts(address)) << round << " " << place;
        }
    }
}

}  // namespace
}  // namespace vma::net
