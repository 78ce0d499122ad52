// SPDX-License-Identifier: BSD-2-Clause
// Rules of the kernel's that RFCs leave open, or that go beyond them: how a RST looks, who may end a
// connection, what TIME_WAIT answers, when a SYN is repeated, what keeps a connection alive, when a writer
// stops. Each was measured on Linux 6.18 with a raw peer.
#include <gtest/gtest.h>

#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

const std::string kPlain = option::mss(1460) + option::sack_allowed() + option::scale(7);
const std::string kStamped = kPlain + option::stamps(100, 0);

std::vector<Segment> answers_to(Scripted& s, const Segment& segment) {
    (void)s.peer.take();
    s.peer.put(segment);
    s.w.settle();
    return s.peer.take();
}
Segment at(Segment s, std::uint32_t seq, std::uint32_t ack) {
    s.seq = seq;
    s.ack = ack;
    return s;
}
void expect_refusal(const std::vector<Segment>& heard, std::uint32_t seq) {
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kRst);
    EXPECT_EQ(heard[0].seq, seq);
    EXPECT_EQ(heard[0].ack, 0u);
    EXPECT_EQ(heard[0].window, 0u);
    EXPECT_EQ(heard[0].options, "");
}

// ---- SYN-SENT ----

struct SynSent : Scripted {
    SynSent() {
        start();
        auto first = peer.take();
        EXPECT_EQ(first.size(), 1u);
        iss = first.at(0).seq;
    }
    std::uint32_t iss = 0;
};

TEST(TcpSynSent, UnacceptableAckIsRefusedAndTheSynComesSoon) {
    SynSent s;
    expect_refusal(answers_to(s, at(s.peer.segment(kAck), 5, s.iss + 1000)), s.iss + 1000);
    s.w.pass(20 * kMs);
    auto heard = s.peer.take();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kSyn);
    EXPECT_EQ(heard[0].seq, s.iss);
    // A second one brings no SYN forward.
    expect_refusal(answers_to(s, at(s.peer.segment(kAck | kSyn), 5, s.iss)), s.iss);
    s.w.pass(500 * kMs);
    EXPECT_TRUE(s.peer.take().empty());
    EXPECT_EQ(s.c->state(), State::syn_sent);
}
TEST(TcpSynSent, ResetWithAWrongAckBringsTheSynForward) {
    SynSent s;
    EXPECT_TRUE(answers_to(s, at(s.peer.segment(kRst | kAck), 0, s.iss + 2)).empty());
    s.w.pass(20 * kMs);
    EXPECT_EQ(s.peer.take().size(), 1u);
    EXPECT_EQ(s.c->state(), State::syn_sent);
}
TEST(TcpSynSent, WithoutSynNothingIsSaid) {
    SynSent s;
    for (const int flags : {kAck | 0, kAck | kFin, int{kFin}, 0, int{kRst}, kAck | kPsh})
        EXPECT_TRUE(
            answers_to(s, at(s.peer.segment(static_cast<std::uint8_t>(flags)), 5, s.iss + 1)).empty());
    EXPECT_EQ(s.c->state(), State::syn_sent);
    s.w.pass(900 * kMs);
    EXPECT_TRUE(s.peer.take().empty());
}
TEST(TcpSynSent, EchoOfAStampThatWasNeverSentIsRefused) {
    for (const bool none : {false, true}) {
        SynSent s;
        Segment answer = at(s.peer.segment(kSyn | kAck), 5, s.iss + 1);
        answer.options = option::mss(1460) + option::stamps(100, none ? 0 : 12'345'678);
        auto heard = answers_to(s, answer);
        if (none) {
            EXPECT_EQ(s.c->state(), State::established);
            continue;
        }
        expect_refusal(heard, s.iss + 1);
        EXPECT_EQ(s.c->state(), State::syn_sent);
        s.w.pass(100 * kMs);
        EXPECT_TRUE(s.peer.take().empty());
    }
}

// When SYNs leave, in seconds, and when the program is told.
std::pair<std::vector<std::uint64_t>, std::uint64_t> syns(unsigned retries, unsigned linear,
                                                          Msec user_timeout = {}) {
    Scripted s;
    s.w.options.syn_retries = retries;
    s.w.options.syn_linear_timeouts = linear;
    s.w.options.user_timeout = user_timeout;
    std::vector<std::uint64_t> at;
    Tap tap(s.w);
    const std::uint64_t begin = s.w.wire.now();
    s.start();
    s.w.until([&] { return s.c->state() == State::close; });
    for (const auto& seen : tap.take()) at.push_back((seen.at - begin) / kSec);
    EXPECT_EQ(s.c->take_error(), ETIMEDOUT);
    return {at, (s.w.wire.now() - begin) / kSec};
}
TEST(TcpSynSent, SynsAreRepeatedLinearlyFirst) {
    using At = std::vector<std::uint64_t>;
    EXPECT_EQ(syns(6, 4), std::pair(At({0, 1, 2, 3, 4, 5, 7, 11, 19, 35, 67}), std::uint64_t{131}));
    EXPECT_EQ(syns(1, 4), std::pair(At({0, 1, 2}), std::uint64_t{3}));
    EXPECT_EQ(syns(2, 4), std::pair(At({0, 1, 2, 3, 4, 5}), std::uint64_t{7}));
    EXPECT_EQ(syns(3, 4), std::pair(At({0, 1, 2, 3, 4, 5, 7, 11}), std::uint64_t{19}));
    EXPECT_EQ(syns(4, 4), std::pair(At({0, 1, 2, 3, 4, 5, 7, 11, 19}), std::uint64_t{35}));
    EXPECT_EQ(syns(2, 2), std::pair(At({0, 1, 2, 3, 5}), std::uint64_t{9}));
    EXPECT_EQ(syns(4, 2), std::pair(At({0, 1, 2, 3, 5, 9, 17}), std::uint64_t{33}));
    EXPECT_EQ(syns(2, 0), std::pair(At({0, 1, 3}), std::uint64_t{7}));
    EXPECT_EQ(syns(6, 4, Msec(5000)), std::pair(At({0, 1, 2, 3, 4}), std::uint64_t{5}));
}

// ---- a RST of this end's ----

TEST(TcpReset, OfTheProgramCarriesATimeStamp) {
    for (const bool stamped : {true, false})
        for (const bool unread : {true, false}) {
            Scripted s;
            ASSERT_NO_FATAL_FAILURE(s.establish(stamped ? kStamped : kPlain));
            s.peer.say(kAck | kPsh, "data");
            (void)s.peer.hear();
            if (!unread) receive(s.c);
            s.w.close(s.c, !unread);
            auto heard = s.peer.take();
            ASSERT_EQ(heard.size(), 1u);
            EXPECT_EQ(heard[0].flags, kRst | kAck);
            EXPECT_EQ(heard[0].seq, s.peer.rcv);
            EXPECT_EQ(heard[0].ack, s.peer.snd);
            EXPECT_NE(heard[0].window, 0u);
            EXPECT_EQ(said(heard[0]).stamp.has_value(), stamped);
            if (stamped) {
                EXPECT_EQ(said(heard[0]).echo, s.peer.stamp);
            }
        }
}
TEST(TcpReset, InAnswerToDataHasTheNumberOfItsAck) {
    for (const bool orphan : {true, false}) {
        Scripted s;
        ASSERT_NO_FATAL_FAILURE(s.establish(kStamped));
        send(s.c, "unacknowledged");
        const std::uint32_t acked = s.peer.rcv;
        if (orphan)
            s.w.close(s.c);
        else
            s.c->shutdown(SHUT_RDWR);
        (void)s.peer.hear();
        expect_refusal(answers_to(s, at(s.peer.segment(kAck | kPsh, "late"), s.peer.snd, acked)), acked);
    }
}

// ---- a RST of the peer's ----

// The peer's FIN may not count for it yet.
TEST(TcpReset, WithTheNumberOfTheFinCounts) {
    struct Case {
        bool shut, acked;
        int error;
    };
    for (const Case& test :
         {Case{false, false, EPIPE}, Case{true, true, ECONNRESET}, Case{true, false, ECONNRESET}}) {
        Scripted s;
        ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
        const std::uint32_t acked = s.peer.rcv;
        if (test.shut && !test.acked) s.c->shutdown(SHUT_WR), (void)s.peer.hear();  // CLOSING
        s.peer.put(at(s.peer.segment(kAck | kFin), s.peer.snd, acked));
        s.peer.snd++;
        s.w.pass(200 * kMs);
        if (test.shut && test.acked) s.c->shutdown(SHUT_WR);  // LAST_ACK
        (void)s.peer.hear();
        EXPECT_TRUE(answers_to(s, at(s.peer.segment(kRst), s.peer.snd - 2, 0)).empty());
        EXPECT_NE(s.c->state(), State::close);
        EXPECT_TRUE(answers_to(s, at(s.peer.segment(kRst), s.peer.snd - 1, 0)).empty());
        EXPECT_EQ(s.c->state(), State::close);
        EXPECT_EQ(s.c->take_error(), test.error);
    }
}
TEST(TcpReset, BeforeTheLastByteOfDataDoesNotCount) {
    Scripted s;
    ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
    s.peer.say(kAck | kPsh, "ab");
    s.peer.put(at(s.peer.segment(kRst), s.peer.snd - 1, 0));
    EXPECT_EQ(s.c->state(), State::established);
}
TEST(TcpReset, BehindDataOutOfSequenceCounts) {
    for (const bool sack : {true, false}) {
        Scripted s;
        ASSERT_NO_FATAL_FAILURE(s.establish(sack ? kPlain : option::mss(1460)));
        for (const std::uint32_t offset : {10, 40, 25})
            s.peer.put(at(s.peer.segment(kAck | kPsh, "12345"), s.peer.snd + offset, s.peer.rcv));
        s.peer.put(at(s.peer.segment(kRst), s.peer.snd + 30, 0));
        s.peer.put(at(s.peer.segment(kRst), s.peer.snd + 40, 0));
        EXPECT_EQ(s.c->state(), State::established);
        s.peer.put(at(s.peer.segment(kRst), s.peer.snd + 45, 0));
        EXPECT_EQ(s.c->state() == State::close, sack);
    }
}

// ---- TIME_WAIT ----

struct TimeWait : Scripted {
    explicit TimeWait(const std::string& options = kPlain) {
        w.options.invalid_ratelimit = Msec(0);
        establish(options);
        c->shutdown(SHUT_WR);
        (void)peer.hear();
        peer.say(kAck | kFin);
        (void)peer.hear();
        EXPECT_EQ(c->state(), State::time_wait);
    }
    bool answered(const Segment& s) {
        auto heard = answers_to(*this, s);
        EXPECT_LE(heard.size(), 1u);
        if (heard.empty()) return false;
        EXPECT_EQ(heard[0].flags, kAck);
        EXPECT_EQ(heard[0].seq, peer.rcv);
        EXPECT_EQ(heard[0].ack, peer.snd);
        return true;
    }
};
TEST(TcpTimeWait, WhatIsNotTheLastAckIsAnswered) {
    TimeWait t;
    const std::uint32_t next = t.peer.snd, ack = t.peer.rcv;
    EXPECT_FALSE(t.answered(at(t.peer.segment(kAck), next, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck), next - 1, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck), next - 2, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck), next + 1000, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck), next + 1'000'000, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck | kPsh, "x"), next - 1, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck | kPsh, "x"), next, ack)));
    EXPECT_TRUE(t.answered(at(t.peer.segment(kAck | kFin), next - 1, ack)));
    EXPECT_FALSE(t.answered(at(t.peer.segment(kRst), next + 5, 0)));
    EXPECT_FALSE(t.answered(at(t.peer.segment(kRst), next - 1, 0)));
    EXPECT_EQ(t.c->state(), State::time_wait);
    EXPECT_FALSE(t.answered(at(t.peer.segment(kRst), next, 0)));
    EXPECT_EQ(t.c->state(), State::close);
}
TEST(TcpTimeWait, BareAcksAreAnsweredAtTheirRate) {
    TimeWait t;
    t.c->change([](Options& o) { o.invalid_ratelimit = Msec(500); });
    const Segment old = at(t.peer.segment(kAck), t.peer.snd - 1, t.peer.rcv);
    EXPECT_TRUE(t.answered(old));
    for (int i = 0; i < 10; i++) EXPECT_FALSE(t.answered(old));
    t.w.pass(600 * kMs);
    EXPECT_TRUE(t.answered(old));
}
TEST(TcpTimeWait, SegmentsMakeItLonger) {
    TimeWait t;
    t.w.pass(50 * kSec);
    (void)t.answered(at(t.peer.segment(kAck), t.peer.snd - 1, t.peer.rcv));
    t.w.pass(50 * kSec);
    EXPECT_EQ(t.c->state(), State::time_wait);
    t.w.pass(11 * kSec);
    EXPECT_EQ(t.c->state(), State::close);
}

// A SYN with an old number and a newer time stamp begins anew, as one with a newer number does.
TEST(TcpTimeWait, SynWithANewerStampBeginsAnew) {
    struct Case {
        std::int32_t seq, stamp;
        bool anew;
    };
    for (const Case& test : {Case{-100, 1, true}, Case{-100, 0, false}, Case{100, 0, true},
                             Case{100, -1, false}, Case{-100, -1, false}}) {
        World w;
        w.options.invalid_ratelimit = Msec(0);
        w.listen();
        Peer peer(w, *w.a, 3000, *w.b, World::kPort);
        ASSERT_NO_FATAL_FAILURE(peer.connect(kStamped));
        Connection* s = w.accept();
        ASSERT_NE(s, nullptr);
        s->shutdown(SHUT_WR);
        (void)peer.hear();
        peer.stamp++;
        peer.say(kAck | kFin);
        (void)peer.hear();
        ASSERT_EQ(s->state(), State::time_wait);
        Segment syn = peer.segment(kSyn);
        syn.seq += static_cast<std::uint32_t>(test.seq);
        syn.options =
            option::mss(1460) + option::stamps(peer.stamp + static_cast<std::uint32_t>(test.stamp), 0);
        peer.put(syn);
        auto heard = peer.take();
        ASSERT_EQ(heard.size(), 1u);
        EXPECT_EQ(heard[0].flags, test.anew ? kSyn | kAck : int{kAck}) << test.seq << " " << test.stamp;
    }
}

// ---- half-open ----

TEST(TcpHalfOpen, WindowIsThatOfTheSynAck) {
    World w;
    w.listen();
    Peer peer(w, *w.a, 3000, *w.b, World::kPort);
    Segment s = peer.segment(kSyn);
    s.options = kPlain;
    peer.put(s);
    peer.snd++;
    auto first = peer.hear();
    ASSERT_EQ(first.size(), 1u);
    peer.put(at(peer.segment(kAck | kPsh, "x"), peer.snd + 100'000, peer.rcv));
    auto heard = peer.take();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].flags, kAck);
    EXPECT_EQ(heard[0].ack, peer.snd);
    EXPECT_EQ(w.accept(), nullptr);
}

// ---- what shows that the peer is there ----

TEST(TcpAlive, RefusedSegmentsAreNoSignOfLife) {
    struct Case {
        std::int32_t seq, ack;
        std::string data;
        bool feeds;
    };
    for (const Case& test : {Case{-5, 0, "xx", false}, Case{1'000'000'000, 0, "", false},
                             Case{0, -50, "", false}, Case{0, 0, "", true}, Case{10, 0, "x", true}}) {
        Scripted s;
        s.w.options.keepalive = true;
        s.w.options.keep_idle = s.w.options.keep_interval = std::chrono::seconds(1);
        s.w.options.keep_count = 3;
        ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
        send(s.c, std::string(100, 'x'));
        (void)s.peer.hear();
        s.peer.say(kAck);
        for (int i = 0; i < 20; i++) {
            s.peer.put(at(s.peer.segment(kAck, test.data), s.peer.snd + static_cast<std::uint32_t>(test.seq),
                          s.peer.rcv + static_cast<std::uint32_t>(test.ack)));
            s.w.pass(250 * kMs);
        }
        EXPECT_EQ(s.c->state() == State::established, test.feeds) << test.seq << " " << test.ack;
    }
}

// RFC 5961 section 5.2: older than all that was ever acknowledged.
TEST(TcpAlive, AckOlderThanTheConnectionIsChallenged) {
    for (const std::uint32_t back : {1u, 50u, 101u, 102u, 150u, 70'000u}) {
        Scripted s;
        s.w.options.invalid_ratelimit = Msec(0);
        ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
        send(s.c, std::string(100, 'x'));
        (void)s.peer.hear();
        s.peer.say(kAck);
        auto heard = answers_to(s, at(s.peer.segment(kAck), s.peer.snd, s.peer.rcv - back));
        EXPECT_EQ(heard.size(), back > 101 ? 1u : 0u) << back;
        s.peer.put(at(s.peer.segment(kAck | kPsh, "data"), s.peer.snd, s.peer.rcv - back));
        EXPECT_EQ(receive(s.c), back > 101 ? "" : "data") << back;
        if (back <= 101) s.peer.snd += 4;
        (void)s.peer.hear();
        s.expect_alive();
    }
}

// ---- writes ----

// TCP_NOTSENT_LOWAT: bytes taken until there is no room, and bytes not sent of them.
std::pair<std::size_t, std::size_t> fill(std::uint32_t lowat, std::size_t size, std::uint16_t peer_window) {
    Scripted s;
    s.w.options.send_buffer = 1 << 20;
    s.w.options.notsent_lowat = lowat;
    s.peer.window = peer_window;
    s.establish(kStamped);
    s.peer.say(kAck);
    std::size_t taken = 0;
    const std::string text(size, 'x');
    for (ssize_t n; (n = send(s.c, text.substr(0, size))) > 0;) taken += static_cast<std::size_t>(n);
    s.w.settle();
    const std::uint32_t events = s.c->events();
    EXPECT_EQ(events & EPOLLOUT, 0u);
    const std::size_t unsent = s.c->unsent_bytes();
    // Room comes when less than half of the limit is left.
    for (int i = 0; i < 100 && s.c->unsent_bytes() != 0; i++) {
        (void)s.peer.hear();
        s.peer.say(kAck);
        const bool room = (s.c->events() & EPOLLOUT) != 0;
        EXPECT_EQ(room, 2 * s.c->unsent_bytes() < lowat) << s.c->unsent_bytes();
    }
    return {taken, unsent};
}
TEST(TcpNotsentLowat, StopsAWriterAtABuffer) {
    for (const std::size_t size : {100, 1000, 4096, 20'000, 70'000}) {
        // 22 segments are half of the largest window of the handshake.
        const auto [taken, unsent] = fill(16'384, size, 65'535);
        EXPECT_LT(taken, 100'000u) << size;
        EXPECT_GE(unsent, 16'384u) << size;
        EXPECT_LE(unsent, 16'384u + 65'160u) << size;
    }
    EXPECT_GT(fill(1, 1000, 65'535).second, 0u);
}

TEST(TcpUnsentLimit, GivesRoomByBuffers) {
    UnsentLimit limit;
    constexpr std::uint32_t kGoal = 31'856;
    std::uint32_t end = 5000, unsent = 0;
    auto write = [&](std::uint32_t most, std::uint32_t lowat = 16'384) {
        const std::uint32_t n = std::min(most, limit.room(lowat, kGoal, unsent, end));
        limit.wrote(kGoal, unsent, end, n);
        end += n;
        unsent += n;
        return n;
    };
    EXPECT_EQ(write(70'000), kGoal);
    unsent -= 14'480;  // sent
    EXPECT_EQ(write(70'000), 14'480u);
    EXPECT_EQ(write(70'000), 0u);
    unsent -= kGoal;  // the first buffer's end, and the second's beginning
    EXPECT_EQ(unsent, 0u);
    EXPECT_EQ(write(1000), 1000u);
    EXPECT_EQ(write(70'000), kGoal - 1000);
    EXPECT_EQ(write(70'000, kGoal + 1), kGoal);
    EXPECT_EQ(write(70'000, 2 * kGoal), 0u);
    EXPECT_EQ(limit.room(0xffff'fffe, kGoal, unsent, end), (1u << 30) / kGoal * kGoal + kGoal);
    EXPECT_EQ(limit.room(1, kGoal, 0, end), kGoal);
}

TEST(TcpRecord, EndsASegment) {
    Scripted s;
    ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
    s.peer.window = 0;
    s.peer.say(kAck);
    for (const char* text : {"one", "two"}) send(s.c, text, Connection::kRecord);
    send(s.c, "three");
    send(s.c, "four", Connection::kRecord);
    send(s.c, std::string(20'000, 'x'), Connection::kRecord);
    send(s.c, "five");
    s.peer.window = 60'000;
    (void)s.peer.take();
    s.peer.say(kAck);
    std::vector<std::string> heard;
    for (int i = 0; i < 50; i++) {
        for (const Segment& x : s.peer.hear()) {
            if (x.payload.empty()) continue;
            heard.push_back(x.payload);
        }
        s.peer.say(kAck);
    }
    ASSERT_GE(heard.size(), 5u);
    EXPECT_EQ(heard[0], "one");
    EXPECT_EQ(heard[1], "two");
    EXPECT_EQ(heard[2], "threefour");
    EXPECT_EQ(heard.back(), "five");
}

TEST(TcpMore, TheNextAckEndsTheWait) {
    for (const bool nagle : {false, true}) {
        Scripted s;
        s.w.options.nodelay = !nagle;
        ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
        send(s.c, "first");
        (void)s.peer.hear();
        send(s.c, "more", Connection::kMore);
        s.w.pass(50 * kMs);
        EXPECT_TRUE(s.peer.hear().empty());
        s.peer.say(kAck);
        auto heard = s.peer.hear();
        ASSERT_EQ(heard.size(), 1u);
        EXPECT_EQ(heard[0].payload, "more");
        s.peer.say(kAck);
        // Data with an old ACK ends nothing; nor does any ACK end TCP_CORK.
        send(s.c, "again", Connection::kMore);
        s.peer.say(kAck | kPsh, "data");
        for (const Segment& x : s.peer.hear()) EXPECT_EQ(x.payload, "");
        s.w.pass(300 * kMs);
        (void)s.peer.hear();
        s.c->change([](Options& o) { o.cork = true; });
        send(s.c, "corked");
        s.peer.say(kAck);
        for (const Segment& x : s.peer.hear()) EXPECT_EQ(x.payload, "");
    }
}

// ---- the path's MTU ----

// What ICMP says of a path: any value, if it quotes a segment under way.
TEST(TcpPathMtu, IcmpIsBelievedWithinBounds) {
    struct Case {
        std::uint32_t said, mss;
        bool may_be_cut;
    };
    for (const Case& test : {Case{0, 512, true}, Case{1, 512, true}, Case{68, 512, true},
                             Case{551, 512, true}, Case{552, 512, false}, Case{553, 513, false},
                             Case{576, 536, false}, Case{1000, 960, false}, Case{1499, 1459, false},
                             Case{1500, 1460, false}, Case{1501, 1460, false}, Case{65535, 1460, false}}) {
        for (const int where : {0, 4000, -1, 4001}) {
            Scripted s;
            ASSERT_NO_FATAL_FAILURE(s.establish(kPlain));
            const std::uint32_t una = s.peer.rcv;
            send(s.c, std::string(4000, 'x'));
            (void)s.peer.take();
            ring::IcmpError error{};
            error.error = EMSGSIZE;
            error.mtu = test.said;
            error.seq = una + static_cast<std::uint32_t>(where);
            s.c->icmp_error(*s.w.a->ring, error);
            const bool inside = where >= 0 && where <= 4000;
            EXPECT_EQ(s.c->mss(), inside ? test.mss : 1460u) << test.said;
            std::size_t again = 0;
            bool fragments = false;
            for (const Frame& f : s.w.b->device->take_kernel_frames())
                if (auto x = parse(f); x && !x->payload.empty()) {
                    again += x->seq - una < 2920;
                    fragments |= (f[20] & 0x40) == 0;
                }
            EXPECT_EQ(again != 0, inside && test.mss < 1460) << test.said;
            EXPECT_EQ(fragments, inside && test.may_be_cut) << test.said;
        }
    }
}

// ---- TCP_INFO ----

TEST(TcpInfo, TimesAndSizesAreTheKernels) {
    Scripted s;
    ASSERT_NO_FATAL_FAILURE(s.establish(option::mss(1460)));
    Info info;
    s.w.pass(300 * kMs);
    s.c->info(info);
    EXPECT_EQ(info.basic.tcpi_advmss, 1460u);
    EXPECT_EQ(info.basic.tcpi_last_data_recv, 300u);
    EXPECT_EQ(info.basic.tcpi_last_data_sent, 300u);
    EXPECT_EQ(info.busy_time, 0u);
    send(s.c, "data");
    s.w.pass(100 * kMs);
    s.c->info(info);
    EXPECT_EQ(info.busy_time, 100'000u);
    EXPECT_EQ(info.rwnd_limited, 0u);
    (void)s.peer.hear();
    s.peer.window = 0;
    s.peer.say(kAck);
    s.w.pass(100 * kMs);
    s.c->info(info);
    EXPECT_EQ(info.busy_time, 100'000u);
    send(s.c, "data");
    s.w.pass(50 * kMs);
    s.c->info(info);
    EXPECT_EQ(info.busy_time, 150'000u);
    EXPECT_EQ(info.rwnd_limited, 50'000u);
    EXPECT_EQ(info.sndbuf_limited, 0u);
}

}  // namespace
}  // namespace vma::tcp::test
