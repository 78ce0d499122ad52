// SPDX-License-Identifier: BSD-2-Clause
// What control operations cost while a peer floods the ring: work is counted, not time.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <memory>

#include "libvma/ring/live_flows.h"
#include "tests/ring/ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

// For each frame that it gets its peer sends the next one, up to `most`.
struct Flooded final : FrameSink {
    Flooded(Host& host, std::uint16_t port, int most) : host(host), left(most) {
        frame = make({.src = kB, .dst = kA, .dst_port = port, .payload = "flood"});
    }
    bool deliver(RxBuffer* buffer) noexcept override {
        delivered++;
        buffer->release();
        if (left-- > 0) host.device->receive_unsteered(frame);
        return true;
    }

    Host& host;
    Frame frame;
    int left, delivered = 0;
};

class FloodedRing : public testing::Test {
  protected:
    static constexpr int kFlood = 200'000;
    // As many as may wait in the device, and a batch.
    int bound() const { return static_cast<int>(a.ring->buffer_counts().rx_posted) + 16; }

    Wire wire{3};
    Host a{wire, kA};
    Flooded flooded{a, 2000, kFlood};
};

TEST_F(FloodedRing, DetachTakesWhatIsThere) {
    Sink leaves;
    a.attach(2000, flooded);
    a.attach(2001, leaves);
    for (int i = 0; i < 16; i++) a.device->receive_unsteered(flooded.frame);
    a.device->receive_unsteered(make({.src = kB, .dst = kA, .dst_port = 2001, .payload = "mine"}));
    const int most = bound();
    a.ring->detach(a.flow(2001), &leaves);
    EXPECT_EQ(leaves.payloads, std::vector<std::string>{"mine"}) << "what came before still comes";
    EXPECT_LE(flooded.delivered, most);
    flooded.left = 0;
    a.ring->detach(a.flow(2000), &flooded);
}

TEST_F(FloodedRing, DetachSoonDoesSo) {
    Sink leaves;
    a.attach(2000, flooded);
    a.attach(2001, leaves);
    for (int i = 0; i < 16; i++) a.device->receive_unsteered(flooded.frame);
    const int most = bound();
    a.ring->detach_soon(a.flow(2001), &leaves, true);
    EXPECT_LE(flooded.delivered, most);
    flooded.left = 0;
    a.ring->detach(a.flow(2000), &flooded);
}

TEST_F(FloodedRing, OneThatIsFloodedItselfLeaves) {
    a.attach(2000, flooded);
    for (int i = 0; i < 16; i++) a.device->receive_unsteered(flooded.frame);
    const int most = bound();
    a.ring->detach(a.flow(2000), &flooded);
    EXPECT_LE(flooded.delivered, most);
    flooded.left = 0;
    a.poll();
}

// A sink that shares its flow leaves nothing behind it.
TEST_F(FloodedRing, SharedFlowIsNotDrained) {
    Sink other;
    a.attach(2000, flooded, Share::spread);
    a.attach(2001, other, Share::spread);
    Sink leaves;
    a.attach(2001, leaves, Share::spread);
    for (int i = 0; i < 16; i++) a.device->receive_unsteered(flooded.frame);
    a.ring->detach(a.flow(2001), &leaves);
    EXPECT_EQ(flooded.delivered, 0);
    flooded.left = 0;
    a.ring->detach(a.flow(2001), &other);
    a.ring->detach(a.flow(2000), &flooded);
}

// ---- which flows there are ----

class LiveFlows : public testing::Test {
  protected:
    static FlowSpec tcp(std::uint32_t peer, std::uint16_t port) {
        return {IPPROTO_TCP, inet_addr(kA), htons(80), htonl(peer), htons(port)};
    }
    static constexpr std::uint32_t kPeer = 0xc6130001u;

    Wire wire{3};
    Host a{wire, kA};
    Sink sink;
};

TEST_F(LiveFlows, AreKnownWhileTheyHaveARule) {
    const FlowSpec flow = tcp(kPeer, 4000);
    EXPECT_FALSE(live_flows::maybe(flow));
    ASSERT_TRUE(a.ring->attach(flow, &sink, Share::only));
    EXPECT_TRUE(live_flows::maybe(flow));
    a.ring->detach(flow, &sink);
    EXPECT_FALSE(live_flows::maybe(flow));
}

TEST_F(LiveFlows, CountEachRuleOnce) {
    const FlowSpec flow = tcp(kPeer, 4000);
    Sink second;
    ASSERT_TRUE(a.ring->attach(flow, &sink, Share::latest));
    ASSERT_TRUE(a.ring->attach(flow, &second, Share::latest));
    a.ring->detach(flow, &sink);
    EXPECT_TRUE(live_flows::maybe(flow));
    a.ring->detach(flow, &second);
    EXPECT_FALSE(live_flows::maybe(flow));
}

TEST_F(LiveFlows, RefusedRulesAreNone) {
    const FlowSpec flow = tcp(kPeer, 4000);
    a.device->refuse_flows(true);
    EXPECT_FALSE(a.ring->attach(flow, &sink, Share::only));
    EXPECT_FALSE(live_flows::maybe(flow));
}

TEST_F(LiveFlows, GoWithTheirRing) {
    const FlowSpec flow = tcp(kPeer, 4000);
    ASSERT_TRUE(a.ring->attach(flow, &sink, Share::only));
    a.close();
    EXPECT_FALSE(live_flows::maybe(flow));
}

TEST_F(LiveFlows, OfTcpWithAPeerOnly) {
    FlowSpec listening = tcp(0, 0), udp = tcp(kPeer, 4000);
    udp.protocol = IPPROTO_UDP;
    ASSERT_TRUE(a.ring->attach(listening, &sink, Share::only));
    ASSERT_TRUE(a.ring->attach(udp, &sink, Share::only));
    EXPECT_FALSE(live_flows::maybe(listening));
    EXPECT_FALSE(live_flows::maybe(udp));
    a.ring->detach(listening, &sink);
    a.ring->detach(udp, &sink);
}

}  // namespace
}  // namespace vma::ring
