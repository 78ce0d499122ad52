// SPDX-License-Identifier: BSD-2-Clause
// A peer that is no friend: resets, SYNs and data from somebody who guesses, old duplicates, options that
// make no sense, floods. The connection goes on unharmed, memory stays bounded, and what happened is counted.
#include <gtest/gtest.h>

#include "tcp_scripted.h"
#include "tests/support/attacker/model.h"

namespace vma::tcp::test {
namespace {

// ---- RST ----

TEST(TcpHostile, ResetInSynSentCountsOnlyWithTheRightAck) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    t.peer.rcv = t.peer.take().at(0).end();
    Segment s = t.peer.segment(kRst);
    t.peer.put(s);
    EXPECT_EQ(t.c->state(), State::syn_sent);
    s = t.peer.segment(kRst | kAck);
    s.ack += 1;
    t.peer.put(s);
    EXPECT_EQ(t.c->state(), State::syn_sent);
    EXPECT_EQ(t.c->counters().unacceptable, 2u);
    t.peer.put(t.peer.segment(kRst | kAck));
    EXPECT_EQ(t.c->state(), State::close);
    EXPECT_EQ(t.c->take_error(), ECONNREFUSED);
}

TEST(TcpHostile, AckOfNothingInSynSentIsAnsweredWithReset) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.start());
    t.peer.rcv = t.peer.take().at(0).end();
    Segment s = t.peer.segment(kSyn | kAck);
    s.ack += 1000;
    t.peer.put(s);
    EXPECT_EQ(t.c->state(), State::syn_sent);
    auto answers = t.peer.take();
    ASSERT_FALSE(answers.empty());
    EXPECT_TRUE(answers[0].flags & kRst);
    EXPECT_EQ(answers[0].seq, s.ack);
    ASSERT_NO_FATAL_FAILURE(t.peer.put(t.peer.segment(kSyn | kAck)));
    EXPECT_EQ(t.c->state(), State::established);
}

struct InState {
    State state;
    int error;
};
class Reset : public testing::TestWithParam<InState> {};

TEST_P(Reset, EndsTheConnectionAsInTheKernel) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const State state = GetParam().state;
    switch (state) {
        case State::established:
            break;
        case State::fin_wait1:
            t.c->shutdown(SHUT_WR);
            break;
        case State::fin_wait2:
        case State::time_wait:
            t.c->shutdown(SHUT_WR);
            (void)t.peer.hear();
            t.peer.say(kAck);
            if (state == State::time_wait) t.peer.say(kFin | kAck);
            break;
        case State::closing:
            t.c->shutdown(SHUT_WR);
            t.peer.say(kFin | kAck);
            break;
        case State::close_wait:
        case State::last_ack:
            t.peer.say(kFin | kAck);
            if (state == State::last_ack) t.c->shutdown(SHUT_WR);
            break;
        default:
            FAIL();
    }
    ASSERT_EQ(t.c->state(), state);
    (void)t.peer.take();
    // One byte beside the right number: an answer, and nothing else.
    Segment s = t.peer.segment(kRst);
    s.seq += 1;
    t.peer.put(s);
    EXPECT_EQ(t.c->state(), state);
    if (state != State::time_wait) {
        EXPECT_EQ(t.peer.take().size(), 1u);
    }
    s.seq -= 1;
    t.peer.put(s);
    EXPECT_EQ(t.c->state(), State::close);
    EXPECT_EQ(t.c->take_error(), GetParam().error);
    EXPECT_TRUE(t.c->events() & EPOLLHUP);
    EXPECT_TRUE(t.peer.take().empty());
}

INSTANTIATE_TEST_SUITE_P(
    TcpHostile, Reset,
    testing::Values(InState{State::established, ECONNRESET}, InState{State::fin_wait1, ECONNRESET},
                    InState{State::fin_wait2, ECONNRESET}, InState{State::closing, ECONNRESET},
                    InState{State::close_wait, EPIPE}, InState{State::last_ack, ECONNRESET},
                    InState{State::time_wait, 0}),
    [](const auto& info) { return "state" + std::to_string(static_cast<int>(info.param.state)); });

// ---- injection ----

TEST(TcpHostile, GuessesDoNoHarm) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
    const std::uint32_t window = 1 << 20;
    struct Case {
        const char* what;
        std::uint8_t flags;
        std::uint32_t seq_off, ack_off;
        std::size_t data;
        bool answered;
    } cases[] = {
        {"RST before the window", kRst, 0u - 1000, 0, 0, false},
        {"RST behind the window", kRst, window + 1000, 0, 0, false},
        {"RST far away", kRst | kAck, 0x80000000u, 0, 0, false},
        {"RST in the window", kRst, 5000, 0, 0, true},
        {"SYN in the window", kSyn, 100, 0, 0, true},
        {"SYN at its edge", kSyn, 0, 0, 0, true},
        {"SYN behind the window", kSyn, window + 5000, 0, 0, true},
        {"SYN-ACK as in the handshake", kSyn | kAck, 0u - 1, 0, 0, true},
        {"data before the window", kAck, 0u - 100, 0, 50, true},
        {"data behind the window", kAck, window + 5, 0, 50, true},
        {"FIN behind the window", kFin | kAck, window + 5, 0, 0, true},
        {"ACK of what was not sent", kAck, 0, 5000, 10, true},
        {"ACK from long ago", kAck, 0, 0x70000000u, 10, true},
        {"no ACK at all", kPsh, 0, 0, 10, false},
        {"nothing set", 0, 0, 0, 10, false},
        {"everything set", 0xff, window + 5, 0, 10, false},
    };
    for (const Case& x : cases) {
        SCOPED_TRACE(x.what);
        (void)t.peer.hear();
        Segment s = t.peer.segment(x.flags, std::string(x.data, 'X'));
        s.seq += x.seq_off;
        s.ack += x.ack_off;
        t.peer.put(s);
        EXPECT_EQ(receive_result(t.c), -EAGAIN);
        auto answers = t.peer.take();
        EXPECT_EQ(answers.size(), x.answered ? 1u : 0u);
        for (const Segment& a : answers) {
            EXPECT_EQ(a.flags, kAck);
            EXPECT_EQ(a.ack, t.peer.snd);
            EXPECT_EQ(a.seq, t.peer.rcv);
        }
        ASSERT_NO_FATAL_FAILURE(t.expect_alive());
        t.w.pass(kSec);
    }
    const Counters n = t.c->counters();
    EXPECT_GE(n.challenge_acks, 6u);
    EXPECT_GE(n.unacceptable, 9u);
}

// As the kernel's net.ipv4.tcp_invalid_ratelimit: one in half a second.
TEST(TcpHostile, ChallengeAcksAreLimited) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    (void)t.peer.take();
    const auto lie = [&](std::uint8_t flags, std::uint32_t offset) {
        Segment s = t.peer.segment(flags);
        s.seq += offset;
        t.peer.put(s);
    };
    for (unsigned i = 0; i < 1000; i++) lie(kRst, 1 + i);
    for (unsigned i = 0; i < 1000; i++) lie(kAck, 0u - 1 - i);
    EXPECT_EQ(t.peer.take().size(), 1u);
    t.w.pass(kSec / 2);
    lie(kSyn, 1);
    lie(kAck, 0u - 1);
    EXPECT_EQ(t.peer.take().size(), 1u);
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

// Data before the window comes again when an ACK got lost, so each has an answer.
TEST(TcpHostile, OldDataIsAcknowledgedEachTime) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
    for (int i = 0; i < 5; i++) {
        (void)t.peer.take();
        Segment s = t.peer.segment(kAck | kPsh, "pong");
        s.seq -= 4;
        t.peer.put(s);
        t.peer.stamp += static_cast<std::uint32_t>(i % 2);
        EXPECT_EQ(t.peer.take().size(), 1u) << i;
    }
}

// Each end takes what the other says for a lie. Their ACKs must not go on by themselves.
TEST(TcpHostile, EndsThatDisagreeAreQuiet) {
    World w;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    w.pass(kSec);
    unsigned frames = 0;
    w.wire.set_hook([&](const verbs::wire::WireDevice& from, std::vector<Frame>& all) {
        auto segment = parse(all.at(0));
        if (!segment) return;
        all.clear();
        if (++frames > 2000) return;
        segment->seq -= 1u << 20;
        const Host& sender = &from == w.a->device ? *w.a : *w.b;
        all.push_back(build(*segment, from.attr().mac, sender.peer->device->attr().mac));
    });
    EXPECT_EQ(send(c, "anything"), 8);
    w.pass(10 * kSec);
    // The data some eight times, an ACK for each, and those of every half a second at most.
    EXPECT_LE(frames, 60u);
    EXPECT_LE(c->counters().challenge_acks, 21u);
    EXPECT_LE(s->counters().challenge_acks, 21u);
    w.wire.set_hook({});
}

// Nobody reads at either end. An ACK at the edge of a closed window is in order, and no reason for another.
TEST(TcpHostile, TwoClosedWindowsAreQuiet) {
    World w;
    w.options.receive_window = 8192;
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
    Tap tap(w);
    tap.record = false;
    unsigned frames = 0;
    tap.drop = [&](const Tap::Seen&) { return ++frames > 2000; };
    EXPECT_EQ(send(c, std::string(30'000, 'c')), 30'000);
    EXPECT_EQ(send(s, std::string(30'000, 's')), 30'000);
    w.pass(kSec);
    frames = 0;
    w.pass(10 * kSec);
    EXPECT_LE(frames, 40u);  // probes, and some answers
    tap.drop = {};
    std::size_t there = 0, here = 0;
    EXPECT_TRUE(w.until([&] {
        there += receive(s).size();
        here += receive(c).size();
        return there == 30'000 && here == 30'000;
    }));
}

TEST(TcpHostile, OldTimestampsAreOldSegments) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.stamp = 1000;
    t.peer.say(kAck | kPsh, "new");
    EXPECT_EQ(receive(t.c), "new");
    (void)t.peer.hear();
    t.peer.stamp = 999;
    t.peer.put(t.peer.segment(kAck | kPsh, "old"));
    EXPECT_EQ(receive_result(t.c), -EAGAIN);
    EXPECT_EQ(t.c->counters().paws, 1u);
    EXPECT_EQ(t.peer.take().size(), 1u);
    // A reset has no valid timestamp to show, and a stamp from the future is fine.
    t.peer.stamp = 5000;
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

TEST(TcpHostile, TimestampOfASegmentBeyondTheWindowIsNotRemembered) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.stamp = 1000;
    t.peer.say(kAck | kPsh, "x");
    EXPECT_EQ(receive(t.c), "x");
    // A guesser cannot make the real peer look old.
    Segment s = t.peer.segment(kAck, "guess");
    s.seq += 3 << 20;
    s.options = option::stamps(0x70000000, t.peer.echo);
    t.peer.put(s);
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

// RFC 7323 section 4.3: a segment behind a gap does not change what is echoed.
TEST(TcpHostile, EchoedTimestampIsThatOfTheSegmentThatTheLastAckLiesIn) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const auto echoed = [&](std::uint32_t stamp, const Segment& s) {
        Segment sent = s;
        sent.options = option::stamps(stamp, t.peer.echo);
        t.peer.put(sent);
        const auto answers = t.peer.take();
        return answers.empty() ? std::nullopt : said(answers.back()).echo;
    };
    Segment first = t.peer.segment(kAck | kPsh, "first"), second = first, third = first;
    second.seq += 5, third.seq += 10;
    EXPECT_EQ(echoed(1000, third), 100u);
    EXPECT_EQ(echoed(1001, first), 1001u);
    EXPECT_EQ(echoed(1002, second), 1002u);
}

// Every frame of the connection's past comes again, in both directions.
TEST(TcpHostile, OldDuplicatesChangeNothing) {
    for (bool stamps : {true, false}) {
        World w;
        w.options.timestamps = stamps;
        Connection *c = nullptr, *s = nullptr;
        Tap tap(w);
        tap.keep = true;
        ASSERT_NO_FATAL_FAILURE(w.pair(c, s));
        Stream up{.from = c, .to = s, .total = 60'000, .seed = 1},
            down{.from = s, .to = c, .total = 60'000, .seed = 2};
        auto both = [&] {
            for (Stream* x : {&up, &down}) x->send_some(), x->receive_some();
            return (up.done() && down.done()) || up.failed() || down.failed();
        };
        ASSERT_TRUE(w.until(both, 60 * kSec));
        w.pass(kSec);
        auto old = std::move(tap.passed);
        tap.keep = false;
        for (const Frame& f : old) {
            auto segment = parse(f);
            ASSERT_TRUE(segment);
            (segment->from == w.a->address ? w.a : w.b)->device->kernel_send(f);
        }
        w.poll();
        EXPECT_EQ(c->state(), State::established);
        EXPECT_EQ(s->state(), State::established);
        up.total = down.total = 120'000;
        EXPECT_TRUE(w.until(both, 60 * kSec));
        EXPECT_FALSE(up.failed() || down.failed());
        EXPECT_EQ(w.listener->accept(), nullptr);
    }
}

// ---- options ----

TEST(TcpHostile, MalformedOptionsOfASynDoNotKeepItFromWorking) {
    World w;
    w.listen();
    std::uint16_t port = 3000;
    for (const std::string& o : attacker::malformed_options()) {
        SCOPED_TRACE(testing::PrintToString(o));
        Peer peer(w, *w.a, ++port, *w.b, World::kPort);
        peer.connect(o);
        if (HasFatalFailure()) return;
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr);
        EXPECT_LE(s->mss(), 1460u);
        EXPECT_GE(s->mss(), 32u);
        peer.say(kAck | kPsh, "hello");
        EXPECT_EQ(receive(s), "hello");
        EXPECT_EQ(send(s, "hi"), 2);
        std::string all;
        for (const Segment& x : peer.hear()) all += x.payload;
        EXPECT_EQ(all, "hi");
        w.close(s, true);
    }
}

TEST(TcpHostile, MalformedOptionsOfASynAckDoNotEither) {
    for (const std::string& o : attacker::malformed_options()) {
        SCOPED_TRACE(testing::PrintToString(o));
        Scripted t;
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.peer.rcv = t.peer.take().at(0).end();
        Segment s = t.peer.segment(kSyn | kAck);
        s.options = o;
        t.peer.put(s);
        t.peer.snd = s.end();
        ASSERT_EQ(t.c->state(), State::established);
        EXPECT_LE(t.c->mss(), 1460u);
        ASSERT_NO_FATAL_FAILURE(t.expect_alive());
    }
}

TEST(TcpHostile, MalformedOptionsOnAConnection) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    for (const std::string& o : attacker::malformed_options()) {
        SCOPED_TRACE(testing::PrintToString(o));
        for (const std::string& before : {std::string(), option::stamps(t.peer.stamp, t.peer.echo)}) {
            Segment s = t.peer.segment(kAck | kPsh, "data");
            s.options = (before + o).substr(0, 40);
            t.peer.put(s);
            // Whether a segment with a nonsensical time stamp counts is the receiver's choice; then the peer
            // sends it again.
            const std::string got = receive(t.c);
            EXPECT_TRUE(got == "data" || got.empty());
            if (got.empty()) {
                t.peer.put(t.peer.segment(kAck | kPsh, "data"));
                EXPECT_EQ(receive(t.c), "data");
            }
            t.peer.snd += 4;
        }
        ASSERT_NO_FATAL_FAILURE(t.expect_alive());
    }
    EXPECT_GT(t.c->counters().bad_options, 0u);
}

// ---- windows ----

TEST(TcpHostile, DataBeyondTheWindowIsCutOff) {
    for (bool in_order : {true, false}) {
        Scripted t;
        t.w.options.receive_window = 4096;
        ASSERT_NO_FATAL_FAILURE(t.establish());
        std::string expected;
        const std::string block(1400, 'd');
        if (!in_order) {
            Segment s = t.peer.segment(kAck, std::string(1400, 'e'));
            s.seq += 1400;
            for (int i = 0; i < 8; i++) t.peer.put(s), s.seq += 1400;
            s.flags |= kFin;
            t.peer.put(s);
        }
        for (int i = 0; i < 10; i++) t.peer.say(kAck, block);
        EXPECT_LE(t.c->readable(), 4096u);
        EXPECT_GE(t.c->readable(), 1400u);
        EXPECT_EQ(t.c->state(), State::established);
        const std::uint32_t got = static_cast<std::uint32_t>(t.c->readable());
        (void)receive(t.c);
        // Goes on from there.
        t.peer.snd = t.peer.snd - 14000 + got;
        ASSERT_NO_FATAL_FAILURE(t.expect_alive());
    }
}

TEST(TcpHostile, ShrinkingWindowIsSurvived) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish(option::mss(1000) + option::sack_allowed()));
    t.peer.window = 20000;
    t.peer.say(kAck);
    const std::string data(30000, 'q');
    EXPECT_EQ(send(t.c, data), 30000);
    auto all = t.peer.take();
    ASSERT_GE(all.size(), 5u);
    const std::uint32_t base = t.peer.rcv;
    // Everything up to 5000 arrived, and now the window ends right there: the right edge moved back.
    t.peer.rcv = base + 5000;
    t.peer.window = 0;
    t.peer.say(kAck);
    (void)t.peer.take();
    t.w.pass(20 * kSec);
    EXPECT_EQ(t.c->state(), State::established);
    // Meanwhile it asked, but not too often.
    const auto asked = t.peer.take();
    EXPECT_GE(asked.size(), 2u);
    EXPECT_LE(asked.size(), 40u);
    // The window opens; all the rest arrives.
    t.peer.window = 65535;
    std::string got(30000, '\0');
    std::uint32_t have = 5000;
    std::vector<Segment> later = asked;
    t.peer.say(kAck);
    for (int i = 0; i < 200 && have < 30000; i++) {
        t.w.pass(500 * kMs);
        for (Segment& s : t.peer.take()) later.push_back(s);
        bool more = true;
        while (more) {
            more = false;
            for (const Segment& s : later)
                if (s.seq - base <= have && s.end() - base > have && !s.payload.empty())
                    have = s.end() - base, more = true;
        }
        t.peer.rcv = base + have;
        t.peer.say(kAck);
    }
    EXPECT_EQ(have, 30000u);
}

// ---- memory ----

TEST(TcpHostile, TinySegmentsTakeLittleMemory) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const auto before = memory_used();
    for (int i = 0; i < 10000; i++) {
        t.peer.say(kAck | kPsh, std::string(1, static_cast<char>(i)));
        if (i % 256 == 0) (void)t.peer.take();
    }
    EXPECT_EQ(t.c->readable(), 10000u);
    EXPECT_LT(memory_used() - before, 200'000);
    const ring::BufferCounts n = t.w.a->ring->buffer_counts();
    EXPECT_LT(n.rx_total - n.rx_posted - n.rx_free, 600u);
    const std::string got = receive(t.c);
    ASSERT_EQ(got.size(), 10000u);
    for (std::size_t i = 0; i < got.size(); i++) ASSERT_EQ(got[i], static_cast<char>(i));
}

// Single bytes with holes between them: nothing may be delivered, and yet the ring has to serve others.
TEST(TcpHostile, TinySegmentsOutOfOrder) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.w.listen();
    const auto before = memory_used();
    for (int i = 0; i < 20000; i++) {
        Segment s = t.peer.segment(kAck, "z");
        s.seq += 1 + 2 * static_cast<std::uint32_t>(i);
        t.peer.put(s);
        if (i % 256 == 0) (void)t.peer.take();
    }
    EXPECT_EQ(t.c->readable(), 0u);
    EXPECT_LT(memory_used() - before, 4'000'000);
    Connection *c = nullptr, *s = nullptr;
    ASSERT_NO_FATAL_FAILURE(t.w.pair(c, s));
    Stream down{.from = s, .to = c, .total = 500'000};
    EXPECT_TRUE(t.w.until([&] { return down.send_some(), down.receive_some(), down.done() || down.failed(); },
                          60 * kSec));
    EXPECT_FALSE(down.failed());
    EXPECT_EQ(t.c->state(), State::established);
}

TEST(TcpHostile, TinyWritesTakeBoundedMemory) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const auto before = memory_used();
    std::size_t sent = 0;
    for (int i = 0; i < 200'000; i++) {
        if (send(t.c, "w") == 1) sent++;
        if (i % 256 == 0) (void)t.peer.take();
    }
    EXPECT_GE(sent, 100'000u);
    EXPECT_LT(memory_used() - before, 16'000'000);
    EXPECT_EQ(t.c->unacked_bytes(), sent);
}

TEST(TcpHostile, SynFlood) {
    World w;
    w.listen(128);
    verbs::wire::Random random(5);
    std::size_t most = 0;
    unsigned connected = 0;
    for (int i = 0; i < 100'000; i++) {
        Segment s;
        s.from = htonl(0xc6130000u | static_cast<std::uint32_t>(random.below(65536)));
        s.to = w.b->address;
        s.from_port = static_cast<std::uint16_t>(1024 + random.below(60000));
        s.to_port = World::kPort;
        s.seq = static_cast<std::uint32_t>(random.next());
        s.flags = kSyn;
        w.a->device->kernel_send(build(s, w.a->device->attr().mac, w.b->device->attr().mac));
        if (i % 64 == 0) {
            w.poll();
            (void)w.a->device->take_kernel_frames();
            most = std::max(most, Connection::count());
        }
        if (i % 10'000 == 5'000) {
            // Somebody real, in the middle of it.
            Connection *c = nullptr, *peer = nullptr;
            w.pair(c, peer);
            ASSERT_FALSE(HasFatalFailure());
            EXPECT_EQ(send(c, "x"), 1);
            w.poll();
            EXPECT_EQ(receive(peer), "x");
            w.close(c, true);
            w.poll();
            w.close(peer);
            connected++;
        }
    }
    EXPECT_EQ(connected, 10u);
    EXPECT_LE(most, 20u);
    const Listener::Counters n = w.listener->counters();
    EXPECT_GT(n.syns, 99'000u);  // a few came from the same port twice
    EXPECT_GT(n.cookies_sent, 90'000u);
    // All of it goes by itself.
    w.pass(200 * kSec);
    EXPECT_EQ(Connection::count(), 0u);
}

TEST(TcpHostile, SegmentsOfNoConnectionAreReset) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 4000, *w.b, World::kPort);
    peer.rcv = 777;
    peer.put(peer.segment(kAck, "hello"));
    auto answers = peer.take();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].flags & (kRst | kSyn), kRst);
    EXPECT_EQ(answers[0].seq, 777u);
    for (const int flags : {int{kRst}, kRst | kAck, 0, int{kFin}}) {
        peer.put(peer.segment(static_cast<std::uint8_t>(flags)));
        EXPECT_TRUE(peer.take().empty());
    }
    EXPECT_EQ(w.listener->accept(), nullptr);
    EXPECT_EQ(Connection::count(), 0u);
}

}  // namespace
}  // namespace vma::tcp::test
