// SPDX-License-Identifier: BSD-2-Clause
// A connection that stands: what it keeps for its peer, when it acknowledges, and values that must not grow
// old.
#include <gtest/gtest.h>

#include <set>

#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

// ---- memory that a peer can make us keep ----

// Takes all it gets and gives nothing back.
class Hog final : public ring::FrameSink {
  public:
    bool deliver(ring::RxBuffer* buffer) noexcept override {
        buffer->next = first_;
        first_ = buffer;
        return true;
    }
    void release() {
        while (first_ != nullptr) {
            ring::RxBuffer* next = first_->next;
            first_->next = nullptr;
            first_->release();
            first_ = next;
        }
    }

  private:
    ring::RxBuffer* first_ = nullptr;
};

enum class Pattern {
    in_order,
    holes,
    holes_backwards,
    behind_a_hole,
    overlapping,
    shifted_segments,
    short_segments,
    filled_later
};
constexpr const char* kPatterns[] = {"in_order",       "holes",       "holes_backwards",
                                     "behind_a_hole",  "overlapping", "shifted_segments",
                                     "short_segments", "filled_later"};

struct Load {
    Pattern pattern;
    std::uint32_t window;
    bool scarce;
};
class Memory : public testing::TestWithParam<Load> {};
constexpr std::uint32_t kSegments = 6000;  // in a buffer each, thrice what the longest window may keep

// The peer sends what costs most, and the program does not read. What is kept for it is less than twice the
// receive buffer.
TEST_P(Memory, IsBoundedByTwiceTheReceiveBuffer) {
    const auto [pattern, window, scarce] = GetParam();
    Scripted t;
    t.w.options.receive_window = window;
    t.w.options.timestamps = false;
    ASSERT_NO_FATAL_FAILURE(t.establish(option::mss(1460) + option::sack_allowed() + option::scale(7)));
    ring::Ring& ring = *t.w.a->ring;
    const verbs::FlowSpec flow{IPPROTO_TCP, t.w.a->address, htons(7), t.w.b->address, htons(7)};
    Hog hog;
    if (scarce) {
        ASSERT_TRUE(ring.attach(flow, &hog, ring::Share::latest));
        Peer other(t.w, *t.w.b, 7, *t.w.a, 7);
        for (int i = 0; i < 5000 && !ring.scarce(); i++) other.put(other.segment(kAck, "x"));
        ASSERT_TRUE(ring.scarce());
    }
    auto buffers = [&] {
        const ring::BufferCounts n = ring.buffer_counts();
        return static_cast<std::int64_t>(n.rx_total - n.rx_posted - n.rx_free);
    };
    constexpr std::int64_t kBuffer = 2048 + sizeof(ring::RxBuffer);
    const std::int64_t memory = memory_used(), taken = buffers();
    std::int64_t most = 0;
    const std::uint32_t base = t.peer.snd, count = std::min(window, kSegments);
    std::uint64_t sent = 0, half = 0;
    auto put = [&](std::uint32_t at, std::uint32_t length) {
        Segment s = t.peer.segment(kAck, std::string(length, 'm'));
        s.seq = base + at;
        t.peer.put(s);
        sent++;
        most = std::max(most, memory_used() - memory + (buffers() - taken) * kBuffer);
        if (sent % 64 == 0) (void)t.peer.take();
    };
    for (std::uint32_t i = 0; i < count; i++) {
        switch (pattern) {
            case Pattern::in_order:
                put(i, 1);
                break;
            case Pattern::holes:
                put(1 + 2 * i, 1);
                break;
            case Pattern::holes_backwards:
                put(window - 1 - 2 * (i % (window / 2)), 1);
                break;
            case Pattern::behind_a_hole:
                put(1 + i, 1);
                break;
            case Pattern::overlapping:
                put(1 + i, 100);
                break;
            case Pattern::shifted_segments:
                put(1 + i % kSegments, 1400);
                break;
            case Pattern::short_segments:
                put(500 * (i % (window / 500)), 500);
                break;
            case Pattern::filled_later:
                // Holes, and then all that is missing, as often as there is room for it.
                put(2 * i + 1, 1);
                if (i % 64 == 63)
                    for (std::uint32_t k = 0; k < 64; k++) put(2 * (i - 63 + k), 1);
                break;
        }
        if (i == count / 2) half = t.c->held().steps;
        if (pattern == Pattern::short_segments && i > window / 500) break;
    }
    EXPECT_LE(most, 2 * std::int64_t{window}) << "after " << sent << " segments";
    EXPECT_LE(t.c->held().memory, 2 * std::size_t{window});
    // What has to be done for a segment does not depend on what is there.
    const std::uint64_t steps = t.c->held().steps;
    EXPECT_LE(steps, 12 * sent);
    EXPECT_LE(steps - half, half * 3 / 2 + 10'000) << "grows with the queue";
    EXPECT_EQ(t.c->state(), State::established);
    // Nothing of it is lost: what was not kept comes again.
    const std::size_t readable = t.c->readable();
    EXPECT_EQ(receive(t.c, 4 << 20).size(), readable);
    if (scarce) {
        hog.release();
        ring.detach(flow, &hog);
    }
}

INSTANTIATE_TEST_SUITE_P(
    TcpEstablished, Memory,
    [] {
        std::vector<Load> all;
        for (std::size_t p = 0; p < std::size(kPatterns); p++)
            for (std::uint32_t window : {4096u, 65536u, 2u << 20})
                for (bool scarce : {false, true}) all.push_back({static_cast<Pattern>(p), window, scarce});
        return testing::ValuesIn(all);
    }(),
    [](const auto& info) {
        return std::string(kPatterns[static_cast<int>(info.param.pattern)]) + "_" +
               std::to_string(info.param.window) + (info.param.scarce ? "_scarce" : "");
    });

// Segments arrive in any order, some twice, and the stream is whole.
TEST(TcpEstablished, ReassemblesWhatComesInAnyOrder) {
    for (unsigned seed = 1; seed <= 20; seed++) {
        SCOPED_TRACE(seed);
        Scripted t;
        t.w.options.receive_window = 1 << 18;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        verbs::wire::Random random(seed);
        std::vector<std::pair<std::uint32_t, std::uint32_t>> segments;
        std::uint32_t total = 0;
        while (total < 200'000) {
            const auto n = 1 + static_cast<std::uint32_t>(random.below(random.below(2) != 0 ? 1448 : 10));
            segments.emplace_back(total, n);
            total += n;
        }
        for (std::size_t i = segments.size(); i-- > 1;)
            if (random.below(3) != 0)
                std::swap(segments[i], segments[i - random.below(std::min<std::size_t>(i, 100))]);
        const std::uint32_t base = t.peer.snd;
        std::string got;
        // The FIN is the last segment's, wherever that comes; what was refused for want of room comes in the
        // second round.
        for (int round = 0; round < 2; round++)
            for (auto [at, n] : segments) {
                std::string text(n, '\0');
                for (std::uint32_t i = 0; i < n; i++) text[i] = stream_byte(at + i, seed);
                Segment s = t.peer.segment(at + n == total ? kAck | kFin : kAck, text);
                s.seq = base + at;
                t.peer.put(s);
                if (random.below(50) == 0) got += receive(t.c), (void)t.peer.take();
            }
        got += receive(t.c);
        ASSERT_EQ(got.size(), total);
        for (std::uint32_t i = 0; i < total; i++) ASSERT_EQ(got[i], stream_byte(i, seed)) << i;
        EXPECT_EQ(t.c->state(), State::close_wait);
        EXPECT_EQ(receive_result(t.c), 0);
        EXPECT_EQ(t.c->held().memory, 0u);
    }
}

// A FIN in front of the data before it, which just fills the window.
TEST(TcpEstablished, EarlyFinOfAFullWindow) {
    Scripted t;
    t.w.options.receive_window = 4096;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    Segment fin = t.peer.segment(kAck | kFin, std::string(1096, 'b'));
    fin.seq += 3000;
    t.peer.put(fin);
    EXPECT_EQ(t.c->state(), State::established);
    (void)t.peer.take();
    for (int i = 0; i < 3; i++) t.peer.say(kAck, std::string(1000, 'a'));
    EXPECT_EQ(t.c->state(), State::close_wait);
    EXPECT_EQ(t.peer.take().back().ack, fin.end());
    EXPECT_EQ(receive(t.c).size(), 4096u);
    EXPECT_EQ(receive_result(t.c), 0);
}

// ---- acknowledgements ----

// RFC 5681 section 4.2. Else a sender whose window is full waits for the delayed ACK after each loss.
TEST(TcpEstablished, AGapThatIsFilledIsAcknowledgedAtOnce) {
    for (bool sack : {true, false}) {
        Scripted t;
        t.w.options.quickack = false;
        t.w.options.sack = sack;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        t.peer.say(kAck, "first");
        t.w.pass(kSec);
        (void)t.peer.take();
        Segment missing = t.peer.segment(kAck, "12345"), behind = t.peer.segment(kAck, "67890");
        behind.seq += 5;
        t.peer.put(behind);
        auto answers = t.peer.take();
        ASSERT_EQ(answers.size(), 1u);
        EXPECT_EQ(answers[0].ack, missing.seq);
        EXPECT_EQ(said(answers[0]).sacks.size(), sack ? 1u : 0u);
        t.peer.put(missing);
        answers = t.peer.take();  // no time passes
        ASSERT_EQ(answers.size(), 1u);
        EXPECT_EQ(answers[0].ack, behind.end());
        EXPECT_TRUE(said(answers[0]).sacks.empty());
        EXPECT_EQ(receive(t.c), "first1234567890");
    }
}

// Nagle cuts writes of 1400 bytes into segments of two sizes. A sender that has two of them under way, such
// as BBR at a small window, waited for the delayed ACK, since together they are less than two full ones.
TEST(TcpEstablished, MoreThanASegmentIsAcknowledgedWhenTheRingIsIdle) {
    Scripted t;
    t.w.options.quickack = false;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.say(kAck, std::string(1448, 'f'));
    t.w.pass(kSec);
    EXPECT_EQ(t.peer.take().size(), 1u);
    t.peer.say(kAck, std::string(1400, 'g'));
    EXPECT_EQ(t.peer.take().size(), 0u) << "one waits";
    const Segment second = t.peer.segment(kAck, std::string(1448, 'h'));
    t.peer.put(second);
    const auto answers = t.peer.take();  // no time passes
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].ack, second.end());
}

TEST(TcpEstablished, DataWithTheLastAckOfTheHandshakeIsAcknowledged) {
    for (bool in_order : {true, false}) {
        World w;
        w.options.quickack = false;
        w.listen();
        Peer peer(w, *w.a, 3000, *w.b, World::kPort);
        Segment s = peer.segment(kSyn);
        s.options = option::mss(1460);
        peer.put(s);
        peer.snd = s.end();
        auto answers = peer.take();
        ASSERT_EQ(answers.size(), 1u);
        peer.rcv = answers[0].end();
        Segment data = peer.segment(kAck | kPsh, "hello"), late = peer.segment(kAck | kPsh, " world");
        late.seq += 5;
        peer.put(in_order ? data : late);
        w.pass(100 * kMs);  // longer than any delayed ACK, shorter than a retransmission
        answers = peer.take();
        ASSERT_EQ(answers.size(), 1u);
        EXPECT_EQ(answers[0].ack, in_order ? data.end() : data.seq);
        peer.put(in_order ? late : data);
        Connection* c = w.accept();
        ASSERT_NE(c, nullptr);
        EXPECT_EQ(receive(c), "hello world");
    }
}

// ---- windows ----

// The SYN announces a shift, and all that follows is in its units, whatever SO_RCVBUF becomes meanwhile.
TEST(TcpEstablished, WindowScaleIsTheOneOfTheSyn) {
    for (std::uint32_t later : {16384u, 4u << 20}) {
        SCOPED_TRACE(later);
        Scripted t;
        t.w.options.receive_window = 1 << 20;
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.c->change([&](Options& o) { o.receive_window = later; });
        auto syn = t.peer.take();
        ASSERT_FALSE(syn.empty());
        const unsigned scale = said(syn[0]).scale.value_or(99);
        EXPECT_EQ(scale, 5u);
        t.peer.rcv = syn[0].end();
        Segment s = t.peer.segment(kSyn | kAck);
        s.options = option::mss(1460) + option::scale(7);
        t.peer.put(s);
        t.peer.snd = s.end();
        auto last = t.peer.take();
        ASSERT_FALSE(last.empty());
        const std::uint32_t window = std::uint32_t{last.back().window} << scale;
        // What the SYN announced holds, unscaled; a larger buffer can be used as far as the shift reaches.
        if (later < 65535)
            EXPECT_LE(window, 65535u);
        else
            EXPECT_GE(window, 0xfff0u << scale);
        EXPECT_GE(window, 65535u >> scale << scale);
        // The peer uses all of it, and nothing is refused.
        for (std::uint32_t done = 0; done < window;) {
            const std::uint32_t n = std::min(1000u, window - done);
            t.peer.say(kAck, std::string(n, 'w'));
            done += n;
        }
        EXPECT_EQ(t.c->readable(), window);
        EXPECT_EQ(t.c->counters().unacceptable, 0u);
    }
}

// Without SO_RCVBUF the window begins small. When the peer sends in bulk over a short path, it becomes what
// the ring's bulk connections have together, and no segment of the peer's is refused.
TEST(TcpEstablished, WindowGrowsWithAStream) {
    for (const bool automatic : {true, false}) {
        Scripted t;
        t.w.options.receive_window = 2 << 20;
        t.w.options.receive_auto = automatic;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        const unsigned scale = said(t.peer.syn).scale.value_or(0);
        std::uint32_t largest = 0, first = 0;
        auto look = [&] {
            for (const Segment& s : t.peer.take()) {
                const std::uint32_t window = std::uint32_t{s.window} << scale;
                if (first == 0) first = window;
                largest = std::max(largest, window);
            }
        };
        t.peer.say(kAck, "first");
        t.w.pass(kSec);
        look();
        for (int i = 0; i < 2000; i++) {
            t.peer.say(kAck, std::string(1400, 'b'));
            receive(t.c, 1 << 20);
            look();
        }
        EXPECT_EQ(t.c->counters().unacceptable, 0u);
        EXPECT_EQ(t.c->counters().received, 5u + 2000u * 1400u);
        if (automatic) {
            EXPECT_LE(first, 128u << 10);
            EXPECT_LE(largest, 512u << 10);
            EXPECT_GE(largest, 500u << 10);
        } else {
            EXPECT_GE(largest, 2'000'000u);
        }
    }
}

// SO_RCVBUF of a connection that stands: a larger one is for the peer to use at once, a smaller one takes
// nothing back.
TEST(TcpEstablished, ReceiveBufferChangesWhenItIsSet) {
    Scripted t;
    t.w.options.receive_window = 65536;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const unsigned scale = said(t.peer.syn).scale.value_or(0);
    std::uint32_t edge = t.peer.snd;
    auto look = [&] {
        for (const Segment& s : t.peer.take()) {
            const std::uint32_t now = s.ack + (std::uint32_t{s.window} << scale);
            EXPECT_FALSE(static_cast<std::int32_t>(now - edge) < -(1 << scale))
                << "the right edge moved back";
            edge = static_cast<std::int32_t>(now - edge) > 0 ? now : edge;
        }
    };
    auto fill = [&] {
        for (;;) {
            look();
            const auto room = static_cast<std::int32_t>(edge - t.peer.snd);
            if (room <= 0) break;
            t.peer.say(kAck, std::string(static_cast<std::size_t>(std::min(room, 1400)), 'f'));
        }
    };
    t.peer.say(kAck, "f");
    t.w.pass(kSec);
    fill();
    EXPECT_LE(t.c->readable(), 65536u);
    EXPECT_GE(t.c->readable(), 65000u);
    t.c->change([](Options& o) { o.receive_window = 300'000; });
    t.w.pass(kSec);
    fill();
    // More than the shift of the SYN can tell at once: the window opens again and again, as in the kernel.
    EXPECT_LE(t.c->readable(), 300'000u);
    EXPECT_GE(t.c->readable(), 298'000u);
    EXPECT_LE(t.c->held().memory, 600'000u);
    t.c->change([](Options& o) { o.receive_window = 30'000; });
    look();
    std::size_t all = 0;
    while (t.c->readable() != 0) {
        all += receive(t.c, 10'000).size();
        look();
    }
    EXPECT_GE(all, 298'000u);
    t.w.pass(kSec);
    fill();
    EXPECT_LE(t.c->readable(), 30'000u);
    EXPECT_GE(t.c->readable(), 29'000u);
}

void closed_window_over_data(std::uint32_t acknowledged) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish(option::mss(1000)));
    EXPECT_EQ(send(t.c, std::string(3000, 'z')), 3000);
    (void)t.peer.take();
    const std::uint32_t base = t.peer.rcv;
    t.peer.window = 0;
    t.peer.rcv = base + acknowledged;
    t.peer.put(t.peer.segment(kAck));
    unsigned asked = 0;
    for (int minute = 0; minute < 120; minute++) {
        t.w.pass(60 * kSec);
        for ([[maybe_unused]] const Segment& s : t.peer.take()) {
            asked++;
            t.peer.put(t.peer.segment(kAck));
        }
        ASSERT_EQ(t.c->state(), State::established) << "after " << minute << " minutes";
    }
    EXPECT_GE(asked, 50u);
    EXPECT_LE(asked, 200u);
    t.peer.window = 60000;
    std::uint32_t have = acknowledged;
    for (int i = 0; i < 40 && have < 3000; i++) {
        t.peer.rcv = base + have;
        t.peer.put(t.peer.segment(kAck));
        t.w.pass(150 * kSec);
        for (const Segment& s : t.peer.take())
            if (s.seq - base <= have && s.end() - base > have) have = s.end() - base;
    }
    EXPECT_EQ(have, 3000u);
    // One that says nothing any more is given up.
    EXPECT_EQ(send(t.c, "more"), 4);
    t.peer.window = 0;
    t.peer.rcv = base + 3000;
    t.peer.put(t.peer.segment(kAck));
    t.w.pass(4000 * kSec);
    EXPECT_EQ(t.c->state(), State::close);
    EXPECT_EQ(t.c->take_error(), ETIMEDOUT);
}

// The peer takes its window back over what is under way, and goes on answering (the kernel's "receiver
// dastardly shrinks window"): that may last for hours.
TEST(TcpEstablished, ClosedWindowOverDataUnderWayIsNotTheEnd) {
    for (std::uint32_t acknowledged : {0u, 1000u})
        ASSERT_NO_FATAL_FAILURE(closed_window_over_data(acknowledged));
}

// ---- sequence numbers that grow old ----

// Nagle: a short segment waits for the short one before it. One of two gigabytes ago is not before it.
TEST(TcpEstablished, ShortSegmentLeavesAfterGigabytes) {
    verbs::wire::WireConfig config;
    config.mtu = 32'768;
    config.chunk_size = 65'536;
    World w(1, config);
    w.options.nodelay = false;
    w.options.receive_window = 4 << 20;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    ASSERT_EQ(send(c, "short"), 5);
    ASSERT_TRUE(w.until([&] { return receive(s) == "short"; }, 10 * kSec));
    // Whole segments only from here on.
    const std::uint32_t mss = c->mss();
    const std::string block(std::size_t{mss} * 8, 'B');
    std::uint64_t sent = 0, got = 0;
    while (got < (2ull << 30) + (1 << 20)) {
        if (c->unacked_bytes() == 0) {
            ASSERT_EQ(send(c, block), static_cast<ssize_t>(block.size()));
            sent += block.size();
        }
        w.poll();
        const iovec none{};
        while (true) {
            const ssize_t n = s->receive(&none, 0, 1 << 30, Connection::kDiscard);
            if (n <= 0) break;
            got += static_cast<std::uint64_t>(n);
        }
        if (c->unacked_bytes() != 0 && w.poll() == 0) w.pass(kMs);
    }
    ASSERT_EQ(sent, got);
    ASSERT_EQ(send(c, "end"), 3);
    w.poll();
    EXPECT_EQ(receive(s), "end");
}

// ---- loss and round trips ----

// Data that was sent again says nothing of the round trip, so its ACK must not end the backoff (RFC 6298
// section 5, Karn). Else a path that became slower than the timeout has each segment sent twice, for ever.
TEST(TcpEstablished, TimeoutLearnsThatThePathBecameSlow) {
    World w;
    w.options.timestamps = false;
    w.options.sack = false;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    auto ping = [&](int times) {
        for (int i = 0; i < times; i++) {
            ASSERT_EQ(send(c, "x"), 1);
            ASSERT_TRUE(w.until([&] { return c->unacked_bytes() == 0; }, 20 * kSec));
            (void)receive(s);
        }
    };
    ASSERT_NO_FATAL_FAILURE(ping(5));
    EXPECT_EQ(c->counters().timeouts, 0u);
    w.wire.set_faults(*w.a->device, {.delay_ns = 700 * kMs});
    ASSERT_NO_FATAL_FAILURE(ping(5));
    const std::uint64_t learning = c->counters().timeouts;
    EXPECT_GE(learning, 1u);
    EXPECT_LE(learning, 6u);
    ASSERT_NO_FATAL_FAILURE(ping(50));
    EXPECT_EQ(c->counters().timeouts, learning);
    Connection::Sample sample;
    ASSERT_TRUE(c->sample(sample));
    EXPECT_GE(sample.rtt, Msec(500));
}

// A path whose queue fills, and no loss: HyStart++ ends slow start (RFC 9406).
TEST(TcpEstablished, SlowStartEndsWhereDelayRises) {
    verbs::wire::WireConfig config;
    config.max_recv_wr = 16'384;  // whole windows arrive at once
    World w(1, config);
    w.options.receive_window = 16 << 20;
    w.options.congestion = CongestionAlgorithm::cubic;
    w.options.send_buffer = 16 << 20;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Stream up{.from = c, .to = s, .total = 48 << 20};
    std::uint32_t largest = 0;
    std::uint64_t last_arrival = 0;
    Connection::Sample sample;
    const bool done = w.until(
        [&] {
            up.send_some();
            up.receive_some();
            // 1 MB fits on the path; what is more waits in front of a link of 200 MB/s.
            const Counters n = c->counters();
            const std::uint64_t flight = n.bytes_out - n.acked;
            const std::uint64_t now = w.wire.now();
            last_arrival =
                std::max(last_arrival, now + 20 * kMs + (flight > 1'000'000 ? (flight - 1'000'000) * 5 : 0));
            w.wire.set_faults(*w.a->device, {.delay_ns = last_arrival - now});
            (void)c->sample(sample);
            largest = std::max(largest, sample.cwnd);
            return up.done() || up.failed();
        },
        60 * kSec);
    EXPECT_TRUE(done && !up.failed());
    EXPECT_EQ(c->counters().timeouts + c->counters().fast_recoveries, 0u);
    EXPECT_NE(sample.ssthresh, 0u) << "still in slow start, with a window of " << largest;
}

// ---- the path ----

// What ICMP said of the path is forgotten after ten minutes (net.ipv4.route.mtu_expires).
TEST(TcpEstablished, SmallPathMtuIsForgotten) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    const std::uint32_t full = c->mss();
    c->path_mtu(600);
    EXPECT_LT(c->mss(), 600u);
    auto most_of_a_write = [&] {
        Tap tap(w);
        EXPECT_EQ(send(c, std::string(20'000, 'p')), 20'000);
        EXPECT_TRUE(w.until([&] { return (void)receive(s), c->unacked_bytes() == 0; }, 10 * kSec));
        std::size_t most = 0;
        for (const auto& x : tap.seen) most = std::max(most, x.payload.size());
        return most;
    };
    EXPECT_LT(most_of_a_write(), 600u);
    w.pass(500 * kSec);
    EXPECT_LT(most_of_a_write(), 600u);
    c->path_mtu(600);  // said again: the ten minutes begin anew
    w.pass(500 * kSec);
    EXPECT_LT(most_of_a_write(), 600u);
    w.pass(101 * kSec);
    (void)most_of_a_write();
    EXPECT_EQ(most_of_a_write(), full);
    EXPECT_EQ(c->mss(), full);
}

// A router may fragment these, so each has a number of its own (RFC 6864).
TEST(TcpEstablished, EachPacketWithoutDfHasItsOwnNumber) {
    World w;
    w.options.path.dont_fragment = false;
    Connection *c = nullptr, *s = nullptr;
    std::vector<std::uint16_t> ids;
    w.wire.set_hook([&](const verbs::wire::WireDevice& from, std::vector<Frame>& frames) {
        if (&from != w.a->device) return;
        net::Ipv4Header ip;
        std::memcpy(&ip, frames.at(0).data() + sizeof(net::EthernetHeader), sizeof ip);
        EXPECT_EQ(ip.fragment, 0);
        ids.push_back(ip.id);
    });
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    EXPECT_EQ(send(c, std::string(50'000, 'i')), 50'000);
    EXPECT_TRUE(w.until([&] { return (void)receive(s), c->unacked_bytes() == 0; }, 10 * kSec));
    EXPECT_GE(ids.size(), 36u);
    EXPECT_EQ(std::set<std::uint16_t>(ids.begin(), ids.end()).size(), ids.size());
    w.wire.set_hook({});
}

// There is no room for the rule of an accepted connection: the peer hears of it.
TEST(TcpEstablished, ConnectionThatCannotBeServedIsReset) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 3100, *w.b, World::kPort);
    Segment s = peer.segment(kSyn);
    s.options = option::mss(1460);
    peer.put(s);
    peer.snd = s.end();
    auto answers = peer.take();
    ASSERT_EQ(answers.size(), 1u);
    peer.rcv = answers[0].end();
    // Somebody else has taken its place.
    auto taken = w.b->device->create_flow(
        nullptr, {IPPROTO_TCP, w.b->address, htons(World::kPort), w.a->address, htons(3100)}, 0);
    ASSERT_TRUE(taken);
    peer.put(peer.segment(kAck));
    answers = peer.take();
    w.b->device->destroy_flow(*taken);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_TRUE(answers[0].flags & kRst);
    EXPECT_EQ(answers[0].seq, peer.rcv);
    EXPECT_EQ(w.accept(), nullptr);
}

// As the kernel's: a program that reads the end mostly closes, and its FIN acknowledges the peer's.
TEST(TcpEstablished, TheAckOfAFinWaitsForTheOwnFin) {
    World w;
    Connection *c, *s;
    w.pair(c, s);
    w.poll();
    Tap tap(w);
    ASSERT_EQ(c->shutdown(SHUT_WR), 0);
    // No further poll: one that finds nothing sends the ACK.
    for (int i = 0; i < 10 && s->state() != State::close_wait; i++)
        for (auto* host : {&*w.a, &*w.b})
            if (s->state() != State::close_wait) host->ring->poll();
    ASSERT_EQ(s->state(), State::close_wait);
    EXPECT_EQ(tap.take().size(), 1u) << "the FIN alone";
    s->shutdown(SHUT_WR);
    w.poll();
    const std::vector<Tap::Seen> seen = tap.take();
    ASSERT_EQ(seen.size(), 2u) << "the other FIN, and its ACK at once";
    EXPECT_EQ(seen[0].flags & (kFin | kAck), kFin | kAck);
    EXPECT_EQ(seen[1].flags & (kFin | kAck), kAck);
    EXPECT_EQ(c->state(), State::time_wait);
    EXPECT_EQ(c->counters().retransmits, 0u);
}

TEST(TcpEstablished, AFinIsAcknowledgedInTime) {
    World w;
    Connection *c, *s;
    w.pair(c, s);
    ASSERT_EQ(c->shutdown(SHUT_WR), 0);
    EXPECT_TRUE(w.until([&] { return c->state() == State::fin_wait2; }));
    EXPECT_EQ(c->counters().retransmits, 0u);
}

}  // namespace
}  // namespace vma::tcp::test
