// SPDX-License-Identifier: BSD-2-Clause
// Loss: of each single segment of a connection's life in turn, and of any at random, together with
// duplication, reordering and corruption. Whatever is lost, the bytes arrive in order, both ends go through
// the states RFC 9293 has for them, and nothing is left over.
#include <gtest/gtest.h>

#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

enum class Order { client_first, server_first, simultaneous, half_close };
constexpr const char* kOrderNames[] = {"client first", "server first", "simultaneous", "half close"};

struct Ends {
    Connection* c = nullptr;
    Connection* s = nullptr;
};

// Everything from the SYN to the last ACK, with a few segments of data each way. False: `what` went wrong.
void life(World& w, Order order) {
    w.listen();
    Connection* c = w.connect();
    Connection* s = nullptr;
    ASSERT_TRUE(w.until([&] { return c->state() == State::established; }, 20 * kSec));
    Stream up{.from = c, .total = 9000, .seed = 1, .write = 3000},
        down{.to = c, .total = 12000, .seed = 2, .write = 5000};
    if (order == Order::half_close) up.close_when_done = true;
    ASSERT_TRUE(w.until(
        [&] {
            if (s == nullptr) s = w.accept();
            up.to = down.from = s;
            up.send_some();
            if (s == nullptr) return false;
            up.receive_some();
            if (up.done()) down.send_some();
            down.receive_some();
            return up.done() && down.done();
        },
        30 * kSec))
        << "up " << up.sent << "/" << up.got << " down " << down.sent << "/" << down.got;
    EXPECT_FALSE(up.failed() || down.failed());
    Connection* first = order == Order::server_first ? s : c;
    Connection* second = order == Order::server_first ? c : s;
    if (order == Order::half_close) {
        EXPECT_EQ(s->state(), State::close_wait);
    } else {
        EXPECT_EQ(first->shutdown(SHUT_WR), 0);
        if (order == Order::simultaneous) {
            EXPECT_EQ(second->shutdown(SHUT_WR), 0);
        } else {
            EXPECT_TRUE(w.until([&] { return receive_result(second) == 0; }, 20 * kSec));
            EXPECT_EQ(second->state(), State::close_wait);
        }
    }
    if (order != Order::simultaneous) {
        EXPECT_EQ(second->shutdown(SHUT_WR), 0);
    }
    EXPECT_TRUE(
        w.until([&] { return receive_result(first) == 0 && first->state() == State::time_wait; }, 20 * kSec))
        << static_cast<int>(first->state());
    const State last = order == Order::simultaneous ? State::time_wait : State::close;
    EXPECT_TRUE(w.until([&] { return second->state() == last; }, 20 * kSec))
        << static_cast<int>(second->state());
    EXPECT_EQ(receive_result(second), 0);
    EXPECT_EQ(first->take_error(), 0);
    EXPECT_EQ(second->take_error(), 0);
    w.close(c);
    w.close(s);
    w.pass(70 * kSec);  // a last FIN that was lost restarts TIME_WAIT at most once
    EXPECT_EQ(Connection::count(), 0u);
}

class EachSegment : public testing::TestWithParam<std::tuple<Order, bool>> {};

TEST_P(EachSegment, IsLostOnce) {
    const auto [order, from_a] = GetParam();
    unsigned number = 0;
    for (bool more = true; more; number++) {
        SCOPED_TRACE(testing::Message() << kOrderNames[static_cast<int>(order)] << ", segment " << number
                                        << " of the " << (from_a ? "client" : "server") << " is lost");
        World w;
        Tap tap(w);
        tap.drop = [&](const Tap::Seen& s) { return s.from_a == from_a && s.number == number; };
        life(w, order);
        more = tap.dropped != 0;
        if (HasFailure()) {
            ADD_FAILURE() << tap.text();
            break;
        }
    }
    EXPECT_GT(number, 8u);
}

// Two in a row: the retransmission, too.
TEST_P(EachSegment, AndTheNextOneToo) {
    const auto [order, from_a] = GetParam();
    unsigned number = 0;
    for (bool more = true; more; number++) {
        SCOPED_TRACE(testing::Message()
                     << kOrderNames[static_cast<int>(order)] << ", from segment " << number << " of the "
                     << (from_a ? "client" : "server") << " on two are lost");
        World w;
        Tap tap(w);
        tap.drop = [&](const Tap::Seen& s) {
            return s.from_a == from_a && (s.number == number || s.number == number + 1);
        };
        life(w, order);
        more = tap.dropped != 0;
        if (HasFailure()) {
            ADD_FAILURE() << tap.text();
            break;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(TcpLoss, EachSegment,
                         testing::Combine(testing::Values(Order::client_first, Order::server_first,
                                                          Order::simultaneous, Order::half_close),
                                          testing::Bool()),
                         [](const auto& info) {
                             std::string name = kOrderNames[static_cast<int>(std::get<0>(info.param))];
                             std::replace(name.begin(), name.end(), ' ', '_');
                             return name + (std::get<1>(info.param) ? "_client" : "_server");
                         });

// ---- at random ----

struct Level {
    const char* name;
    double loss;
    std::uint64_t bytes;
    std::uint64_t limit_s;  // of simulated time, about three times what the slowest seed took: one without
                            // SACK and time stamps, whose backoff nothing ends before new data is sent (Karn)
};

class RandomFaults : public testing::TestWithParam<Level> {};

// What differs from seed to seed.
Options options_for(unsigned seed) {
    static constexpr std::uint32_t kWindows[] = {1 << 20, 4096, 65535, 16384, 300'000};
    static constexpr std::uint32_t kSegments[] = {0, 536, 1000, 100};
    Options o;
    o.sack = seed % 2 == 0;
    o.timestamps = seed / 2 % 2 == 0;
    o.receive_window = kWindows[seed % std::size(kWindows)];
    o.window_scaling = seed % 11 != 0;
    o.maxseg = kSegments[seed / 4 % std::size(kSegments)];
    o.nodelay = seed % 3 != 0;
    o.congestion = seed % 7 == 0  ? CongestionAlgorithm::none
                   : seed % 7 < 4 ? CongestionAlgorithm::cubic
                                  : CongestionAlgorithm::newreno;
    return o;
}

TEST_P(RandomFaults, BothStreamsArrive) {
    const Level level = GetParam();
    std::uint64_t longest = 0, timeouts = 0, retransmits = 0, segments = 0;
    for (unsigned seed = 1; seed <= 100; seed++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        World w(seed);
        w.options = options_for(seed);
        verbs::wire::Faults faults;
        faults.loss = level.loss;
        faults.duplicate = 0.02;
        faults.reorder = 0.03;
        faults.reorder_ns = 700'000;
        faults.corrupt = 0.01;
        faults.delay_ns = seed % 4 * kMs;
        faults.jitter_ns = seed % 3 == 0 ? 100'000 : 0;
        w.wire.set_faults(*w.a->device, faults);
        w.wire.set_faults(*w.b->device, faults);
        Connection *c = nullptr, *s = nullptr;
        ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
        // The second half goes the other way round: who closes first changes.
        const std::uint64_t bytes = w.options.maxseg == 100 ? level.bytes / 5 : level.bytes;
        Stream up{.from = c,
                  .to = s,
                  .total = bytes,
                  .seed = seed,
                  .write = 1 + seed * 977 % 20000,
                  .close_when_done = true};
        Stream down{.from = s,
                    .to = c,
                    .total = bytes,
                    .seed = ~seed,
                    .write = 1 + seed * 3371 % 30000,
                    .close_when_done = true};
        const bool finished = w.until(
            [&] {
                for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
                return (up.done() && down.done()) || up.failed() || down.failed();
            },
            level.limit_s * kSec);
        EXPECT_TRUE(finished) << "up " << up.sent << "/" << up.got << " down " << down.sent << "/" << down.got
                              << " of " << bytes;
        EXPECT_FALSE(up.failed() || down.failed())
            << up.wrong << down.wrong << " " << up.send_error << " " << down.send_error << " "
            << up.receive_error << " " << down.receive_error;
        EXPECT_TRUE(w.until(
            [&] {
                auto over = [](State x) { return x == State::close || x == State::time_wait; };
                return over(c->state()) && over(s->state());
            },
            level.limit_s * kSec));
        longest = std::max(longest, w.wire.now());
        for (Connection* x : {c, s}) {
            const Counters n = x->counters();
            timeouts += n.timeouts, retransmits += n.retransmits, segments += n.segments_out;
        }
        EXPECT_EQ(c->take_error() | s->take_error(), 0);
        w.close(c);
        w.close(s);
        if (HasFailure()) break;
    }
    printf("%s: %llu segments, %llu sent again, %llu timeouts, the longest took %.1f s\n", level.name,
           static_cast<unsigned long long>(segments), static_cast<unsigned long long>(retransmits),
           static_cast<unsigned long long>(timeouts), static_cast<double>(longest) / 1e9);
}

INSTANTIATE_TEST_SUITE_P(TcpLoss, RandomFaults,
                         testing::Values(Level{"one_percent", 0.01, 200'000, 320},
                                         Level{"five_percent", 0.05, 100'000, 15},
                                         Level{"twenty_percent", 0.20, 30'000, 1800}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vma::tcp::test
