// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <set>
#include <thread>
#include <vector>

#include "libvma/runtime/runtime.h"
#include "libvma/tcp/handshake/isn.h"

namespace {

using namespace vma::tcp;
namespace net = vma::net;

constexpr SecretKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr net::Endpoints kEnds{{0x0100120a, 40000}, {0x0200120a, 80}};

// The vectors of the SipHash paper's appendix and of its reference implementation: bytes 0, 1, 2, ... of each
// length.
Time at(std::uint64_t ns) { return Time(Nsec(ns)); }

TEST(TcpIsn, SipHashVectors) {
    std::vector<std::byte> input;
    for (int i = 0; i < 15; i++) input.push_back(static_cast<std::byte>(i));
    const std::span all(input);
    EXPECT_EQ(siphash(kKey, all), 0xa129ca6149be45e5u);
    EXPECT_EQ(siphash(kKey, all.first(0)), 0x726fdb47dd0e0e31u);
    EXPECT_EQ(siphash(kKey, all.first(8)), 0x93f5f5799a932462u);
}

// As the kernel's: a connection of 10 MB/s does not outrun it.
TEST(TcpIsn, ClockTicksEvery64Nanoseconds) {
    const std::uint32_t base = initial_sequence(kKey, kEnds, at(0));
    EXPECT_EQ(initial_sequence(kKey, kEnds, at(63)), base);
    EXPECT_EQ(initial_sequence(kKey, kEnds, at(64)), base + 1);
    EXPECT_EQ(initial_sequence(kKey, kEnds, at(1'000'000'000)), base + 15'625'000);
}

TEST(TcpIsn, EveryEndAndTheKeyMatter) {
    std::set<std::uint32_t> seen{initial_sequence(kKey, kEnds, at(0))};
    for (int bit = 0; bit < 32; bit++) {
        net::Endpoints a = kEnds, b = kEnds, c = kEnds, d = kEnds;
        a.local.address = net::Address(kEnds.local.address.v4() ^ 1u << bit);
        b.remote.address = net::Address(kEnds.remote.address.v4() ^ 1u << bit);
        EXPECT_TRUE(seen.insert(initial_sequence(kKey, a, at(0))).second);
        EXPECT_TRUE(seen.insert(initial_sequence(kKey, b, at(0))).second);
        if (bit >= 16) continue;
        c.local.port ^= static_cast<std::uint16_t>(1u << bit);
        d.remote.port ^= static_cast<std::uint16_t>(1u << bit);
        EXPECT_TRUE(seen.insert(initial_sequence(kKey, c, at(0))).second);
        EXPECT_TRUE(seen.insert(initial_sequence(kKey, d, at(0))).second);
    }
    for (int bit = 0; bit < 64; bit++)
        EXPECT_TRUE(
            seen.insert(initial_sequence(SecretKey{kKey[0] ^ 1ull << bit, kKey[1]}, kEnds, at(0))).second);
}

TEST(TcpIsn, TimestampOffsetIsTheHostsNotTheConnections) {
    net::Endpoints other = kEnds;
    other.local.port = 40001;
    other.remote.port = 443;
    EXPECT_EQ(timestamp_offset(kKey, kEnds), timestamp_offset(kKey, other));
    other.remote.address = net::Address(kEnds.remote.address.v4() + 1);
    EXPECT_NE(timestamp_offset(kKey, kEnds), timestamp_offset(kKey, other));
    EXPECT_NE(timestamp_offset(kKey, kEnds),
              initial_sequence(kKey, {{kEnds.local.address, 0}, {kEnds.remote.address, 0}}, at(0)));
}

TEST(TcpIsn, ProcessKeyIsStableAcrossThreads) {
    const std::uint32_t sequence = initial_sequence(kEnds, at(0)), offset = timestamp_offset(kEnds);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            EXPECT_EQ(initial_sequence(kEnds, at(0)), sequence);
            EXPECT_EQ(timestamp_offset(kEnds), offset);
        });
    for (auto& thread : threads) thread.join();
    EXPECT_NE(sequence, initial_sequence(kKey, kEnds, at(0)));
}

TEST(TcpIsn, ForkedChildHasOtherNumbers) {
    vma::runtime::install_fork_hooks();
    const std::uint32_t sequence = initial_sequence(kEnds, at(0));
    const std::uint64_t number = random_number();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const bool other = initial_sequence(kEnds, at(0)) != sequence && random_number() != number;
        _exit(other ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(initial_sequence(kEnds, at(0)), sequence);
}

TEST(TcpIsn, RandomNumbersDoNotRepeat) {
    std::set<std::uint64_t> seen;
    int bits = 0;
    for (int i = 0; i < 10000; i++) {
        const std::uint64_t n = random_number();
        EXPECT_TRUE(seen.insert(n).second);
        bits += std::popcount(n);
    }
    EXPECT_NEAR(bits, 320000, 4000) << "ten standard deviations";
}

}  // namespace
