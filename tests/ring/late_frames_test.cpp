// SPDX-License-Identifier: BSD-2-Clause
// Frames that come out of a ring although their flow has moved to another ring: who gets them, under whose
// lock, and what the old ring may remember of their sinks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tests/ring/ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

// Does what a connection does: it asks for the end of the batch, and there for a ring without frames.
struct Asks final : FrameSink {
    bool deliver(RxBuffer* buffer) noexcept override {
        delivered++;
        buffer->ring->at_batch_end(this);
        buffer->release();
        return true;
    }
    void batch_end(Ring& ring) noexcept override {
        ended.push_back(&ring);
        if (at_end) at_end();
        for (const Idle when : asks) ring.when_idle(this, when);
    }
    void idle(Ring& ring, Idle) noexcept override { idled.push_back(&ring); }
    void detached(Ring& ring) noexcept override { left.push_back(&ring); }

    bool was_called_by(const Host& host) const {
        return std::ranges::count(idled, host.ring.get()) != 0 ||
               std::ranges::count(ended, host.ring.get()) != 0;
    }

    std::vector<Idle> asks{Idle::soon};
    std::function<void()> at_end;
    int delivered = 0;
    std::vector<Ring*> ended, idled, left;
};

class LateFrames : public testing::Test {
  protected:
    LateFrames() {
        // From now on the rings look for the owner of a rule that they have not.
        const FlowSpec moved = old.flow(9999);
        owners->claim(moved, old.ring.get());
        owners->pass(moved, old.ring.get(), home.ring.get());
    }
    FlowSpec tcp(std::uint16_t port) const {
        FlowSpec spec = old.flow(port);
        spec.protocol = IPPROTO_TCP;
        return spec;
    }
    // Comes out of the old ring with its next poll.
    void late(std::uint16_t port, int protocol = IPPROTO_UDP) {
        Frame frame = make({.src = kB, .dst = kA, .dst_port = port, .payload = std::string(40, 'x')});
        if (protocol == IPPROTO_TCP) {
            frame[kIp + 9] = IPPROTO_TCP;
            frame[kUdp + 12] = 5 << 4;  // no options
            seal_ip(frame);
            put16(frame, kUdp + 16, 0);
            const std::size_t length = frame.size() - kUdp;
            const std::uint16_t pseudo =
                slow_sum(&frame[kIp + 12], 8, IPPROTO_TCP + static_cast<std::uint32_t>(length));
            put16(frame, kUdp + 16, 0xffff & ~slow_sum(&frame[kUdp], length, pseudo));
        }
        old.device->receive_unsteered(frame);
    }

    Wire wire{7};
    std::shared_ptr<RuleOwners> owners = std::make_shared<RuleOwners>();
    Host old{wire, kA, {}, {.owners = owners, .idle = {}, .huge_pages = false}};
    Host home{wire, kA, {}, {.lane = 1, .owners = owners, .idle = {}, .huge_pages = false}};
};

TEST_F(LateFrames, TheirSinkAsksItsOwnRing) {
    Asks sink;
    sink.asks = {Idle::soon, Idle::later};
    home.attach(2000, sink);
    late(2000);
    EXPECT_EQ(old.ring->poll(), 1u);
    EXPECT_EQ(sink.delivered, 1);
    EXPECT_EQ(sink.ended, std::vector<Ring*>{home.ring.get()});
    old.poll();
    EXPECT_TRUE(sink.idled.empty());
    home.poll();
    EXPECT_EQ(sink.idled, (std::vector<Ring*>{home.ring.get(), home.ring.get()}));
    home.ring->detach(home.flow(2000), &sink);
}

// Under AddressSanitizer the last poll used freed memory.
TEST_F(LateFrames, NoRingRemembersASinkThatIsGone) {
    for (const bool at_once : {true, false}) {
        auto sink = std::make_unique<Asks>();
        home.attach(2000, *sink);
        late(2000);
        EXPECT_EQ(old.ring->poll(), 1u);
        if (at_once)
            home.ring->detach(home.flow(2000), sink.get());
        else
            home.ring->detach_soon(home.flow(2000), sink.get());
        old.poll();
        home.poll();
        ASSERT_FALSE(sink->was_called_by(old));
        sink.reset();
        old.poll();
        home.poll();
    }
}

TEST_F(LateFrames, TheirSinkMayLeaveMeanwhile) {
    auto sink = std::make_unique<Asks>();
    home.attach(2000, *sink);
    sink->at_end = [&] { home.ring->detach_soon(home.flow(2000), sink.get()); };
    late(2000);
    EXPECT_EQ(old.ring->poll(), 1u);
    EXPECT_EQ(sink->left, std::vector<Ring*>{home.ring.get()});
    EXPECT_TRUE(sink->idled.empty());
    sink.reset();
    old.poll();
    home.poll();
}

// A sink hands a frame on to another one, as a connection in TIME_WAIT does to the listener.
TEST_F(LateFrames, AllSinksOfALateFrameAreCalledWithTheirRing) {
    Asks sink, other;
    home.attach(2000, sink);
    sink.at_end = [&] {
        if (other.ended.empty()) old.ring->at_batch_end(&other);
    };
    late(2000);
    EXPECT_EQ(old.ring->poll(), 1u);
    EXPECT_EQ(other.ended, std::vector<Ring*>{home.ring.get()});
    home.ring->detach(home.flow(2000), &sink);
    home.ring->while_quiet([&] { home.ring->receiver().detach(home.flow(2000), &other, false); });
    old.poll();
    EXPECT_FALSE(other.was_called_by(old));
}

// The kernel would answer the segment with a reset.
TEST_F(LateFrames, SegmentsAreNotTheKernelsWhileTheirRingIsBusy) {
    Asks sink, datagrams;
    ASSERT_TRUE(home.ring->attach(tcp(2000), &sink, Share::latest));
    home.attach(2000, datagrams);
    late(2000, IPPROTO_TCP);
    EXPECT_EQ(old.ring->poll(), 1u);
    EXPECT_EQ(sink.delivered, 1);
    late(2000, IPPROTO_TCP);
    home.ring->while_quiet([&] { EXPECT_EQ(old.ring->poll(), 1u); });
    EXPECT_EQ(sink.delivered, 1);
    EXPECT_EQ(old.ring->counters().rx_refused, 1u);
    EXPECT_EQ(old.ring->counters().rx_no_socket, 0u) << "offered to the kernel";
    late(2000);
    home.ring->while_quiet([&] { EXPECT_EQ(old.ring->poll(), 1u); });
    EXPECT_EQ(old.ring->counters().rx_no_socket, 1u) << "the kernel has a socket for a datagram";
    old.expect_no_leak();
    home.ring->detach(tcp(2000), &sink);
    home.ring->detach(home.flow(2000), &datagrams);
}

}  // namespace
}  // namespace vma::ring
