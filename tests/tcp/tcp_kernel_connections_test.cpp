// SPDX-License-Identifier: BSD-2-Clause
// Which connections are the kernel's: questions, and what is remembered, with real connections of loopback.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "libvma/tcp/handshake/kernel_connections.h"
#include "tcp_hosts.h"

namespace vma::tcp::test {
namespace {

using Answer = KernelConnections::Answer;

// Connections of this machine's kernel to one port.
class KernelsOwn {
  public:
    KernelsOwn() {
        to_.sin_family = AF_INET;
        to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(bind(listening_.get(), name(to_), sizeof to_), 0);
        EXPECT_EQ(listen(listening_.get(), 1024), 0);
        socklen_t length = sizeof to_;
        EXPECT_EQ(getsockname(listening_.get(), name(to_), &length), 0);
    }
    sockaddr_in open() {
        fds_.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
        const linger reset{1, 0};  // nothing is left of what is closed
        EXPECT_EQ(setsockopt(fds_.back().get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        EXPECT_EQ(::connect(fds_.back().get(), name(to_), sizeof to_), 0);
        sockaddr_in from{};
        socklen_t length = sizeof from;
        EXPECT_EQ(getsockname(fds_.back().get(), name(from), &length), 0);
        return from;
    }
    void close_all() { fds_.clear(); }
    const sockaddr_in& to() const { return to_; }

  private:
    static sockaddr* name(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

    InternalFd listening_{socket(AF_INET, SOCK_STREAM, 0)};
    std::vector<InternalFd> fds_;
    sockaddr_in to_{};
};

class KernelConnectionsTest : public testing::Test {
  protected:
    Answer ask(const sockaddr_in& from) {
        ring::RxBuffer segment;
        segment.ring = ring_.ring.get();
        segment.dst_addr = own.to().sin_addr.s_addr;
        segment.dst_port = own.to().sin_port;
        segment.src_addr = from.sin_addr.s_addr;
        segment.src_port = from.sin_port;
        return known->has(segment, now);
    }
    static sockaddr_in stranger(std::uint32_t address, std::uint16_t port) {
        sockaddr_in from{};
        from.sin_addr.s_addr = htonl(address);
        from.sin_port = htons(port);
        return from;
    }

    verbs::wire::Wire wire_{1};
    Host ring_{wire_, "127.0.0.1", {.ifindex = 1}};
    KernelsOwn own;
    std::unique_ptr<KernelConnections> known = std::make_unique<KernelConnections>();
    Time now{1000 * kSecond};
};

// 200 connections in 256 places: some shared one, and used up its questions for one another.
TEST_F(KernelConnectionsTest, BusyOnesDoNotLockEachOtherOut) {
    std::vector<sockaddr_in> all;
    for (int i = 0; i < 200; i++) all.push_back(own.open());
    for (int round = 0; round < 50; round++) {
        now += kSecond / 20;
        for (const sockaddr_in& from : all)
            ASSERT_EQ(ask(from), Answer::yes) << round << " " << ntohs(from.sin_port);
    }
}

// Strangers whose numbers a plain hash puts into one place, with a connection of the kernel.
TEST_F(KernelConnectionsTest, StrangersDoNotChooseWhomTheyLockOut) {
    const auto place = [&](const sockaddr_in& from) {
        const std::uint64_t hash =
            (std::uint64_t{from.sin_addr.s_addr} << 32 | std::uint64_t{from.sin_port} << 16) ^
            own.to().sin_addr.s_addr;
        return hash * 0x9e3779b97f4a7c15u >> 56;
    };
    for (int i = 0; i < 10; i++) {
        const sockaddr_in honest = own.open();
        int sent = 0;
        for (std::uint16_t port = 1024; port < 60000 && sent < 64; port++) {
            const sockaddr_in from = stranger(0xc6130001u + static_cast<std::uint32_t>(i), port);
            if (place(from) != place(honest)) continue;
            (void)ask(from);
            sent++;
        }
        ASSERT_EQ(sent, 64);
        EXPECT_EQ(ask(honest), Answer::yes) << i;
        now += kSecond;
    }
}

TEST_F(KernelConnectionsTest, FloodIsBoundedAndAKnownOneIsAskedAbout) {
    const sockaddr_in honest = own.open();
    ASSERT_EQ(ask(honest), Answer::yes);
    now += 2 * kSecond;  // the answer is old
    std::map<Answer, int> answers;
    for (int i = 0; i < 20'000; i++)
        answers[ask(stranger(0xc6130000u + static_cast<std::uint32_t>(i), 4000))]++;
    EXPECT_EQ(answers[Answer::yes], 0);
    EXPECT_LE(answers[Answer::no], 2048);
    EXPECT_GT(answers[Answer::no], 2000);
    EXPECT_EQ(ask(honest), Answer::yes);
}

TEST_F(KernelConnectionsTest, OneThatEndedIsForgotten) {
    const sockaddr_in from = own.open();
    ASSERT_EQ(ask(from), Answer::yes);
    own.close_all();
    EXPECT_EQ(ask(from), Answer::yes) << "the kernel knows what to say";
    now += 2 * kSecond;
    EXPECT_EQ(ask(from), Answer::no);
    EXPECT_EQ(ask(from), Answer::no);
}

// More connections come and go than are remembered at first.
TEST_F(KernelConnectionsTest, OldOnesMakeRoom) {
    for (int i = 0; i < 900; i++) {
        ASSERT_EQ(ask(own.open()), Answer::yes) << i;
        if (i % 100 == 99) own.close_all();
        now += kSecond / 50;
    }
    const sockaddr_in last = own.open();
    for (int i = 0; i < 100; i++) EXPECT_EQ(ask(last), Answer::yes);
}

}  // namespace
}  // namespace vma::tcp::test
