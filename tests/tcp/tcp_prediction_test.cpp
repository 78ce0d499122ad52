// SPDX-License-Identifier: BSD-2-Clause
// Header prediction: a segment that is the expected one does not enter lwIP. What it changes is what lwIP
// would have changed. A segment with its options in an unusual order says the same and goes through lwIP, so
// both ways can be compared.
#include <gtest/gtest.h>

#include <sstream>

#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

// The same, in an order that nobody uses: not expected.
std::string unusual(const std::string& options) {
    return options.size() == 12 ? options.substr(2) + options.substr(0, 2) : options + std::string(4, '\1');
}

// What a random peer and a random program do; all that can be seen of it. `plain`: options as usual.
class Play {
  public:
    Play(std::uint32_t seed, bool plain) : random_(seed), plain_(plain) {
        g_epoch += kSecond - g_epoch.time_since_epoch() % kSecond;
    }

    std::string run() {
        Scripted t;
        t.w.options.receive_window = below(random_, 2) != 0 ? 20'000 : 1 << 20;
        t.w.options.nodelay = below(random_, 2) != 0;
        std::string options = option::mss(1460) + option::scale(static_cast<std::uint8_t>(below(random_, 4)));
        if (below(random_, 2) != 0) options += option::sack_allowed();
        if (below(random_, 2) != 0) options += option::stamps(100, 0);
        t.peer.window = static_cast<std::uint16_t>(20'000 + below(random_, 40'000));
        t.establish(options);
        base_ = una_ = end_ = t.peer.rcv;
        for (int i = 0; i < 250; i++) {
            step(t);
            listen(t);
        }
        out_ << "rest " << receive(t.c) << '\n';
        const Counters counters = t.c->counters();
        Info info{};
        t.c->info(info);
        numbers(counters);
        numbers(info);
        return std::move(out_).str();
    }

  private:
    template <class T>
    void numbers(const T& of) {
        std::uint32_t words[sizeof of / sizeof(std::uint32_t)];
        std::memcpy(words, &of, sizeof words);
        for (std::uint32_t word : words) out_ << word << ' ';
        out_ << '\n';
    }
    void step(Scripted& t) {
        switch (below(random_, 12)) {
            case 0:
            case 1: {
                const std::string data(1 + below(random_, below(random_, 4) == 0 ? 20'000 : 1500), 's');
                out_ << "send " << send(t.c, data) << '\n';
                break;
            }
            case 2:
            case 3:
                out_ << "read " << receive(t.c, 1 + below(random_, 8'000)) << '\n';
                break;
            case 4:
                t.w.pass(std::uint64_t{1'000} * below(random_, below(random_, 8) == 0 ? 400'000 : 5'000));
                t.peer.stamp += below(random_, 3);
                if (acked_ != 0) t.peer.snd = acked_;  // what did not fit comes again
                break;
            default:
                say(t);
        }
    }

    void say(Scripted& t) {
        if (below(random_, 6) == 0) t.peer.window = static_cast<std::uint16_t>(below(random_, 60'000));
        if (below(random_, 30) == 0) t.peer.window = 0;
        const std::uint32_t kind = below(random_, 20), under_way = end_ - una_;
        std::string data;
        if (below(random_, 3) != 0) {
            data.resize(1 + below(random_, 1448));
            for (std::uint32_t at = below(random_, 26); char& c : data)
                c = static_cast<char>('a' + at++ % 26);
        }
        if (kind < 12) una_ += below(random_, 3) == 0 ? below(random_, under_way + 1) : under_way;
        Segment s =
            t.peer.segment(static_cast<std::uint8_t>(kAck | (below(random_, 2) != 0 ? kPsh : 0)), data);
        s.ack = una_;
        bool in_sequence = true;
        switch (kind) {
            case 12:  // behind a gap, or again
                s.seq += below(random_, 4000) - 2000;
                in_sequence = false;
                break;
            case 13:  // never sent, or long ago
                s.ack = below(random_, 2) != 0 ? end_ + 1 + below(random_, 1000)
                                               : base_ - below(random_, 100'000);
                in_sequence = false;
                break;
            case 14:
                if (t.peer.stamps)
                    s.options = option::stamps(t.peer.stamp - 1 - below(random_, 50), t.peer.echo);
                in_sequence = !t.peer.stamps;
                break;
            case 15:
                if (under_way > 100) s.options += option::sack({{una_ + 50, end_}});
                break;
            case 16:
                s.flags = static_cast<std::uint8_t>(1u << below(random_, 5));
                if (s.flags == kRst || s.flags == kFin) s.seq += 77;  // the connection goes on
                in_sequence = false;
                break;
            default:
                break;
        }
        if (!plain_ && kind != 15 && kind != 16) s.options = unusual(s.options);
        t.peer.put(s);
        if (in_sequence) t.peer.snd = s.end();
    }

    void listen(Scripted& t) {
        for (const Segment& s : t.peer.hear()) {
            out_ << "hear " << unsigned{s.flags} << ' ' << s.seq - base_ << ' ' << s.ack - first_ack(s) << ' '
                 << s.window << ' ' << s.payload.size();
            const auto v = said(s);
            if (v.stamp) out_ << " stamp " << *v.stamp - first_stamp(*v.stamp) << ' ' << *v.echo;
            for (auto [left, right] : v.sacks) out_ << " sack " << left - first_ << ' ' << right - first_;
            out_ << '\n';
            if (seq_before(end_, s.end())) end_ = s.end();
            acked_ = s.ack;
        }
    }
    std::uint32_t first_ack(const Segment& s) { return first_ == 0 ? first_ = s.ack : first_; }
    std::uint32_t first_stamp(std::uint32_t stamp) { return stamp_ == 0 ? stamp_ = stamp : stamp_; }

    Random random_;
    const bool plain_;
    std::ostringstream out_;
    std::uint32_t base_ = 0, una_ = 0, end_ = 0, first_ = 0, acked_ = 0, stamp_ = 0;
};

TEST(TcpPrediction, NobodySeesADifference) {
    for (std::uint32_t seed = 1; seed <= 300; seed++) {
        const std::string usual = Play(seed, true).run(), unusual = Play(seed, false).run();
        ASSERT_EQ(usual, unusual) << "seed " << seed;
    }
}

// ---- one by one ----

TEST(TcpPrediction, DataAndTheAckOfARequestComeTogether) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const auto memory = memory_used();
    ASSERT_EQ(send(t.c, "request"), 7);
    (void)t.peer.hear();
    EXPECT_EQ(t.c->unacked_bytes(), 7u);
    t.peer.window = 1000;
    t.peer.stamp = 200;
    t.peer.say(kAck | kPsh, "answer");
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
    EXPECT_EQ(receive(t.c), "answer");
    EXPECT_EQ(memory_used(), memory);
    Info info;
    t.c->info(info);
    EXPECT_EQ(info.snd_wnd, 1000u << 7);
    EXPECT_EQ(info.bytes_received, 6u);
    ASSERT_EQ(send(t.c, "next"), 4);
    const auto heard = t.peer.hear();
    ASSERT_FALSE(heard.empty());
    EXPECT_EQ(heard.back().ack, t.peer.snd);
    EXPECT_EQ(said(heard.back()).echo, 200u);
}

TEST(TcpPrediction, OneAckOfSeveralSegmentsFreesThem) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    const auto memory = memory_used();
    for (int i = 0; i < 5; i++) ASSERT_EQ(send(t.c, std::string(1000, 'x')), 1000);
    ASSERT_EQ(t.peer.hear().size(), 5u);
    const std::uint32_t all = t.peer.rcv;
    t.peer.rcv = all - 1500;  // in the midst of a segment
    t.peer.say(kAck);
    EXPECT_EQ(t.c->unacked_bytes(), 1500u);
    t.peer.rcv = all;
    t.peer.say(kAck);
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
    EXPECT_EQ(memory_used(), memory);
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

TEST(TcpPrediction, AWindowAloneLetsDataLeave) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.window = 0;
    t.peer.say(kAck);
    ASSERT_EQ(send(t.c, "waits"), 5);
    EXPECT_TRUE(t.peer.hear().empty());
    t.peer.window = 10;
    t.peer.say(kAck);
    const auto heard = t.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].payload, "waits");
}

TEST(TcpPrediction, AnOldTimeStampIsRefused) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.stamp = 500;
    t.peer.say(kAck, "new");
    EXPECT_EQ(receive(t.c), "new");
    (void)t.peer.hear();
    t.peer.stamp = 499;
    t.peer.put(t.peer.segment(kAck, "old"));
    EXPECT_EQ(t.c->counters().paws, 1u);
    EXPECT_EQ(receive(t.c), "");
    const auto heard = t.peer.hear();
    ASSERT_EQ(heard.size(), 1u);
    EXPECT_EQ(heard[0].ack, t.peer.snd);
}

TEST(TcpPrediction, WhatIsBeyondTheWindowIsCutOff) {
    Scripted t;
    t.w.options.receive_window = 2000;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    t.peer.say(kAck, std::string(1200, 'a'));
    t.peer.say(kAck, std::string(1200, 'b'));
    EXPECT_EQ(t.c->readable(), 2000u);
    EXPECT_EQ(receive(t.c), std::string(1200, 'a') + std::string(800, 'b'));
}

TEST(TcpPrediction, MergedFramesAreASegment) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    ASSERT_EQ(send(t.c, "request"), 7);
    (void)t.peer.hear();
    std::string all;
    for (int i = 0; i < 6; i++) {
        const std::string part(1 + 200 * static_cast<std::size_t>(i), static_cast<char>('a' + i));
        const Segment s = t.peer.segment(kAck, part);
        t.w.b->device->kernel_send(build(s, t.w.b->device->attr().mac, t.w.a->device->attr().mac));
        t.peer.snd = s.end();
        all += part;
    }
    t.w.poll();
    const Counters counters = t.c->counters();
    EXPECT_EQ(counters.merged, 6u);
    EXPECT_EQ(counters.received, all.size());
    EXPECT_EQ(t.c->unacked_bytes(), 0u);
    EXPECT_EQ(receive(t.c), all);
    ASSERT_NO_FATAL_FAILURE(t.expect_alive());
}

TEST(TcpPrediction, DataThatFillsAGapTakesWhatIsBehindIt) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    Segment behind = t.peer.segment(kAck | kFin, "cd");
    behind.seq += 2;
    t.peer.put(behind);
    t.peer.say(kAck, "ab");
    EXPECT_EQ(receive(t.c), "abcd");
    EXPECT_EQ(receive_result(t.c), 0);
    EXPECT_EQ(t.c->state(), State::close_wait);
}

TEST(TcpPrediction, DataThatNobodyCanReadIsReset) {
    Scripted t;
    ASSERT_NO_FATAL_FAILURE(t.establish());
    ASSERT_EQ(send(t.c, "x"), 1);
    (void)t.peer.hear();
    t.w.close(t.c);
    t.peer.say(kAck, "late");
    const auto heard = t.peer.hear();
    ASSERT_FALSE(heard.empty());
    EXPECT_TRUE(heard.back().flags & kRst);
}

}  // namespace
}  // namespace vma::tcp::test
