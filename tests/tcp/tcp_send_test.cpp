// SPDX-License-Identifier: BSD-2-Clause
// How data is cut into segments, what happens when there is no way to the peer or no room in the device, and
// listeners under pressure.
#include <gtest/gtest.h>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

std::vector<std::size_t> sizes(const Tap& tap) {
    std::vector<std::size_t> out;
    for (const auto& s : tap.seen)
        if (s.from_a && !s.payload.empty()) out.push_back(s.payload.size());
    return out;
}
using Sizes = std::vector<std::size_t>;

class TcpSend : public testing::Test {
  protected:
    void pair(bool nodelay) {
        w.options.nodelay = nodelay;
        w.options.quickack = false;
        w.pair(c, s);
        mss = c->mss();
        tap.emplace(w);
    }
    World w;
    Connection* c = nullptr;
    Connection* s = nullptr;
    std::size_t mss = 0;
    std::optional<Tap> tap;
};

TEST_F(TcpSend, NodelaySendsAtOnce) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    for (const char* text : {"a", "bb", "ccc"}) {
        send(c, text);
        w.poll();
    }
    EXPECT_EQ(sizes(*tap), (Sizes{1, 2, 3}));
}

TEST_F(TcpSend, NagleHoldsASecondShortSegment) {
    ASSERT_NO_FATAL_FAILURE(pair(false));
    send(c, "a");
    send(c, "bb");
    send(c, "ccc");
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{1}));
    w.pass(100 * kMs);  // the delayed ACK
    EXPECT_EQ(sizes(*tap), (Sizes{1, 5}));
}

// A device that transmits lazily lets writes gather in a burst. A write after something was received begins a
// new one and leaves at once, however soon it comes: on a fast wire an answer takes a few microseconds.
TEST(TcpSendLazily, AnAnswerIsNoBurst) {
    World w(1, {.lazy_tx = verbs::wire::LazyTx::fake_clock});
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.pass(1'000'000);
    Tap tap(w);
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(send(c, "ping"), 4);
        ring::LookAtHeld look;
        c->ring()->flush_older(0, std::uint64_t{1} << 60, look);
        EXPECT_EQ(look.due, 0u) << "something is held in round " << i;
        w.poll();
        ASSERT_EQ(receive(s, 10), "ping") << i;
        ASSERT_EQ(send(s, "pong"), 4);
        w.poll();
        ASSERT_EQ(receive(c, 10), "pong") << i;
    }
}

// A long burst of writes collects super-frames where the device takes them; flush() and time end the wait.
TEST(TcpSendLazily, ALongBurstLeavesAsSuperFrames) {
    World w(1, {.tx_checksum = verbs::wire::TxChecksum::complete,
                .lazy_tx = verbs::wire::LazyTx::fake_clock,
                .max_tso = 60000,
                .tso_copies = true});
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    c->nodelay(true);
    w.pass(kSec);
    std::string all, got;
    for (int i = 0; i < 20; i++) {  // opens the congestion window
        const std::string message(20'000, static_cast<char>('A' + i));
        ASSERT_EQ(send(c, message), 20'000) << i;
        all += message;
        ASSERT_TRUE(w.until([&] { return (got += receive(s)).size() == all.size(); }));
    }
    w.pass(kMs);
    const std::uint64_t before = w.a->device->tso_requests();
    for (int i = 0; i < 100; i++) {
        const std::string message(1400, static_cast<char>('a' + i % 26));
        ASSERT_EQ(send(c, message), 1400) << i;
        all += message;
    }
    EXPECT_GE(w.a->device->tso_requests() - before, 1u);
    EXPECT_LE(w.a->device->tso_requests() - before, 4u) << "they leave together";
    ASSERT_TRUE(w.until([&] { return (got += receive(s)).size() == all.size(); }));
    EXPECT_TRUE(got == all);

    w.pass(kSec);
    for (int i = 0; i < 40; i++) ASSERT_EQ(send(c, "x"), 1) << i;
    EXPECT_GT(c->unsent_bytes(), 0u) << "the end waits for more";
    c->ring()->flush();
    EXPECT_EQ(c->unsent_bytes(), 0u);
    for (int i = 0; i < 40; i++) ASSERT_EQ(send(c, "x"), 1) << i;
    EXPECT_GT(c->unsent_bytes(), 0u);
    w.pass(50'000);
    ASSERT_EQ(send(c, "x"), 1);
    EXPECT_EQ(c->unsent_bytes(), 0u) << "a write after a pause leaves at once";
}

// As Linux has it (Minshall): a short segment waits for a short one only, not behind full ones.
TEST_F(TcpSend, NagleDoesNotHoldTheEndOfALongWrite) {
    ASSERT_NO_FATAL_FAILURE(pair(false));
    send(c, std::string(2 * mss + 10, 'x'));
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{mss, mss, 10}));
}

TEST_F(TcpSend, CorkHoldsUntilReleased) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    c->change([](Options& o) { o.cork = true; });
    send(c, std::string(mss + 10, 'x'));
    send(c, "tail");
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{mss}));
    c->change([](Options& o) { o.cork = false; });
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{mss, 14}));
    w.pass(kSec);
    tap->seen.clear();
    c->change([](Options& o) { o.cork = true; });
    send(c, "forgotten");
    w.pass(190 * kMs);
    EXPECT_EQ(sizes(*tap), (Sizes{}));
    w.pass(20 * kMs);
    EXPECT_EQ(sizes(*tap), (Sizes{9}));
}

TEST_F(TcpSend, MoreHoldsUntilAWriteWithoutIt) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    send(c, "head ", Connection::kMore);
    send(c, "body ", Connection::kMore);
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{}));
    send(c, "end");
    w.poll();
    EXPECT_EQ(sizes(*tap), (Sizes{13}));
    EXPECT_EQ(receive(s), "head body end");
}

TEST_F(TcpSend, CorkedDataLeavesWithTheFin) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    send(c, "last words", Connection::kMore);
    c->shutdown(SHUT_WR);
    w.poll();
    EXPECT_EQ(receive(s), "last words");
    EXPECT_EQ(receive_result(s), 0);
}

TEST_F(TcpSend, SmallerPathMtuCutsWhatIsUnderWay) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    tap->drop = [](const Tap::Seen& x) {
        return x.from_a && x.payload.size() > 960;
    };  // a router of 1000 bytes
    Stream up{.from = c, .to = s, .total = 200'000};
    up.send_some();
    w.poll();
    c->path_mtu(1000);
    EXPECT_LE(c->mss(), 960u);
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 60 * kSec));
    EXPECT_FALSE(up.failed());
    tap->seen.clear();
    c->path_mtu(20);  // nobody's MTU: taken for the least, as the kernel does
    EXPECT_GE(c->mss(), 500u);
    c->path_mtu(300);  // nor less than the kernel would
    EXPECT_GE(c->mss(), 500u);
    ASSERT_EQ(send(c, std::string(3000, 'm')), 3000);
    w.pass(kSec);
    for (std::size_t n : sizes(*tap)) EXPECT_LE(n, 552u - 40);
    EXPECT_EQ(receive(s).size(), 3000u);
}

TEST_F(TcpSend, RouteThatGoesAndComesBack) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    w.a->error = ENETUNREACH;
    w.a->changed();
    Stream up{.from = c, .to = s, .total = 30'000};
    up.send_some();
    w.pass(3 * kSec);
    EXPECT_EQ(up.got, 0u);
    EXPECT_EQ(c->state(), State::established);
    w.a->error = 0;
    w.a->changed();
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 60 * kSec));
    EXPECT_FALSE(up.failed());
}

TEST_F(TcpSend, DeviceThatTakesNothingForAWhile) {
    ASSERT_NO_FATAL_FAILURE(pair(true));
    w.a->device->refuse_sends(true);
    Stream up{.from = c, .to = s, .total = 100'000, .close_when_done = true};
    up.send_some();
    w.pass(50 * kMs);
    EXPECT_EQ(up.got, 0u);
    w.a->device->refuse_sends(false);
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 60 * kSec));
    EXPECT_FALSE(up.failed());
}

TEST(TcpSmallDevice, QueueOfEightFramesIsEnough) {
    verbs::wire::WireConfig config;
    config.max_send_wr = 8;
    World w(3, config);
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 1'000'000, .seed = 1},
        down{.from = s, .to = c, .total = 1'000'000, .seed = 2};
    EXPECT_TRUE(w.until(
        [&] {
            for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
            return (up.done() && down.done()) || up.failed() || down.failed();
        },
        100 * kSec));
    EXPECT_FALSE(up.failed() || down.failed());
}

// Somebody does not read; everybody else goes on.
TEST(TcpSmallDevice, ReaderThatSleepsDoesNotStarveOthers) {
    verbs::wire::WireConfig config;
    config.max_recv_wr = 256;
    World w(3, config);
    w.options.receive_window = 4 << 20;
    w.options.send_buffer = 4 << 20;
    Connection *sleepy_c = nullptr, *sleepy = nullptr, *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(sleepy_c, sleepy));
    Stream full{.from = sleepy_c, .to = sleepy, .total = 4 << 20, .seed = 1};
    EXPECT_TRUE(w.until([&] { return full.send_some(), sleepy->readable() >= 3u << 20; }, 300 * kSec))
        << sleepy->readable();
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 1 << 20, .seed = 2};
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 100 * kSec));
    EXPECT_TRUE(w.until([&] { return full.send_some(), full.receive_some(), full.done() || full.failed(); },
                        100 * kSec));
    EXPECT_FALSE(full.failed() || up.failed());
}

// ---- no way ----

TEST(TcpPath, SynWaitsForTheNeighbour) {
    World w;
    w.listen();
    w.a->error = EAGAIN;
    Connection* c = w.connect();
    w.pass(300 * kMs);
    EXPECT_EQ(c->state(), State::syn_sent);
    w.a->error = 0;
    EXPECT_TRUE(w.until([&] { return c->state() == State::established; }, kSec));
}

TEST(TcpPath, NeighbourThatNeverAnswers) {
    World w;
    w.listen();
    w.a->error = EAGAIN;
    Connection* c = w.connect();
    EXPECT_TRUE(w.until([&] { return c->state() == State::close; }, 30 * kSec));
    EXPECT_EQ(c->take_error(), EHOSTUNREACH);
}

TEST(TcpPath, NoRouteAtAll) {
    World w;
    w.a->error = ENETUNREACH;
    Connection* c = Connection::create(*w.a, {{w.a->address, htons(1)}, {w.b->address, htons(2)}}, w.options);
    EXPECT_EQ(c->connect(), -ENETUNREACH);
    EXPECT_EQ(c->state(), State::close);
    c->unref();
    EXPECT_EQ(Connection::count(), 0u);
}

// ---- both at once ----

TEST(TcpOpen, SimultaneousOpen) {
    for (const bool lossy : {false, true}) {
        World w;
        verbs::wire::Faults delay;
        delay.delay_ns = 10 * kMs;
        w.wire.set_faults(*w.a->device, delay);
        w.wire.set_faults(*w.b->device, delay);
        Tap tap(w);
        if (lossy) tap.drop = [](const Tap::Seen& x) { return x.number == 1; };
        Connection* c =
            Connection::create(*w.a, {{w.a->address, htons(7001)}, {w.b->address, htons(7002)}}, w.options);
        Connection* s =
            Connection::create(*w.b, {{w.b->address, htons(7002)}, {w.a->address, htons(7001)}}, w.options);
        w.opened = {c, s};
        ASSERT_EQ(c->connect(), 0);
        ASSERT_EQ(s->connect(), 0);
        ASSERT_TRUE(w.until(
            [&] { return c->state() == State::established && s->state() == State::established; }, 20 * kSec))
            << tap.text();
        Stream up{.from = c, .to = s, .total = 100'000, .seed = 1, .close_when_done = true};
        Stream down{.from = s, .to = c, .total = 100'000, .seed = 2, .close_when_done = true};
        EXPECT_TRUE(w.until(
            [&] {
                for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
                return (up.done() && down.done()) || up.failed() || down.failed();
            },
            100 * kSec));
        EXPECT_FALSE(up.failed() || down.failed());
    }
}

// ---- listeners ----

TEST(TcpListener, FullQueueHoldsHandshakesUp) {
    World w;
    w.listen(1);
    std::vector<Connection*> clients;
    for (in_port_t i = 0; i < 6; i++) clients.push_back(w.connect(static_cast<in_port_t>(2000 + i)));
    w.pass(kSec / 2);
    EXPECT_EQ(w.listener->pending(), 2u);  // the backlog and one, as in the kernel
    EXPECT_GE(w.listener->counters().overflows, 1u);
    // Each that is accepted makes room for another.
    std::vector<Connection*> accepted;
    EXPECT_TRUE(w.until(
        [&] {
            while (Connection* s = w.accept()) accepted.push_back(s);
            return accepted.size() == 6;
        },
        120 * kSec))
        << accepted.size();
    for (Connection* c : clients) EXPECT_EQ(c->state(), State::established);
    for (Connection* s : accepted) EXPECT_EQ(s->state(), State::established);
}

TEST(TcpListener, ClosedWithEveryKindOfConnection) {
    World w;
    w.listen(4);
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));  // accepted
    Connection* pending = w.connect(2001);  // to be accepted
    w.poll();
    Peer half(w, *w.a, 2002, *w.b, World::kPort);  // half open
    half.put(half.segment(kSyn));
    ASSERT_EQ(w.listener->pending(), 1u);
    ASSERT_EQ(w.listener->half_open(), 1u);
    ASSERT_EQ(Connection::count(), 4u);
    w.b->ring->detach({IPPROTO_TCP, w.b->address, htons(World::kPort), 0, 0}, w.listener);
    w.listener->close();
    w.listener->unref();
    w.listener = nullptr;
    w.poll();
    EXPECT_EQ(pending->state(), State::close);
    EXPECT_EQ(pending->take_error(), ECONNRESET);
    EXPECT_EQ(Connection::count(), 3u);
    // What was accepted is nobody's business but its own.
    EXPECT_EQ(send(c, "still here"), 10);
    w.poll();
    EXPECT_EQ(receive(s), "still here");
}

}  // namespace
}  // namespace vma::tcp::test
