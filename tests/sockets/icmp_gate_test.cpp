// SPDX-License-Identifier: BSD-2-Clause
// Which ICMP errors cost a lock: work is counted, not time.
#include "libvma/sockets/icmp_gate.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "tests/ring/ring_hosts.h"

namespace vma::sockets {
namespace {

using namespace ring::ring_hosts;
using ring::Share;

class IcmpGateTest : public testing::Test {
  protected:
    static FlowSpec tcp(std::uint32_t peer, std::uint16_t port) {
        return {IPPROTO_TCP, inet_addr(kA), htons(80), htonl(peer), htons(port)};
    }
    static constexpr std::uint32_t kPeer = 0xc6130001u;

    Wire wire{3};
    Host a{wire, kA};
    Sink sink;
};

constexpr clock::Time kNow{std::chrono::seconds(1000)};

TEST_F(IcmpGateTest, ErrorsAboutOthersCostNothing) {
    IcmpGate gate;
    ASSERT_TRUE(a.ring->attach(tcp(kPeer, 4000), &sink, Share::only));
    int admitted = 0;
    for (std::uint32_t i = 0; i < 100'000; i++)
        admitted += gate.admits(tcp(kPeer + 1 + i / 1000, static_cast<std::uint16_t>(1024 + i % 1000)), kNow);
    EXPECT_LE(admitted, 40) << "one place in 16384";
    EXPECT_TRUE(gate.admits(tcp(kPeer, 4000), kNow + std::chrono::seconds(1)));
    a.ring->detach(tcp(kPeer, 4000), &sink);
}

TEST_F(IcmpGateTest, ErrorsAboutOneAreBoundedAndLeaveTheOthersTheirs) {
    IcmpGate gate;
    for (std::uint16_t port = 4000; port < 4100; port++)
        ASSERT_TRUE(a.ring->attach(tcp(kPeer, port), &sink, Share::only));
    int admitted = 0;
    for (int i = 0; i < 100'000; i++) admitted += gate.admits(tcp(kPeer, 4000), kNow);
    EXPECT_EQ(admitted, static_cast<int>(IcmpGate::kPerSecond));
    int others = 0;
    for (std::uint16_t port = 4001; port < 4100; port++) others += gate.admits(tcp(kPeer, port), kNow);
    EXPECT_GE(others, 90);
    EXPECT_TRUE(gate.admits(tcp(kPeer, 4000), kNow + std::chrono::seconds(1)));
    for (std::uint16_t port = 4000; port < 4100; port++) a.ring->detach(tcp(kPeer, port), &sink);
}

}  // namespace
}  // namespace vma::sockets
