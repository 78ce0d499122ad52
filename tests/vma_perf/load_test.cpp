// SPDX-License-Identifier: BSD-2-Clause
// Both sides' loops over a lane in memory that loses, doubles, reorders and damages messages, or has no room.
#include "tools/vma_perf/load.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tools/vma_perf/drain.h"

namespace vma_perf {
namespace {

using Message = std::vector<std::byte>;

// What a client's lane sends goes through `wire` into what it receives.
class MemoryLane final : public Lane {
  public:
    explicit MemoryLane(unsigned connections = 1) : connections_(connections), out_(2048) {}

    unsigned connections() const noexcept override { return connections_; }
    std::byte* prepare(unsigned) override { return no_place ? nullptr : out_.data(); }
    bool send(unsigned connection, std::size_t length, bool more) override {
        if (no_room > 0) {
            --no_room;
            return false;
        }
        Message m(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(length));
        sent.push_back({connection, m, more});
        wire(connection, std::move(m));
        return true;
    }
    bool answer(const Arrival& arrival) override {
        answered.emplace_back(arrival.message.begin(), arrival.message.end());
        return can_answer;
    }
    std::size_t receive(Receiver& receiver, bool) override {
        ++receives;
        if (on_receive) on_receive();
        std::size_t count = 0;
        for (; !in.empty(); ++count) {
            const auto [connection, message] = std::move(in.front());
            in.pop_front();
            const unsigned copy = copies.empty() ? 0 : copies.front();
            if (!copies.empty()) copies.pop_front();
            receiver.take({connection, message, nullptr, copy});
        }
        return count;
    }
    void echo(unsigned connection, Message m) { in.emplace_back(connection, std::move(m)); }

    struct Sent {
        unsigned connection;
        Message message;
        bool more;
    };
    std::function<void(unsigned, Message)> wire = [this](unsigned c, Message m) { echo(c, std::move(m)); };
    std::function<void()> on_receive;
    std::deque<std::pair<unsigned, Message>> in;
    std::deque<unsigned> copies;  // of the sockets, for what stands in `in`
    std::vector<Sent> sent;
    std::vector<Message> answered;
    bool no_place = false, can_answer = true;
    unsigned no_room = 0;
    unsigned long receives = 0;

  private:
    const unsigned connections_;
    std::vector<std::byte> out_;
};

struct Bench {
    explicit Bench(unsigned connections = 1, Params p = {}) : lane(connections), params(std::move(p)) {
        params.connections = connections;
        params.warmup = 0;
        params.lost_after = 0.02;
        params.timeout = 0.3;
    }
    Span run(std::uint64_t iterations) {
        const Work work{0, &clock, &stop, reliable, iterations};
        load = make_load(lane, params, work);
        return load->run(recorder);
    }
    MemoryLane lane;
    Params params;
    bool reliable = false;
    RunClock clock;
    std::atomic<bool> stop{false};
    Recorder recorder{false, 0};
    std::unique_ptr<Load> load;
};

Header header_of(const Message& m) { return read_header(m.data()); }

TEST(PerfPingPong, EveryRequestIsAnswered) {
    Bench b;
    b.run(1000);
    const Counters c = b.recorder.counters();
    EXPECT_EQ(c.sent, 1000u);
    EXPECT_EQ(c.received, 1000u);
    EXPECT_EQ(c.bytes_received, 64000u);
    EXPECT_EQ(c.lost + c.duplicates + c.reordered + c.corrupt + c.late, 0u);
    EXPECT_EQ(b.load->sent(), std::vector<std::uint64_t>{1000});
    Distribution d;
    b.recorder.add_latency(d);
    EXPECT_EQ(d.count(), 1000u);
    EXPECT_EQ(header_of(b.lane.sent[5].message).sequence, 5u);
    EXPECT_EQ(header_of(b.lane.sent[5].message).length, 64u);
}

TEST(PerfPingPong, WindowAndBurst) {
    Params p;
    p.window = 8;
    p.burst = 4;
    Bench b(2, p);
    std::size_t most = 0;
    b.lane.on_receive = [&] { most = std::max(most, b.lane.in.size()); };
    b.run(1000);
    EXPECT_EQ(most, 16u);  // eight on each of two connections
    EXPECT_EQ(b.recorder.counters().received, 1000u);
    EXPECT_EQ(b.load->sent(), (std::vector<std::uint64_t>{b.load->sent()[0], 1000 - b.load->sent()[0]}));
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(b.lane.sent[i].more, i % 4 != 3) << i;
}

TEST(PerfPingPong, WarmUpIsNotCounted) {
    Bench b;
    b.params.warmup = 0.02;
    b.run(10);
    EXPECT_EQ(b.recorder.counters().sent, 10u);
    EXPECT_GT(b.lane.sent.size(), 10u);
    EXPECT_NE(header_of(b.lane.sent.front().message).flags & Header::kWarmUp, 0);
    EXPECT_EQ(header_of(b.lane.sent.back().message).flags & Header::kWarmUp, 0);
    EXPECT_EQ(header_of(b.lane.sent.back().message).sequence, 9u);
}

TEST(PerfPingPong, LossDuplicatesAndOrder) {
    Params p;
    p.window = 4;
    Bench b(1, p);
    std::optional<Message> held;
    b.lane.wire = [&](unsigned c, Message m) {
        const std::uint64_t n = header_of(m).sequence;
        if (n % 100 == 7) return;              // lost
        if (n % 100 == 20) b.lane.echo(c, m);  // twice
        if (n % 100 == 40) {
            held = std::move(m);  // after the next one
            return;
        }
        b.lane.echo(c, std::move(m));
        if (held) b.lane.echo(c, *std::exchange(held, std::nullopt));
    };
    b.run(1000);
    const Counters c = b.recorder.counters();
    EXPECT_EQ(c.sent, 1000u);
    EXPECT_EQ(c.lost, 10u);
    EXPECT_EQ(c.received, 990u);
    EXPECT_EQ(c.duplicates, 10u);
    EXPECT_EQ(c.reordered, 10u);
}

TEST(PerfPingPong, LateAnswersStayLost) {
    Bench b;
    std::optional<Message> held;
    b.lane.wire = [&](unsigned c, Message m) {
        if (header_of(m).sequence == 3) {
            held = std::move(m);
            return;
        }
        // There is one in flight at a time, so the held one was given up.
        if (held) b.lane.echo(c, *std::exchange(held, std::nullopt));
        b.lane.echo(c, std::move(m));
    };
    b.run(12);
    EXPECT_EQ(b.recorder.counters().lost, 1u);
    EXPECT_EQ(b.recorder.counters().late, 1u);
    EXPECT_EQ(b.recorder.counters().received, 11u);
    EXPECT_EQ(b.recorder.counters().duplicates, 0u);
}

TEST(PerfPingPong, DamageIsFoundAndForeignMessagesAreNot) {
    Params p;
    p.verify = true;
    p.min_size = 16;
    p.max_size = 300;
    Bench b(1, p);
    b.lane.wire = [&](unsigned c, Message m) {
        const std::uint64_t n = header_of(m).sequence;
        b.lane.echo(c, Message(64));  // no header of ours
        if (n == 5 && m.size() > 16) m.back() ^= std::byte{1};
        b.lane.echo(c, std::move(m));
    };
    b.run(500);
    const Counters c = b.recorder.counters();
    EXPECT_EQ(c.received, 500u);
    EXPECT_EQ(c.corrupt, b.lane.sent[5].message.size() > 16 ? 1u : 0u);
    EXPECT_EQ(c.duplicates, 0u);
    std::size_t smallest = 1000, largest = 0;
    for (const auto& s : b.lane.sent) {
        smallest = std::min(smallest, s.message.size());
        largest = std::max(largest, s.message.size());
    }
    EXPECT_LT(smallest, 40u);
    EXPECT_GT(largest, 270u);
    EXPECT_LE(largest, 300u);
}

TEST(PerfPingPong, NoRoomIsTriedAgain) {
    Params p;
    p.window = 4;
    p.burst = 4;
    Bench b(1, p);
    b.lane.no_room = 5;
    b.lane.on_receive = [&] {
        if (b.lane.receives % 7 == 0) b.lane.no_room = 2;
    };
    b.run(100);
    EXPECT_EQ(b.recorder.counters().received, 100u);
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(header_of(b.lane.sent[i].message).sequence, i);
}

TEST(PerfPingPong, SilenceIsAFailure) {
    for (const bool reliable : {false, true}) {
        Bench b;
        b.reliable = reliable;
        b.lane.wire = [](unsigned, Message) {};
        if (reliable) {
            try {
                b.run(3);
                ADD_FAILURE();
            } catch (const Failure& failure) {
                EXPECT_EQ(failure.status(), kPeerEnded);
                EXPECT_STREQ(failure.what(), "no answer for 0.3 seconds");
            }
        } else {
            b.run(3);  // each is lost after 20 ms, which is sooner
            EXPECT_EQ(b.recorder.counters().lost, 3u);
            Bench longer;
            longer.lane.wire = [](unsigned, Message) {};
            EXPECT_THROW(longer.run(1000), Failure);
        }
    }
}

TEST(PerfPingPong, StopEndsIt) {
    Bench b;
    b.params.seconds = 1000;
    b.lane.on_receive = [&] { b.stop = b.lane.receives > 50; };
    b.run(0);
    EXPECT_GT(b.recorder.counters().received, 40u);
}

TEST(PerfPingPong, LatencyCountsFromWhenAMessageWasDue) {
    Params p;
    p.rate = 10000;
    p.window = 1;
    Bench b(1, p);
    Recorder recorder(true, 1000);
    // One answer is held back for 30 ms: some 300 messages were due meanwhile.
    std::optional<Message> held;
    std::int64_t since = 0;
    b.lane.wire = [&](unsigned c, Message m) {
        if (header_of(m).sequence == 50) {
            held = std::move(m);
            since = b.clock.now();
            return;
        }
        b.lane.echo(c, std::move(m));
    };
    b.lane.on_receive = [&] {
        if (held && b.clock.now() - since > 30'000'000) b.lane.echo(0, *std::exchange(held, std::nullopt));
    };
    b.params.lost_after = 1;
    b.params.timeout = 5;
    const Work work{0, &b.clock, &b.stop, false, 1000};
    const auto load = make_load(b.lane, b.params, work);
    load->run(recorder);
    Distribution due, sent;
    recorder.add_latency(due);
    recorder.add_sent_latency(sent);
    EXPECT_EQ(due.count(), 1000u);
    EXPECT_GE(due.max(), 30e6);
    // From sending, one message shows the stall; from when they were due, a tenth of all shows a good part of
    // it.
    EXPECT_GT(due.percentile(90), 10e6);
    EXPECT_LT(sent.percentile(50), due.percentile(90));
    std::size_t samples = 0;
    recorder.samples()->drain([&](const Sample& s) {
        EXPECT_LE(s.due_ns, s.sent_ns);
        EXPECT_LE(s.sent_ns, s.received_ns);
        EXPECT_EQ(s.sequence, samples++);
    });
    EXPECT_EQ(samples, 1000u);
}

TEST(PerfThroughput, SendsInTurnAndCountsEach) {
    Params p;
    p.throughput = true;
    p.burst = 4;
    Bench b(3, p);
    b.lane.wire = [](unsigned, Message) {};
    b.lane.no_room = 9;
    b.run(1000);
    EXPECT_EQ(b.recorder.counters().sent, 1000u);
    EXPECT_EQ(b.recorder.counters().bytes_sent, 64000u);
    std::uint64_t sum = 0;
    for (const std::uint64_t n : b.load->sent()) sum += n;
    EXPECT_EQ(sum, 1000u);
    EXPECT_EQ(b.lane.sent[3].connection, 0u);
    EXPECT_EQ(b.lane.sent[4].connection, 1u);
    EXPECT_TRUE(b.lane.sent[2].more);
    EXPECT_FALSE(b.lane.sent[3].more);
}

TEST(PerfThroughput, ByTimeAndRate) {
    Params p;
    p.throughput = true;
    p.seconds = 0.1;
    p.rate = 1000;
    Bench b(1, p);
    b.lane.wire = [](unsigned, Message) {};
    const Span span = b.run(0);
    EXPECT_GE(span.end - span.begin, 99'000'000);
    EXPECT_LE(b.recorder.counters().sent, 100u);  // never faster than the schedule
    EXPECT_GE(b.recorder.counters().sent, 1u);
}

TEST(PerfThroughput, ASendQueueThatStaysFullIsAFailure) {
    Params p;
    p.throughput = true;
    Bench b(1, p);
    b.lane.no_place = true;
    try {
        b.run(5);
        ADD_FAILURE();
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status(), kPeerEnded);
        EXPECT_STREQ(failure.what(), "stalled: no message could be sent for 0.3 seconds");
    }
    EXPECT_GT(b.lane.receives, 0u);
}

TEST(PerfSchedule, DueTimes) {
    Schedule s(1000, 2, 0.5);
    s.start(1'000'000);
    EXPECT_TRUE(s.active());
    EXPECT_EQ(s.due(), 2'000'000);  // half an interval later
    s.next();
    EXPECT_EQ(s.due(), 4'000'000);
    EXPECT_FALSE(Schedule(0, 1, 0).active());
}

// ---- the server's side ----

struct ServerBench {
    explicit ServerBench(bool throughput, bool verify = false) {
        params.throughput = throughput;
        params.verify = verify;
        drain.emplace(lane, params, 0, clock);
    }
    void deliver(std::uint64_t sequence, std::uint16_t flags = 0, std::uint16_t connection = 0,
                 std::uint32_t length = 64) {
        Message m(64);
        write_header(m.data(), {length, connection, flags, sequence});
        if (params.verify) fill_pattern(m);
        lane.in.emplace_back(0, std::move(m));
    }
    Drained run() {
        lane.on_receive = [this] { stop = lane.receives > 2; };
        drain->run(stop);
        return drain->result();
    }
    MemoryLane lane;
    Params params;
    RunClock clock;
    std::atomic<bool> stop{false};
    std::optional<Drain> drain;
};

TEST(PerfDrain, Counts) {
    ServerBench b(true);
    for (const std::uint64_t n : {0, 1, 2, 2, 5, 4}) b.deliver(n);
    b.deliver(0, Header::kWarmUp);
    b.deliver(6, 0, 1);      // another connection's
    b.deliver(6, 0, 0, 63);  // not as long as it says
    const Drained d = b.run();
    EXPECT_EQ(d.received, 5u);
    EXPECT_EQ(d.bytes, 5 * 64u);
    EXPECT_EQ(d.duplicates, 1u);
    EXPECT_EQ(d.reordered, 1u);
    EXPECT_EQ(d.foreign, 2u);
    EXPECT_TRUE(b.lane.answered.empty());
}

// Copies of one connection have numbers of their own; connections take the groups in turn.
TEST(PerfDrain, CountsEachSocketOfAGroup) {
    Params params;
    params.throughput = true;
    params.is_client = false;
    params.connections = 3;
    params.sockets.groups = {"239.1.1.1", "239.1.1.2"};
    params.sockets.group_sockets = 2;
    MemoryLane lane(3);
    const RunClock clock;
    std::atomic<bool> stop{false};
    Drain drain(lane, params, 0, clock);
    const auto deliver = [&](std::uint16_t connection, unsigned copy, std::uint64_t sequence) {
        Message m(64);
        write_header(m.data(), {64, connection, 0, sequence});
        lane.in.emplace_back(connection, std::move(m));
        lane.copies.push_back(copy);
    };
    for (const std::uint64_t n : {0, 1, 2}) deliver(0, 0, n);
    for (const std::uint64_t n : {0, 2, 1, 1}) deliver(0, 1, n);
    deliver(1, 0, 0);
    deliver(2, 1, 0);
    lane.on_receive = [&] { stop = lane.receives > 2; };
    drain.run(stop);
    GroupCounts counts(params);
    drain.add_to(counts);
    const auto groups = group_results(params, {3, 2, 1}, counts.report());
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].sent, 4u);  // of connections 0 and 2
    EXPECT_EQ(groups[0].sockets[0].messages, 3u);
    EXPECT_EQ(groups[0].sockets[1].messages, 4u);
    EXPECT_EQ(groups[0].sum().duplicates, 1u);
    EXPECT_EQ(groups[0].sum().reordered, 1u);
    EXPECT_EQ(groups[0].lost(), 1u);
    EXPECT_EQ(groups[1].sent, 2u);
    EXPECT_EQ(groups[1].lost(), 3u);
    EXPECT_EQ(drain.result().received, 9u - 1u);
}

TEST(PerfDrain, AnswersAsTheyCameAlsoTheWarmUp) {
    ServerBench b(false, true);
    b.deliver(0, Header::kWarmUp | Header::kPattern);
    b.deliver(0, Header::kPattern);
    b.deliver(1, Header::kPattern);
    b.lane.in.back().second[40] ^= std::byte{4};
    b.lane.can_answer = false;
    const Drained d = b.run();
    EXPECT_EQ(d.received, 2u);
    EXPECT_EQ(d.corrupt, 1u);
    EXPECT_EQ(d.unanswered, 3u);
    ASSERT_EQ(b.lane.answered.size(), 3u);
    EXPECT_TRUE(has_pattern(b.lane.answered[1]));
}

TEST(PerfDrain, Sums) {
    Drained a{.received = 11, .first_ns = 0, .last_ns = 1'000'000'000};
    EXPECT_EQ(a.rate(), 10);
    a += {.received = 10, .duplicates = 2, .first_ns = 500'000'000, .last_ns = 2'000'000'000};
    EXPECT_EQ(a.rate(), 10);
    EXPECT_EQ(a.duplicates, 2u);
    EXPECT_EQ(Drained{}.rate(), 0);
}

TEST(PerfMessage, PatternDependsOnEverything) {
    for (const std::size_t size : {16, 17, 24, 31, 100}) {
        Message m(size), other(size);
        write_header(m.data(), {static_cast<std::uint32_t>(size), 1, 0, 5});
        fill_pattern(m);
        EXPECT_TRUE(has_pattern(m));
        other = m;
        write_header(other.data(), {static_cast<std::uint32_t>(size), 1, 0, 6});
        EXPECT_EQ(has_pattern(other), size == 16);
        for (std::size_t i = 16; i < size; ++i) {
            m[i] ^= std::byte{0x40};
            EXPECT_FALSE(has_pattern(m)) << i;
            m[i] ^= std::byte{0x40};
        }
    }
}

}  // namespace
}  // namespace vma_perf
