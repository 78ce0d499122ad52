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

// A connection without time stamps that sends segments of 1,000 bytes, and a peer that acknowledges as told.
// Segments are numbered from 0, in the order of their bytes.
struct Sender {
    explicit Sender(std::uint64_t rtt_ms = 20) : rtt(rtt_ms * kMs) {}

    void start() {
        ASSERT_NO_FATAL_FAILURE(t.start());
        t.w.pass(rtt);
        ASSERT_NO_FATAL_FAILURE(t.peer.answer(option::mss(kMss) + option::sack_allowed() + option::scale(7)));
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
        for (const Segment& s : t.peer.take())
            for (std::uint32_t done = 0; done < s.payload.size(); done += kMss)
                out.push_back(static_cast<int>((s.seq - base + done) / kMss));
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

    Scripted t;
    std::uint64_t rtt;
    std::uint32_t base = 0;
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

}  // namespace
}  // namespace vma::tcp::test
