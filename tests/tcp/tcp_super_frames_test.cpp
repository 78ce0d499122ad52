// SPDX-License-Identifier: BSD-2-Clause
// Long writes to a device that takes super-frames: they leave whole, what is lost of them is repeated frame
// by frame, and nothing of it shows in the stream.
#include <gtest/gtest.h>

#include <string>

#include "tcp_scripted.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

constexpr std::uint32_t kSuperMss = 1460 - 12;  // with time stamps

const verbs::wire::WireConfig kSuperFrames{.tx_checksum = verbs::wire::TxChecksum::complete,
                                           .lazy_tx = verbs::wire::LazyTx::fake_clock,
                                           .max_tso = 65495,
                                           .tso_copies = true};

struct Pair {
    explicit Pair(std::uint64_t seed = 1, const verbs::wire::WireConfig& config = kSuperFrames)
        : w(seed, config) {
        w.pair(c, s);
    }

    // Moves `total` bytes from c to s, and looks at each.
    void move(std::uint64_t total, std::size_t write) {
        Stream up{.from = c, .to = s, .total = total, .write = write};
        EXPECT_TRUE(
            w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 600 * kSec));
        EXPECT_FALSE(up.failed());
    }
    std::uint64_t super_frames() const { return w.a->device->tso_requests(); }

    World w;
    Connection *c = nullptr, *s = nullptr;
};

TEST(TcpSuperFrames, LongWritesLeaveWhole) {
    Pair p;
    p.move(4 << 20, 131072);  // opens the windows
    const std::uint64_t before = p.super_frames(), segments = p.c->counters().data_segments_out;
    p.move(16 << 20, 131072);
    EXPECT_LE(p.super_frames() - before, 2 * (16u << 20) / 65160);
    const std::uint64_t frames = p.c->counters().data_segments_out - segments;
    EXPECT_GE(frames, (16u << 20) / kSuperMss) << "the counters are of frames, as the peer sees them";
    EXPECT_LE(frames, (16u << 20) / kSuperMss * 11 / 10);
    EXPECT_EQ(p.c->counters().retransmits, 0u);
}

// Where sending takes longer than the gap that ends a burst, a program that writes on and on is in a burst
// all the same, and so it is after it had to wait for room.
TEST(TcpSuperFrames, SlowDeviceDoesNotEndABurst) {
    for (const std::uint64_t kick_ns : {0u, 50'000u, 190'000u}) {
        verbs::wire::WireConfig slow = kSuperFrames;
        slow.kick_ns = kick_ns;
        Pair p(1, slow);
        p.move(4 << 20, 1400);  // opens the windows
        const std::uint64_t before = p.super_frames();
        p.move(4 << 20, 1400);
        EXPECT_GE(p.super_frames() - before, (4u << 20) / 32768) << kick_ns;
        EXPECT_LE(p.super_frames() - before, (4u << 20) / 16384) << kick_ns;
    }
}

TEST(TcpSuperFrames, WritesOfManySizes) {
    for (std::size_t write : {8191u, 8192u, 16384u, 20000u, 32767u, 32768u, 64000u, 65536u, 1000000u}) {
        Pair p;
        p.move(3'000'001, write);
        if (testing::Test::HasFailure()) FAIL() << write;
    }
}

// The short end of a long write leaves without another one, with Nagle and without, and under way or not.
TEST(TcpSuperFrames, TheEndDoesNotWaitForTheNextWrite) {
    for (bool nodelay : {false, true}) {
        Pair p;
        p.c->nodelay(nodelay);
        p.move(1 << 20, 131072);
        std::string got;
        for (int i = 0; i < 3; i++) {
            ASSERT_EQ(send(p.c, std::string(70'001, 'e')), 70'001);
            p.w.until([&] { return (got += receive(p.s)).size() == 70'001u; }, kMs);
            EXPECT_EQ(got.size(), 70'001u) << nodelay;
            got.clear();
        }
        for (int i = 0; i < 2; i++) ASSERT_EQ(send(p.c, std::string(70'001, 'f')), 70'001);
        p.c->ring()->flush();
        EXPECT_TRUE(p.w.until([&] { return (got += receive(p.s)).size() == 140'002u; }, kSec));
    }
}

// The peer reports frames: only those that are lost are sent again.
TEST(TcpSuperFrames, LostFramesAreRepeatedAlone) {
    Pair p;
    p.move(2 << 20, 131072);
    Tap tap(p.w);
    tap.record = false;
    unsigned data = 0;
    tap.drop = [&](const Tap::Seen& x) {
        return x.from_a && x.payload.size() == kSuperMss && ++data % 100 == 7;
    };
    p.move(4 << 20, 131072);
    EXPECT_GT(tap.dropped, 10u);
    EXPECT_NE(p.c->counters().fast_recoveries, 0u);
    EXPECT_GE(p.c->counters().retransmits, tap.dropped);
    EXPECT_LE(p.c->counters().retransmits, 3 * tap.dropped + 20);
}

TEST(TcpSuperFrames, LossReorderingAndDelay) {
    for (std::uint64_t seed = 1; seed <= 4; seed++) {
        Pair p(seed);
        verbs::wire::Faults faults;
        faults.loss = 0.01;
        faults.duplicate = 0.01;
        faults.reorder = 0.02;
        faults.delay_ns = kMs;
        p.w.wire.set_faults(*p.w.a->device, faults);
        p.w.wire.set_faults(*p.w.b->device, faults);
        p.move(3 << 20, 100'000);
        if (testing::Test::HasFailure()) FAIL() << seed;
    }
}

TEST(TcpSuperFrames, SmallerPathMtuCutsWhatIsUnderWay) {
    Pair p;
    p.move(1 << 20, 131072);
    Tap tap(p.w);
    tap.record = false;
    tap.drop = [](const Tap::Seen& x) { return x.from_a && x.payload.size() > 960; };
    Stream up{.from = p.c, .to = p.s, .total = 400'000, .write = 131072};
    up.send_some();
    p.w.poll();
    p.c->path_mtu(1000);
    EXPECT_TRUE(
        p.w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 60 * kSec));
    EXPECT_FALSE(up.failed());
}

TEST(TcpSuperFrames, PartOfOneIsAcknowledged) {
    Scripted t(kSuperFrames);
    ASSERT_NO_FATAL_FAILURE(t.establish());
    // Ten frames are the first congestion window.
    ASSERT_EQ(send(t.c, std::string(40'000, 'p')), 40'000);
    const std::uint32_t start = t.peer.rcv;
    auto heard = t.peer.take();
    ASSERT_EQ(heard.size(), 10u);
    for (std::size_t i = 0; i < heard.size(); i++) {
        EXPECT_EQ(heard[i].seq, start + i * kSuperMss);
        EXPECT_EQ(heard[i].payload.size(), kSuperMss);
    }
    // In the midst of a frame: what is sent again begins there.
    t.peer.rcv = start + 2 * kSuperMss + 100;
    t.peer.stamp++;
    t.peer.say(kAck);
    EXPECT_EQ(t.c->unacked_bytes(), 40'000u - 2 * kSuperMss - 100);
    (void)t.peer.take();
    t.w.pass(3 * kSec);
    heard = t.peer.take();
    ASSERT_FALSE(heard.empty());
    bool again = false;
    for (const Segment& s : heard) again |= s.seq == t.peer.rcv && s.payload.size() <= kSuperMss;
    EXPECT_TRUE(again);
    // All that is left arrives.
    for (int i = 0; i < 200 && t.c->unacked_bytes() != 0; i++) {
        t.peer.stamp++;
        t.peer.say(kAck);
        t.w.pass(kSec);
        (void)t.peer.hear();
    }
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
}

TEST(TcpSuperFrames, SackInsideOne) {
    Scripted t(kSuperFrames);
    ASSERT_NO_FATAL_FAILURE(t.establish());
    ASSERT_EQ(send(t.c, std::string(10 * kSuperMss, 's')), static_cast<ssize_t>(10 * kSuperMss));
    const std::uint32_t start = t.peer.rcv;
    ASSERT_EQ(t.peer.take().size(), 10u);
    // The second and the sixth are missing.
    t.peer.rcv = start + kSuperMss;
    Segment s = t.peer.segment(kAck);
    s.options += option::sack(
        {{start + 2 * kSuperMss, start + 5 * kSuperMss}, {start + 6 * kSuperMss, start + 10 * kSuperMss}});
    t.peer.put(s);
    auto heard = t.peer.take();
    ASSERT_EQ(heard.size(), 2u);
    EXPECT_EQ(heard[0].seq, start + kSuperMss);
    EXPECT_EQ(heard[0].payload.size(), kSuperMss);
    EXPECT_EQ(heard[1].seq, start + 5 * kSuperMss);
    EXPECT_EQ(heard[1].payload.size(), kSuperMss);
    t.peer.rcv = start + 10 * kSuperMss;
    t.peer.say(kAck);
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
}

TEST(TcpSuperFrames, MemoryComesBack) {
    const std::int64_t before = memory_used();
    {
        Pair p;
        p.move(1 << 20, 131072);
        ASSERT_EQ(send(p.c, std::string(200'000, 'r')), 200'000);
        p.w.poll();
        p.w.close(p.c, true);
    }
    EXPECT_NEAR(static_cast<double>(memory_used()), static_cast<double>(before), 8192);
}

}  // namespace
}  // namespace vma::tcp::test
