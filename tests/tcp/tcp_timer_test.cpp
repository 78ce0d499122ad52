// SPDX-License-Identifier: BSD-2-Clause
// Time: how often, when and for how long. The clock is the wire's, so each moment is exact, and minutes pass
// in no time.
#include <gtest/gtest.h>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

std::vector<std::uint64_t> times_ms(const std::vector<Tap::Seen>& seen, bool from_a) {
    std::vector<std::uint64_t> out;
    for (const auto& s : seen)
        if (s.from_a == from_a) out.push_back(s.at / kMs);
    return out;
}

void take_in(World& w, Connection* c, const std::string& what) {
    std::string got;
    ASSERT_TRUE(w.until([&] { return (got += receive(c)).size() >= what.size(); }, 60 * kSec));
    EXPECT_EQ(got, what);
}

TEST(TcpTimer, SynIsRepeatedAtTheKernelsTimes) {
    World w;
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    w.listen();
    Connection* c = w.connect();
    ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 200 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
    EXPECT_EQ(times_ms(tap.seen, true),
              (std::vector<std::uint64_t>{0, 1000, 3000, 7000, 15000, 31000, 63000}));
    EXPECT_EQ(w.wire.now() / kMs, 127'000u);
}

TEST(TcpTimer, SynCountAndUserTimeoutEndItEarlier) {
    {
        World w;
        Tap tap(w);
        tap.drop = [](const Tap::Seen&) { return true; };
        w.options.syn_retries = 2;
        w.listen();
        Connection* c = w.connect();
        ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 200 * kSec));
        EXPECT_EQ(c->take_error(), ETIMEDOUT);
        EXPECT_EQ(tap.seen.size(), 3u);
        EXPECT_EQ(w.wire.now() / kMs, 7'000u);
    }
    World w;
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    w.options.user_timeout = Msec(5000);
    w.listen();
    Connection* c = w.connect();
    ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 200 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
    EXPECT_EQ(w.wire.now() / kMs, 5'000u);
}

TEST(TcpTimer, RetransmissionsBackOffAndEnd) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    ASSERT_EQ(send(c, "first"), 5);
    ASSERT_NO_FATAL_FAILURE(take_in(w, s, "first"));
    w.pass(kSec);
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    const std::uint64_t start = w.wire.now();
    ASSERT_EQ(send(c, "lost"), 4);
    ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 2000 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
    EXPECT_EQ(receive_result(c), 0);
    // net.ipv4.tcp_retries2 of 15: 924.6 s with a timeout of 200 ms, which is the least.
    const std::uint64_t took = (w.wire.now() - start) / kMs;
    EXPECT_GE(took, 900'000u);
    EXPECT_LE(took, 960'000u);
    auto at = times_ms(tap.seen, true);
    // A tail loss probe may come between the first and the first real timeout.
    EXPECT_GE(at.size(), 16u);
    EXPECT_LE(at.size(), 18u);
    for (std::size_t i = 3; i + 1 < at.size(); i++) {
        const auto gap = at[i + 1] - at[i], before = at[i] - at[i - 1];
        EXPECT_TRUE(gap == 120'000 || (gap + 2 >= 2 * before && gap <= 2 * before + 2) || i < 4)
            << i << " " << before << " " << gap;
    }
}

// What a program has closed holds memory until its data is acknowledged. A peer that answers only after
// minutes makes the timeout long, but not the number of tries times that timeout.
TEST(TcpTimer, AClosedSocketOfASlowPeerEndsSoon) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.wire.set_faults(*w.a->device, {.delay_ns = 100 * kSec});
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(send(c, "late"), 4);
        w.pass(300 * kSec);
    }
    Connection::Sample sample;
    ASSERT_TRUE(c->sample(sample));
    EXPECT_EQ(sample.rto, std::chrono::seconds(120));
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    ASSERT_EQ(send(c, "lost"), 4);
    w.close(c);
    const std::uint64_t start = w.wire.now();
    ASSERT_TRUE(w.until([&] { return Connection::count() == 1; }, 2000 * kSec));
    // A tail loss probe, the first timeout, and the second one, which ends it.
    EXPECT_LE((w.wire.now() - start) / kSec, 361u);
}

TEST(TcpTimer, UserTimeoutEndsRetransmission) {
    World w;
    w.options.user_timeout = Msec(3000);
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    const std::uint64_t start = w.wire.now();
    ASSERT_EQ(send(c, "lost"), 4);
    ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 2000 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
    EXPECT_GE((w.wire.now() - start) / kMs, 3000u);
    EXPECT_LE((w.wire.now() - start) / kMs, 3600u);
}

TEST(TcpTimer, KeepaliveFindsADeadPeer) {
    World w;
    w.options.keepalive = true;
    w.options.keep_idle = std::chrono::seconds(10);
    w.options.keep_interval = std::chrono::seconds(2);
    w.options.keep_count = 3;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    s->change([](Options& o) { o.keepalive = false; });
    Tap tap(w);
    // As long as the peer answers, one probe each ten seconds.
    w.pass(35 * kSec);
    EXPECT_EQ(times_ms(tap.seen, true), (std::vector<std::uint64_t>{10'000, 20'000, 30'000}));
    EXPECT_EQ(times_ms(tap.seen, false).size(), 3u);
    EXPECT_EQ(c->counters().keepalives, 3u);
    (void)tap.take();
    tap.drop = [](const Tap::Seen& x) { return x.from_a; };
    ASSERT_TRUE(w.until([&] { return c->state() == State::close; }, 100 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
    auto at = times_ms(tap.seen, true);
    ASSERT_GE(at.size(), 3u);
    EXPECT_EQ(std::vector<std::uint64_t>(at.begin(), at.begin() + 3),
              (std::vector<std::uint64_t>{40'000, 42'000, 44'000}));
    EXPECT_EQ(w.wire.now() / kMs, 46'000u);
}

TEST(TcpTimer, FinWait2OfAClosedSocketEnds) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.close(c);
    w.poll();
    EXPECT_EQ(receive_result(s), 0);
    EXPECT_EQ(s->state(), State::close_wait);
    EXPECT_EQ(Connection::count(), 2u);
    w.pass(59 * kSec);
    EXPECT_EQ(Connection::count(), 2u);
    w.pass(2 * kSec);
    EXPECT_EQ(Connection::count(), 1u);
}

TEST(TcpTimer, FinWait2OfAnOpenSocketDoesNot) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    c->shutdown(SHUT_WR);
    w.pass(3600 * kSec);
    EXPECT_EQ(c->state(), State::fin_wait2);
    EXPECT_EQ(send(s, "late"), 4);
    w.poll();
    EXPECT_EQ(receive(c), "late");
}

TEST(TcpTimer, TimeWaitLastsAMinute) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.close(c);
    w.poll();
    w.close(s);
    w.poll();
    EXPECT_EQ(Connection::count(), 1u);
    w.pass(59 * kSec);
    EXPECT_EQ(Connection::count(), 1u);
    w.pass(2 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

TEST(TcpTimer, TimeWaitIsBounded) {
    World w;
    w.listen();
    for (unsigned i = 0; i < Background::kMaxTimeWait + 200; i++) {
        Connection* c = w.connect(static_cast<in_port_t>(1024 + i));
        w.poll();
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr) << i;
        w.close(s);
        w.poll();
        w.close(c);
        w.poll();
    }
    EXPECT_LE(Connection::count(), Background::kMaxTimeWait + 1);
    EXPECT_GE(Connection::count(), Background::kMaxTimeWait - 1);
    w.pass(62 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

TEST(TcpTimer, ANewSynReopensFromTimeWait) {
    World w;
    w.listen();
    for (int round = 0; round < 3; round++) {
        Connection* c = w.connect(5000);
        Connection* s = nullptr;
        ASSERT_TRUE(w.until([&] { return (s = w.accept()) != nullptr; }, 10 * kSec)) << round;
        ASSERT_TRUE(w.until([&] { return c->state() == State::established; }, 10 * kSec));
        EXPECT_EQ(send(c, "again"), 5);
        ASSERT_NO_FATAL_FAILURE(take_in(w, s, "again"));
        // The server closes first, so TIME_WAIT is its.
        w.close(s);
        w.poll();
        EXPECT_EQ(receive_result(c), 0);
        w.close(c);
        w.pass(100 * kMs);
    }
    EXPECT_LE(Connection::count(), 3u);
    w.pass(130 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

TEST(TcpTimer, SynAckIsRepeatedAndGivenUp) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 6000, *w.b, World::kPort);
    Segment syn = peer.segment(kSyn);
    peer.put(syn);
    Tap tap(w);
    w.pass(100 * kSec);
    EXPECT_EQ(tap.seen.size(), 5u);  // net.ipv4.tcp_synack_retries
    EXPECT_EQ(Connection::count(), 0u);
    EXPECT_EQ(w.accept(), nullptr);
}

TEST(TcpTimer, LoneSmallSegmentIsAcknowledgedWithin40Ms) {
    World w;
    w.options.quickack = false;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.pass(kSec);
    Tap tap(w);
    const std::uint64_t start = w.wire.now();
    ASSERT_EQ(send(c, "x"), 1);
    w.poll();
    EXPECT_TRUE(times_ms(tap.seen, false).empty());
    w.pass(kSec);
    auto acks = times_ms(tap.seen, false);
    ASSERT_EQ(acks.size(), 1u);
    EXPECT_GE(acks[0], start / kMs + 39);
    EXPECT_LE(acks[0], start / kMs + 41);
    EXPECT_EQ(c->counters().retransmits, 0u);
}

TEST(TcpTimer, EverySecondFullSegmentIsAcknowledgedAtOnce) {
    World w;
    w.options.quickack = false;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Tap tap(w);
    const std::string full(c->mss(), 'f');
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(send(c, full), static_cast<ssize_t>(full.size()));
        w.poll();
        (void)receive(s);
    }
    unsigned acks = 0;
    for (const auto& x : tap.seen) acks += !x.from_a;
    EXPECT_EQ(acks, 5u);
}

TEST(TcpTimer, AcksOfAnAnswerTravelWithIt) {
    World w;
    w.options.quickack = false;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Tap tap(w);
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(send(c, "question"), 8);
        ASSERT_NO_FATAL_FAILURE(take_in(w, s, "question"));
        ASSERT_EQ(send(s, "answer"), 6);
        ASSERT_NO_FATAL_FAILURE(take_in(w, c, "answer"));
        w.pass(kMs);
    }
    EXPECT_LE(tap.seen.size(), 44u);
}

TEST(TcpTimer, ClosedWindowIsProbed) {
    World w;
    w.options.receive_window = 8192;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 50'000};
    up.send_some();
    w.pass(300 * kMs);
    EXPECT_GE(s->readable(), 7000u);
    EXPECT_LE(s->readable(), 8192u);
    Tap tap(w);
    w.pass(60 * kSec);
    auto probes = times_ms(tap.seen, true);
    ASSERT_GE(probes.size(), 4u);
    EXPECT_LE(probes.size(), 12u);
    EXPECT_GT(c->counters().probes, 3u);
    // The program reads at last, but the window update is lost: the next probe finds out.
    tap.drop = [n = 0](const Tap::Seen& x) mutable { return !x.from_a && n++ == 0; };
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 300 * kSec));
    EXPECT_FALSE(up.failed());
    EXPECT_GE(tap.dropped, 1u);
}

// Nobody gives up as long as probes are answered; when they are not any more, it ends.
TEST(TcpTimer, ClosedWindowOfALivingPeerIsNoReasonToEnd) {
    World w;
    w.options.receive_window = 4096;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 20'000};
    up.send_some();
    w.pass(7200 * kSec);
    EXPECT_EQ(c->state(), State::established);
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 300 * kSec));
    EXPECT_FALSE(up.failed());
    Stream more{.from = c, .to = s, .total = 20'000};
    more.send_some();
    w.pass(10 * kSec);
    Tap tap(w);
    tap.drop = [](const Tap::Seen&) { return true; };
    EXPECT_TRUE(w.until([&] { return c->state() == State::close; }, 7200 * kSec));
    EXPECT_EQ(c->take_error(), ETIMEDOUT);
}

TEST(TcpTimer, TinyReadsDoNotMakeTinySegments) {
    World w;
    w.options.receive_window = 16384;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 100'000, .write = 50'000, .read = 100};
    Tap tap(w);
    for (int i = 0; i < 5000 && !up.done(); i++) {
        up.send_some();
        up.receive_some(false);
        w.pass(kMs);
    }
    EXPECT_TRUE(up.done());
    EXPECT_FALSE(up.failed());
    unsigned data = 0, small = 0, acks = 0;
    for (const auto& x : tap.seen) {
        if (x.from_a && !x.payload.empty()) data++, small += x.payload.size() < 500;
        acks += !x.from_a;
    }
    EXPECT_LE(data, 120u);
    EXPECT_LE(small, 25u);
    EXPECT_LE(acks, 300u);
}

// ---- numbers that wrap ----

TEST(TcpTimer, SequenceNumbersAndTimestampsWrap) {
    for (const bool server : {false, true}) {
        for (const std::uint32_t before : {1u, 2000u, 100'000u}) {
            SCOPED_TRACE(testing::Message() << server << " " << before);
            World w;
            const auto now = static_cast<std::uint32_t>(wire_clock().time_since_epoch() / Nsec(4000));
            World::first_sequence = 0u - before - now - (server ? 0x40000000u : 0);
            World::first_timestamp = 0u - milliseconds(wire_clock()) - 20;
            verbs::wire::Faults faults;
            faults.loss = 0.02;
            faults.delay_ns = kMs;
            w.wire.set_faults(*w.a->device, faults);
            w.wire.set_faults(*w.b->device, faults);
            Connection *c = nullptr, *s = nullptr;
            w.pair(c, s);
            World::first_sequence = 1000;
            World::first_timestamp = 0;
            if (HasFatalFailure()) return;
            Stream up{.from = c, .to = s, .total = 300'000, .seed = 3, .close_when_done = true};
            Stream down{.from = s, .to = c, .total = 300'000, .seed = 4, .close_when_done = true};
            EXPECT_TRUE(w.until(
                [&] {
                    for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
                    return (up.done() && down.done()) || up.failed() || down.failed();
                },
                600 * kSec));
            EXPECT_FALSE(up.failed() || down.failed());
            EXPECT_EQ(c->counters().paws + s->counters().paws, 0u);
        }
    }
}

}  // namespace
}  // namespace vma::tcp::test
