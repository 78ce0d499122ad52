// SPDX-License-Identifier: BSD-2-Clause
// Loss recovery of a connection, packet by packet: what leaves when, after what a scripted peer says. The
// times and numbers are those of the kernel in the same exchange.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

constexpr std::uint32_t kMss = 1000;

using Blocks = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// A connection that sends segments of 1,000 bytes, and a peer that acknowledges as told. Segments are
// numbered from 0, in the order of their bytes.
struct Sender {
    explicit Sender(std::uint64_t rtt_ms = 20) : rtt(rtt_ms * kMs) {}

    void start(bool stamps = false) {
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.w.pass(rtt);
        std::string options =
            option::mss(stamps ? kMss + kTimestampBytes : kMss) + option::sack_allowed() + option::scale(7);
        if (stamps) options += option::stamps(100, t.peer.echo);
        ASSERT_NO_FATAL_FAILURE(t.peer.answer(options));
        base = t.peer.rcv;
        t.peer.window = 8192;  // times 128
    }
    // The program writes `count` segments. Returns what leaves.
    std::vector<int> write(int count) {
        const std::string data(static_cast<std::size_t>(count) * kMss, 'd');
        EXPECT_EQ(send(t.c, data), static_cast<ssize_t>(data.size()));
        return sent();
    }
    std::uint32_t at(int n) const { return base + static_cast<std::uint32_t>(n) * kMss; }
    // Numbers of the segments that have left since the last time.
    std::vector<int> sent() {
        std::vector<int> out;
        for (const Segment& s : t.peer.take()) {
            if (auto stamp = said(s).stamp) stamp_sent = *stamp;
            for (std::uint32_t done = 0; done < s.payload.size(); done += kMss)
                out.push_back(static_cast<int>((s.seq - base + done) / kMss));
        }
        return out;
    }
    // An ACK up to segment `next`, with reports [from, to) of segments. Returns what leaves at once.
    std::vector<int> ack(int next, const std::vector<std::pair<int, int>>& blocks = {}) {
        t.peer.rcv = at(next);
        Segment s = t.peer.segment(kAck);
        Blocks said;
        for (auto [from, to] : blocks) said.emplace_back(at(from), at(to));
        if (!said.empty()) s.options += option::sack(said);
        t.peer.put(s);
        return sent();
    }
    std::vector<int> pass(std::uint64_t ms) {
        t.w.pass(ms * kMs);
        return sent();
    }

    // The window in segments.
    std::uint32_t window() {
        Connection::Sample sample;
        EXPECT_TRUE(t.c->sample(sample));
        return sample.cwnd / kMss;
    }

    Scripted t;
    std::uint64_t rtt;
    std::uint32_t base = 0;
    std::uint32_t stamp_sent = 0;  // of the last segment that has left
};

std::vector<int> range(int from, int to) {
    std::vector<int> out;
    for (int i = from; i < to; i++) out.push_back(i);
    return out;
}

// A peer that does not acknowledge what it has reported may have thrown it away. That makes the sender wait
// for a while and then repeat one segment; it does not make it send a window at once.
TEST(TcpRecovery, AnAckThatTakesBackAReportIsNoOrderToSendAWindow) {
    Sender s;
    ASSERT_NO_FATAL_FAILURE(s.start());
    EXPECT_EQ(s.write(10), range(0, 10));
    s.pass(20);
    s.ack(0, {{1, 3}});
    // The hole is filled, but the ACK ends at the second segment, which was reported.
    EXPECT_EQ(s.ack(1), range(10, 10)) << "nothing at once";
    EXPECT_EQ(s.pass(8), range(0, 0));
    EXPECT_EQ(s.pass(4), range(1, 2)) << "after half a round trip, or 10 ms";
    EXPECT_GE(s.t.c->counters().timeouts, 1u);
    // An ACK of all ends it.
    s.pass(5);
    s.ack(10);
    EXPECT_EQ(s.write(2), range(10, 12));
}

// Ten segments, of which the peer is silent: a probe with new data, then the timeout repeats the first.
void run_into_timeout(Sender& s) {
    ASSERT_NO_FATAL_FAILURE(s.start());
    ASSERT_EQ(s.write(14), range(0, 10));
    ASSERT_EQ(s.pass(50), range(10, 11)) << "the probe of the tail";
    ASSERT_EQ(s.pass(250), range(0, 1));
    ASSERT_EQ(s.t.c->counters().timeouts, 1u);
    ASSERT_LT(s.window(), 3u);
}

// F-RTO: the first ACK after a timeout covers what was sent once. So the network was slow, and lost nothing.
TEST(TcpRecovery, ATimeoutThatWasWrongIsUndone) {
    Sender s;
    ASSERT_NO_FATAL_FAILURE(run_into_timeout(s));
    EXPECT_EQ(s.ack(4), range(11, 14)) << "new data, by the window of before";
    EXPECT_GE(s.window(), 10u);
    EXPECT_EQ(s.ack(14), range(0, 0));
    EXPECT_EQ(s.pass(500), range(0, 0)) << "nothing is repeated";
    EXPECT_EQ(s.t.c->counters().retransmits, 1u);
}

// The ACK covers no more than what was repeated. New data then shows whether the rest is lost.
TEST(TcpRecovery, NewDataShowsThatATimeoutWasRight) {
    Sender s;
    ASSERT_NO_FATAL_FAILURE(run_into_timeout(s));
    const std::vector<int> fresh = s.ack(1);
    ASSERT_FALSE(fresh.empty());
    EXPECT_EQ(fresh[0], 11) << "new data first, and nothing of what may be under way";
    const std::vector<int> again = s.ack(1, {{11, 12}});
    ASSERT_FALSE(again.empty());
    EXPECT_EQ(again[0], 1) << "it has arrived, and what was sent before it has not";
    EXPECT_LT(s.window(), 10u);
}

// New data is acknowledged together with what was taken for lost: it was under way.
TEST(TcpRecovery, NewDataShowsThatATimeoutWasWrong) {
    Sender s;
    ASSERT_NO_FATAL_FAILURE(run_into_timeout(s));
    ASSERT_FALSE(s.ack(1).empty());
    const std::vector<int> more = s.ack(6);
    for (int n : more) EXPECT_GE(n, 11) << "nothing is repeated";
    EXPECT_GE(s.window(), 10u);
    s.ack(14);
    EXPECT_EQ(s.t.c->counters().retransmits, 1u);
}

// Eifel (RFC 4015): the ACK of a repaired hole echoes the stamp of the first copy, so the repair was
// needless. With the stamp of the second one it was not.
TEST(TcpRecovery, TheStampOfTheFirstCopyUndoesARecovery) {
    for (const bool first : {true, false}) {
        SCOPED_TRACE(first);
        Sender s;
        ASSERT_NO_FATAL_FAILURE(s.start(true));
        ASSERT_EQ(s.write(5), range(0, 5));
        const std::uint32_t original = s.stamp_sent;
        s.pass(20);
        s.t.peer.echo = original;
        ASSERT_EQ(s.ack(0, {{1, 5}}), range(0, 1));
        ASSERT_GT(s.stamp_sent, original);
        ASSERT_EQ(s.t.c->counters().fast_recoveries, 1u);
        s.pass(10);
        s.t.peer.echo = first ? original : s.stamp_sent;
        s.ack(5);
        if (first)
            EXPECT_GE(s.window(), 10u);
        else
            EXPECT_LE(s.window(), 7u);
    }
}

// D-SACK: all that was repeated has come twice.
TEST(TcpRecovery, AReportOfTheSecondCopyUndoesARecovery) {
    Sender s;
    ASSERT_NO_FATAL_FAILURE(s.start());
    ASSERT_EQ(s.write(5), range(0, 5));
    s.pass(20);
    ASSERT_EQ(s.ack(0, {{1, 5}}), range(0, 1));
    s.pass(10);
    s.ack(5);
    EXPECT_LE(s.window(), 7u);
    s.ack(5, {{0, 1}});
    EXPECT_GE(s.window(), 10u);
}

// RACK: what was overtaken by one segment is lost after a quarter of a round trip, by the timer, as no ACK
// comes.
TEST(TcpRecovery, TheReorderingTimerRepeatsWhatStaysAway) {
    Sender s(80);
    ASSERT_NO_FATAL_FAILURE(s.start());
    ASSERT_EQ(s.write(4), range(0, 4));
    s.pass(80);
    EXPECT_EQ(s.ack(0, {{1, 2}}), range(0, 0)) << "it may have been overtaken";
    EXPECT_EQ(s.pass(15), range(0, 0));
    EXPECT_EQ(s.pass(15), range(0, 1));
    EXPECT_EQ(s.t.c->counters().fast_recoveries, 1u);
    EXPECT_EQ(s.t.c->counters().timeouts, 0u);
}

// It comes before that: nothing is repeated.
TEST(TcpRecovery, WhatWasOvertakenComesInTime) {
    Sender s(80);
    ASSERT_NO_FATAL_FAILURE(s.start());
    ASSERT_EQ(s.write(4), range(0, 4));
    s.pass(80);
    s.ack(0, {{1, 2}});
    s.pass(10);
    s.ack(4);
    EXPECT_EQ(s.pass(400), range(0, 0));
    EXPECT_EQ(s.t.c->counters().retransmits, 0u);
    EXPECT_EQ(s.t.c->counters().fast_recoveries, 0u);
}

}  // namespace
}  // namespace vma::tcp::test
