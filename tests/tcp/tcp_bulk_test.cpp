// SPDX-License-Identifier: BSD-2-Clause
// How fast a stream is when the network loses: our sender (CUBIC, SACK) beside a plain Reno sender (no SACK)
// over the same wire, with the same losses. The time is the wire's, so the numbers are those of the
// algorithms and not of the machine. The ratio is printed; what is tested is that both arrive.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

// Megabytes a second.
double throughput(std::uint64_t seed, CongestionAlgorithm algorithm, bool sack, std::uint64_t bytes) {
    World w(seed);
    w.options.congestion = algorithm;
    w.options.sack = sack;
    w.options.receive_window = 4 << 20;
    w.options.send_buffer = 4 << 20;
    verbs::wire::Faults data, acks;
    data.loss = 0.01;
    data.delay_ns = acks.delay_ns = 5 * kMs;
    Connection *c = nullptr, *s = nullptr;
    w.pair(c, s);
    if (testing::Test::HasFatalFailure()) return 1;
    w.wire.set_faults(*w.a->device, data);
    w.wire.set_faults(*w.b->device, acks);
    const std::uint64_t start = w.wire.now();
    Stream up{.from = c, .to = s, .total = bytes, .seed = 1};
    EXPECT_TRUE(
        w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }, 3600 * kSec));
    EXPECT_FALSE(up.failed());
    return static_cast<double>(bytes) / 1e6 / (static_cast<double>(w.wire.now() - start) / 1e9);
}

TEST(TcpBulk, OnePercentLossTenMillisecondsBesidePlainReno) {
    double ours = 0, reno = 0;
    constexpr int kRuns = 5;
    for (std::uint64_t seed = 1; seed <= kRuns; seed++) {
        ours += throughput(seed, CongestionAlgorithm::cubic, true, 8 << 20) / kRuns;
        reno += throughput(seed, CongestionAlgorithm::newreno, false, 8 << 20) / kRuns;
    }
    printf("1 %% loss, 10 ms: CUBIC with SACK %.2f MB/s, plain Reno %.2f MB/s, ratio %.2f\n", ours, reno,
           ours / reno);
}

// Receives are posted for a window only once somebody sends as much: those of a conversation stay in the
// caches.
TEST(TcpBulk, BuffersForAWindowComeWithAStream) {
    World w(1, {.max_recv_wr = 8192, .recv_wr_hint = 128});
    Connection *c = nullptr, *s = nullptr;
    w.pair(c, s);
    auto posted = [&] { return w.b->ring->buffer_counts().rx_posted; };
    for (int i = 0; i < 500; i++) {
        for (auto [from, to] : {std::pair{c, s}, std::pair{s, c}}) {
            ASSERT_EQ(send(from, std::string(1000, 'x')), 1000);
            ASSERT_TRUE(w.until([&, to = to] { return to->readable() == 1000; }));
            ASSERT_EQ(receive(to).size(), 1000u);
            w.pass(1000);
        }
    }
    EXPECT_LT(posted(), 256u);
    Stream up{.from = c, .to = s, .total = 500'000, .seed = 1};
    EXPECT_TRUE(w.until([&] { return up.send_some(), up.receive_some(), up.done() || up.failed(); }));
    EXPECT_GT(posted(), 2000u);
}

// ACKs for `segments` at once, on one of `streams` connections that receive in bulk over a short path.
std::size_t acks_in_bulk(unsigned streams, unsigned segments) {
    World w(1, {.max_recv_wr = 8192, .recv_wr_hint = 128}, std::chrono::hours(1));
    std::vector<Stream> all;
    for (unsigned i = 0; i < streams; i++) {
        Connection *c = nullptr, *s = nullptr;
        w.pair(c, s);
        if (testing::Test::HasFatalFailure()) return 0;
        all.push_back({.from = c, .to = s, .total = 400'000, .seed = i, .write = 1448});
    }
    EXPECT_TRUE(w.until([&] {
        for (Stream& s : all) s.send_some(), s.receive_some();
        return std::ranges::all_of(all, [](const Stream& s) { return s.done() || s.failed(); });
    }));
    w.pass(60 * kMs);  // the ACK of the last segments
    Tap tap(w);
    Stream& s = all[0];
    s.total += segments * 1448u;
    s.send_some();
    w.poll();
    EXPECT_EQ(s.to->readable(), segments * 1448u);
    return static_cast<std::size_t>(std::ranges::count(tap.seen, false, &Tap::Seen::from_a));
}

// The sender's kernel transmits on the core that acknowledges, and in small pieces if an ACK opens little.
TEST(TcpBulk, StreamsThatShareAShortPathAcknowledgeASuperFrame) {
    EXPECT_GE(acks_in_bulk(1, 40), 1u);
    EXPECT_EQ(acks_in_bulk(2, 40), 0u);
    EXPECT_EQ(acks_in_bulk(2, 60), 1u);
}

// Before the kernel takes over: all that is under way is taken, and the peer hears nothing of it.
TEST(TcpBulk, SilenceTakesWhatIsUnderWay) {
    World w(1, {.max_recv_wr = 8192, .recv_wr_hint = 128}, std::chrono::hours(1));
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream stream{.from = c, .to = s, .total = 400'000, .write = 1448};
    ASSERT_TRUE(w.until([&] { return stream.send_some(), stream.receive_some(), stream.done(); }));
    w.pass(60 * kMs);
    Tap tap(w);
    stream.total += 20 * 1448u;
    stream.send_some();
    s->begin_silence();
    EXPECT_EQ(s->readable(), 20 * 1448u);
    w.pass(2 * kMs);  // longer than a stream's ACK waits, and shorter than the peer's probe
    auto from_s = [&] { return std::ranges::count(tap.seen, false, &Tap::Seen::from_a); };
    EXPECT_EQ(from_s(), 0);
    s->end_silence();
    w.poll();
    EXPECT_EQ(from_s(), 1);
    EXPECT_EQ(c->unacked_bytes(), 0u);
    EXPECT_TRUE(w.until([&] { return stream.receive_some(), stream.done(); }));
}

}  // namespace
}  // namespace vma::tcp::test
