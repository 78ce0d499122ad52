// SPDX-License-Identifier: BSD-2-Clause
// Congestion control, fed with ACKs by hand and by a small model of a path.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "libvma/tcp/recovery/congestion.h"

namespace {

using vma::tcp::Congestion;
using vma::tcp::congestion_algorithm;
using vma::tcp::CongestionAlgorithm;
using vma::tcp::Nsec;
using vma::tcp::Time;
using vma::tcp::Usec;
using enum vma::tcp::CongestionAlgorithm;

constexpr std::uint32_t kMss = 1448;
constexpr Nsec kMs{1'000'000};

static_assert(std::is_trivially_copyable_v<Congestion>);

Congestion make(CongestionAlgorithm algorithm) {
    Congestion c;
    c.init(algorithm, kMss);
    return c;
}

// One round trip in which all of the window is sent and acknowledged, two segments by each ACK.
void round_trip(Congestion& c, Time& now, Nsec rtt) {
    const std::uint32_t window = c.cwnd() / kMss * kMss;
    const std::uint32_t acks = std::max(window / (2 * kMss), 1u);
    for (std::uint32_t i = 0; i < acks; i++) {
        now += rtt / acks;
        c.on_ack(std::min(window, 2 * kMss), true, now);
    }
}

// A recovery from its beginning to its end.
void lose(Congestion& c) {
    c.begin_reduction();
    c.end_reduction();
}

TEST(TcpCongestion, Names) {
    EXPECT_EQ(congestion_algorithm("reno"), newreno);
    EXPECT_EQ(congestion_algorithm("cubic"), cubic);
    EXPECT_EQ(congestion_algorithm("none"), none);
    for (const char* unknown : {"", "bbr", "Reno", "cubic ", "renoo", "newreno"})
        EXPECT_EQ(congestion_algorithm(unknown), std::nullopt) << unknown;
    for (const CongestionAlgorithm a : {newreno, cubic, none}) {
        EXPECT_EQ(congestion_algorithm(congestion_name(a)), a);
        EXPECT_EQ(std::string(make(a).name()), congestion_name(a));
    }
}

TEST(TcpCongestion, StartsWithTenSegments) {
    Congestion c = make(cubic);
    EXPECT_EQ(c.cwnd(), 10 * kMss);
    EXPECT_EQ(c.ssthresh(), Congestion::kNoThreshold);
    c.set_mss(500);
    EXPECT_EQ(c.cwnd(), 5000u) << "nothing acknowledged yet: still ten segments";
    c.set_mss(9000);
    EXPECT_EQ(c.cwnd(), 90000u);
    c.init(newreno, kMss, 3 * kMss);
    EXPECT_EQ(c.cwnd(), 3 * kMss);
}

TEST(TcpCongestion, SmallerSegmentsShrinkTheWindowInProportion) {
    Congestion c = make(newreno);
    c.on_ack(2 * kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), 12 * kMss);
    c.set_mss(kMss / 2);
    EXPECT_EQ(c.cwnd(), 6 * kMss);
    c.set_mss(kMss);
    EXPECT_EQ(c.cwnd(), 6 * kMss);
}

// Segments become shorter in a recovery that turns out to be needless: the window is the one of before.
TEST(TcpCongestion, SmallerSegmentsInARecoveryCanBeUndone) {
    Congestion c = make(cubic);
    c.on_ack(10 * kMss, true, Time(kMs));
    const std::uint32_t before = c.cwnd();
    lose(c);
    c.set_mss(kMss / 2);
    c.on_spurious();
    EXPECT_EQ(c.cwnd(), before / 2);
    // What cannot be undone, for the algorithm changed meanwhile, stays.
    lose(c);
    const std::uint32_t reduced = c.cwnd();
    c.change(newreno);
    c.on_spurious();
    EXPECT_EQ(c.cwnd(), reduced);
}

TEST(TcpCongestion, SlowStartCountsWhatHasArrived) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c = make(a);
        c.on_ack(100, true, Time(kMs));
        EXPECT_EQ(c.cwnd(), 10 * kMss + 100) << "split ACKs gain nothing";
        c.on_ack(9 * kMss, true, Time(kMs));
        EXPECT_EQ(c.cwnd(), 19 * kMss + 100) << "all of one ACK, as in the kernel";
    }
}

TEST(TcpCongestion, AWindowThatIsNotFilledDoesNotGrow) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c = make(a);
        for (std::uint64_t i = 0; i < 1000; i++) c.on_ack(kMss, false, Time((3 + i) * kMs));
        EXPECT_EQ(c.cwnd(), 10 * kMss);
        c.not_filled(20 * kMss);
        EXPECT_EQ(c.cwnd(), 10 * kMss);
        c.not_filled(4 * kMss);
        EXPECT_EQ(c.cwnd(), 4 * kMss);
        EXPECT_EQ(c.ssthresh(), Congestion::kNoThreshold);
    }
}

TEST(TcpCongestion, RenoGrowsASegmentForAWindow) {
    Congestion c = make(newreno);
    lose(c);
    ASSERT_EQ(c.cwnd(), 5 * kMss);
    for (int i = 0; i < 4; i++) c.on_ack(kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), 5 * kMss);
    c.on_ack(kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), 6 * kMss);
}

TEST(TcpCongestion, KeepsItsShare) {
    for (const auto& [algorithm, kept] : {std::pair{newreno, 5u}, std::pair{cubic, 7u}}) {
        Congestion c = make(algorithm);
        EXPECT_EQ(c.begin_reduction(), kept * kMss);
        EXPECT_EQ(c.ssthresh(), kept * kMss) << "whole segments";
        EXPECT_EQ(c.cwnd(), 10 * kMss) << "PRR leads there";
        c.set_window(8 * kMss);
        EXPECT_EQ(c.cwnd(), 8 * kMss);
        c.end_reduction();
        EXPECT_EQ(c.cwnd(), kept * kMss);
        for (int i = 0; i < 10; i++) lose(c);
        EXPECT_EQ(c.cwnd(), 2 * kMss) << "never less";
    }
}

TEST(TcpCongestion, TimeoutStartsOverWithASegmentMoreThanIsOnItsWay) {
    Congestion c = make(newreno);
    c.on_rto(0, true);
    EXPECT_EQ(c.cwnd(), kMss);
    EXPECT_EQ(c.ssthresh(), 5 * kMss);
    c.on_rto(2 * kMss, false);
    EXPECT_EQ(c.cwnd(), 3 * kMss);
    EXPECT_EQ(c.ssthresh(), 5 * kMss) << "the same segment again";
    c.on_ack(kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), 4 * kMss);
    c.on_ack(4 * kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), 5 * kMss) << "up to the threshold, and the rest counts for avoidance";
    EXPECT_FALSE(c.in_slow_start());
}

TEST(TcpCongestion, SpuriousIsUndoneOnce) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c = make(a);
        Time now(kMs);
        round_trip(c, now, 10 * kMs);
        const std::uint32_t cwnd = c.cwnd(), ssthresh = c.ssthresh();
        c.on_rto(0, true);
        EXPECT_EQ(c.cwnd(), kMss);
        c.on_spurious();
        EXPECT_EQ(c.cwnd(), cwnd);
        EXPECT_EQ(c.ssthresh(), ssthresh);
        lose(c);
        c.on_rto(0, false);
        c.on_spurious();
        EXPECT_EQ(c.cwnd(), cwnd) << "a timeout in a recovery leads back to before it";
        lose(c);
        const std::uint32_t reduced = c.cwnd();
        EXPECT_LT(reduced, cwnd);
        c.keep_reduction();
        c.on_spurious();
        EXPECT_EQ(c.cwnd(), reduced);
    }
}

TEST(TcpCongestion, IdleHalvesTheWindowForEachTimeout) {
    Congestion c = make(newreno);
    c.on_ack(70 * kMss, true, Time(kMs));
    ASSERT_EQ(c.cwnd(), 80 * kMss);
    const auto after = [&](std::uint64_t us, bool slow_start = true) {
        c.after_idle(std::chrono::microseconds(us), Usec(200'000), slow_start);
    };
    after(200'000);
    EXPECT_EQ(c.cwnd(), 80 * kMss);
    after(300'000, false);
    EXPECT_EQ(c.cwnd(), 80 * kMss) << "net.ipv4.tcp_slow_start_after_idle is 0";
    after(300'000);
    EXPECT_EQ(c.cwnd(), 40 * kMss);
    EXPECT_EQ(c.ssthresh(), Congestion::kNoThreshold);
    after(3'600'000'000);
    EXPECT_EQ(c.cwnd(), 10 * kMss) << "the restart window";
    lose(c);
    after(3'600'000'000);
    EXPECT_EQ(c.cwnd(), 5 * kMss) << "never larger than it was";
}

TEST(TcpCongestion, NoneHasNoWindow) {
    Congestion c = make(none);
    lose(c);
    c.on_rto(10 * kMss, true);
    c.after_idle(std::chrono::microseconds(1'000'000'000), Usec(1), true);
    c.on_ack(kMss, true, Time(kMs));
    EXPECT_EQ(c.cwnd(), Congestion::kUnlimited);
    c.change(newreno);
    EXPECT_LE(c.cwnd(), 11 * kMss);
    EXPECT_GE(c.cwnd(), kMss);
}

TEST(TcpCongestion, ChangingTheAlgorithmKeepsTheWindow) {
    Congestion c = make(cubic);
    Time now(kMs);
    round_trip(c, now, 10 * kMs);
    const std::uint32_t cwnd = c.cwnd();
    c.change(newreno);
    EXPECT_EQ(c.cwnd(), cwnd);
    EXPECT_STREQ(c.name(), "reno");
}

TEST(TcpCongestion, AWindowGrowsToTheLargestAndNoFurther) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c;
        c.init(a, 65535, 1u << 29);
        for (std::uint64_t i = 0; i < 20000; i++) c.on_ack(1u << 20, true, Time(i * kMs));
        EXPECT_EQ(c.cwnd(), Congestion::kUnlimited);
        lose(c);
        for (std::uint64_t i = 0; i < 20000; i++) c.on_ack(UINT32_MAX, true, Time((20000 + i) * 1000 * kMs));
        EXPECT_LE(c.cwnd(), Congestion::kUnlimited);
    }
}

// RFC 9438's curve at a path where it matters: 100 ms, a window of 2,000 segments.
TEST(TcpCubic, FollowsTheCurve) {
    Congestion c;
    c.init(cubic, kMss, 2000 * kMss);
    lose(c);
    EXPECT_EQ(c.cwnd(), 1400 * kMss);
    constexpr Nsec kRtt = 100 * kMs;
    Time now(kMs);
    const double k = std::cbrt(2000 * 0.3 / 0.4);  // 11.4 s
    const Time start = now;
    double last_step = 1e9;
    while (now - start < Nsec(static_cast<std::uint64_t>(2 * k * 1e9))) {
        const std::uint32_t before = c.cwnd();
        round_trip(c, now, kRtt);
        const double t = static_cast<double>((now - start).count()) * 1e-9;
        const double curve = 2000 + 0.4 * std::pow(t - k, 3);
        ASSERT_NEAR(c.cwnd() / double{kMss}, curve, 25) << t;
        const double step = c.cwnd() - before;
        if (t > 1 && t < k - 1) {
            ASSERT_LE(step, last_step + kMss) << "concave below the old window";
        }
        last_step = step;
    }
    EXPECT_GT(c.cwnd(), 2400 * kMss) << "and past it";
}

// On a short path the curve is flatter than Reno, and CUBIC must not be worse.
TEST(TcpCubic, IsAtLeastRenoOnAShortPath) {
    Congestion c, reno;
    c.init(cubic, kMss, 40 * kMss);
    reno.init(newreno, kMss, 40 * kMss);
    Time now(kMs), reno_now(kMs);
    const auto cycle = [](Congestion& x, Time& t) {
        // A loss whenever 40 segments are in flight; the average window over the time.
        double sum = 0;
        int rounds = 0;
        for (; rounds < 3000; rounds++) {
            round_trip(x, t, kMs);
            sum += x.cwnd();
            if (x.cwnd() < 40 * kMss) continue;
            lose(x);
        }
        return sum / rounds / kMss;
    };
    const double cubic_average = cycle(c, now), reno_average = cycle(reno, reno_now);
    EXPECT_GE(cubic_average, reno_average * 0.98);
}

TEST(TcpCubic, GivesWayWhenTheWindowShrinks) {
    Congestion c;
    c.init(cubic, kMss, 1000 * kMss);
    Time now(kMs);
    // After the second loss below the first one, the plateau lies below where the loss was: at 0.85 of it.
    lose(c);
    lose(c);
    const double plateau = 700 * 0.85;
    const double k = std::cbrt((plateau - 490) / 0.4);
    const Time start = now;
    while (now - start < Nsec(static_cast<std::uint64_t>(k * 1e9))) round_trip(c, now, 100 * kMs);
    EXPECT_NEAR(c.cwnd() / double{kMss}, plateau, 10);
}

TEST(TcpCubic, TheCurveWaitsWhileNothingIsSent) {
    Congestion c, steady;
    for (Congestion* x : {&c, &steady}) {
        x->init(cubic, kMss, 500 * kMss);
        lose(*x);
    }
    Time now(kMs), steady_now(kMs);
    for (int i = 0; i < 20; i++) {
        round_trip(c, now, 50 * kMs);
        round_trip(steady, steady_now, 50 * kMs);
    }
    now += 10'000 * kMs;
    c.after_idle(10'000 * kMs, Usec(20'000'000), true);
    round_trip(c, now, 50 * kMs);
    round_trip(steady, steady_now, 50 * kMs);
    EXPECT_NEAR(c.cwnd() / double{kMss}, steady.cwnd() / double{kMss}, 3);
}

// Slow start that HyStart has ended goes on by a twentieth for each window, before any loss has shown a
// plateau.
TEST(TcpCubic, GrowsByATwentiethBeforeTheFirstLoss) {
    Congestion c;
    c.init(cubic, kMss, 400 * kMss);
    Time now(kMs);
    c.begin_reduction();
    c.on_rto(300 * kMss, false);  // forgets the plateau
    const std::uint32_t before = c.cwnd();
    round_trip(c, now, 10 * kMs);
    EXPECT_NEAR(c.cwnd() / static_cast<double>(before), 1.05, 0.005);
}

// ---- HyStart ----

struct Path {
    Congestion c = make(cubic);
    std::uint32_t una = 0xfffff000u, nxt = una;
    Time now{kSecondLater};
    static constexpr Nsec kSecondLater{1'000'000'000};

    // One ACK of a segment, `rtt` after it was sent.
    void ack(Usec rtt, Usec srtt) {
        una += kMss;
        c.on_rtt_sample(rtt, una, nxt, srtt, now);
        c.on_ack(kMss, true, now);
    }
};

// A path whose queue fills: the delay ends slow start before anything is lost.
TEST(TcpCubic, RisingDelayEndsSlowStart) {
    Path p;
    constexpr std::uint32_t kPath = 200 * kMss;  // what fits on the path without a queue
    for (int rounds = 0; rounds < 40 && p.c.in_slow_start(); rounds++) {
        const std::uint32_t window = p.c.cwnd() / kMss * kMss;
        p.nxt = p.una + window;
        const Usec rtt(40'000 + (window > kPath ? (window - kPath) / kMss * 200 : 0));
        p.now += rtt;
        for (std::uint32_t done = 0; done < window; done += kMss) p.ack(rtt, rtt);
    }
    EXPECT_FALSE(p.c.in_slow_start());
    EXPECT_GT(p.c.cwnd(), kPath);
    EXPECT_LT(p.c.cwnd(), 5 * kPath) << "without it the window would double until something is lost";
    EXPECT_LE(p.c.ssthresh(), p.c.cwnd());
}

TEST(TcpCubic, SteadyDelayDoesNot) {
    Path p;
    for (int rounds = 0; rounds < 10; rounds++) {
        const std::uint32_t window = p.c.cwnd() / kMss * kMss;
        p.nxt = p.una + window;
        p.now += 10 * kMs;
        for (std::uint32_t done = 0; done < window; done += kMss)
            p.ack(Usec(10'000 + (done / kMss) % 7 * 300), Usec(10'000));
    }
    EXPECT_TRUE(p.c.in_slow_start());
    EXPECT_GT(p.c.cwnd(), 5000 * kMss);
}

// ACKs that follow one another for half of the shortest round trip: the window fills the path.
TEST(TcpCubic, AnAckTrainOfHalfARoundTripEndsSlowStart) {
    for (const unsigned gap_us : {100u, 2'500u}) {
        Path p;
        for (int rounds = 0; rounds < 8 && p.c.in_slow_start(); rounds++) {
            const std::uint32_t window = p.c.cwnd() / kMss * kMss;
            p.nxt = p.una + window;
            p.now += 20 * kMs;
            for (std::uint32_t done = 0; done < window; done += kMss) {
                p.now += Usec(gap_us);
                p.ack(Usec(20'000), Usec(20'000));
            }
        }
        EXPECT_EQ(p.c.in_slow_start(), gap_us > 2'000) << "ACKs further apart are no train";
        if (gap_us == 100) {
            // 10.5 ms at 100 us each: within the round of 160 segments.
            EXPECT_GT(p.c.cwnd(), 160 * kMss);
            EXPECT_LT(p.c.cwnd(), 320 * kMss);
        }
    }
}

TEST(TcpCubic, HyStartDoesNotActBelowSixteenSegments) {
    Path p;
    p.nxt = p.una + 10 * kMss;
    for (int i = 0; i < 5; i++) {
        p.now += Usec(1'900);
        p.ack(Usec(2'000 + static_cast<unsigned>(i) * 20'000), Usec(2'000));
    }
    EXPECT_TRUE(p.c.in_slow_start());
}

}  // namespace
