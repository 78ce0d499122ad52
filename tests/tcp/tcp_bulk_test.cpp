// SPDX-License-Identifier: BSD-2-Clause
// How fast a stream is when the network loses: our sender (CUBIC, SACK) beside a plain Reno sender (no SACK)
// over the same wire, with the same losses. The time is the wire's, so the numbers are those of the
// algorithms and not of the machine. The ratio is printed; what is tested is that both arrive.
#include <gtest/gtest.h>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

constexpr std::uint64_t kMs = 1'000'000, kSec = 1'000 * kMs;

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

}  // namespace
}  // namespace vma::tcp::test
