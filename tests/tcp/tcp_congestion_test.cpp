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
        c.on_ack(std::min(window, 2 * kMss), c.cwnd(), false, std::chrono::duration_cast<Usec>(rtt), now);
    }
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
    c.on_ack(2 * kMss, 10 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 12 * kMss);
    c.set_mss(kMss / 2);
    EXPECT_EQ(c.cwnd(), 6 * kMss);
    c.set_mss(kMss);
    EXPECT_EQ(c.cwnd(), 6 * kMss);
}

// Segments become shorter in a recovery that turns out to be needless: it ends, and the window is the one of
// before.
TEST(TcpCongestion, SmallerSegmentsInARecoveryCanBeUndone) {
    Congestion c = make(cubic);
    c.on_ack(10 * kMss, 10 * kMss, false, Usec(1000), Time(kMs));
    const std::uint32_t before = c.cwnd();
    c.on_loss_event(before, Time(2 * kMs));
    c.set_mss(kMss / 2);
    c.on_spurious();
    EXPECT_FALSE(c.in_recovery());
    EXPECT_EQ(c.cwnd(), before / 2);
    // What cannot be undone, for the algorithm changed meanwhile, ends all the same.
    c.on_loss_event(c.cwnd(), Time(3 * kMs));
    c.change(newreno);
    c.on_spurious();
    EXPECT_FALSE(c.in_recovery());
    const std::uint32_t window = c.cwnd();
    for (int i = 0; i < 100; i++)
        c.on_ack(window, window, false, Usec(1000), Time((4 + static_cast<unsigned>(i)) * kMs));
    EXPECT_GT(c.cwnd(), window);
}

TEST(TcpCongestion, SlowStartCountsBytesUpToALimit) {
    Congestion reno = make(newreno);
    reno.on_ack(100, 10 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(reno.cwnd(), 10 * kMss + 100) << "split ACKs gain nothing";
    reno.on_ack(9 * kMss, 10 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(reno.cwnd(), 12 * kMss + 100) << "two segments for one ACK";
    Congestion with_hystart = make(cubic);
    with_hystart.on_ack(9 * kMss, 10 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(with_hystart.cwnd(), 18 * kMss) << "RFC 9406: eight";
}

TEST(TcpCongestion, AWindowThatIsNotFilledDoesNotGrow) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c = make(a);
        c.on_ack(kMss, 2 * kMss, true, Usec(1000), Time(kMs));
        EXPECT_EQ(c.cwnd(), 10 * kMss);
        c.on_ack(kMss, 6 * kMss, true, Usec(1000), Time(kMs));
        EXPECT_EQ(c.cwnd(), 11 * kMss) << "half filled is enough in slow start";
        c.on_loss_event(11 * kMss, Time(2 * kMs));
        c.on_recovery_exit();
        const std::uint32_t before = c.cwnd();
        for (std::uint64_t i = 0; i < 1000; i++)
            c.on_ack(kMss, before, true, Usec(1000), Time((3 + i) * kMs));
        EXPECT_EQ(c.cwnd(), before);
    }
}

TEST(TcpCongestion, RenoGrowsASegmentForAWindow) {
    Congestion c = make(newreno);
    c.on_loss_event(10 * kMss, Time());
    c.on_recovery_exit();
    ASSERT_EQ(c.cwnd(), 5 * kMss);
    for (int i = 0; i < 4; i++) c.on_ack(kMss, 5 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 5 * kMss);
    c.on_ack(kMss, 5 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 6 * kMss);
    c.on_ack(1'000'000'000, 6 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 7 * kMss) << "an ACK never adds more than a segment, nor saves up";
    c.on_ack(1, 7 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_LE(c.cwnd(), 8 * kMss);
}

TEST(TcpCongestion, ReducesOnceForAWindow) {
    for (const auto& [algorithm, kept] : {std::pair{newreno, 0.5}, std::pair{cubic, 0.7}}) {
        Congestion c = make(algorithm);
        c.on_loss_event(10 * kMss, Time());
        const auto expected = static_cast<std::uint32_t>(10 * kMss * kept);
        EXPECT_TRUE(c.in_recovery());
        EXPECT_EQ(c.ssthresh(), expected);
        EXPECT_EQ(c.cwnd(), expected);
        c.on_loss_event(10 * kMss, Time());
        c.on_ack(5 * kMss, 10 * kMss, false, Usec(1000), Time(kMs));
        EXPECT_EQ(c.cwnd(), expected) << "neither twice nor growing meanwhile";
        c.on_recovery_exit();
        EXPECT_FALSE(c.in_recovery());
        EXPECT_EQ(c.cwnd(), expected);
        c.on_loss_event(expected, Time());
        EXPECT_LT(c.ssthresh(), expected);
    }
}

TEST(TcpCongestion, NeverBelowTwoSegmentsAndMoreInFlightThanTheWindowDoesNotCount) {
    Congestion c = make(newreno);
    c.on_loss_event(100 * kMss, Time());
    EXPECT_EQ(c.ssthresh(), 5 * kMss);
    c.on_recovery_exit();
    for (int i = 0; i < 10; i++) {
        c.on_loss_event(1, Time());
        c.on_recovery_exit();
    }
    EXPECT_EQ(c.cwnd(), 2 * kMss);
}

TEST(TcpCongestion, TimeoutStartsOverWithOneSegment) {
    Congestion c = make(newreno);
    c.on_rto(10 * kMss, true, Time());
    EXPECT_EQ(c.cwnd(), kMss);
    EXPECT_EQ(c.ssthresh(), 5 * kMss);
    c.on_rto(kMss, false, Time());
    EXPECT_EQ(c.ssthresh(), 5 * kMss) << "the same segment again";
    c.on_loss_event(kMss, Time());
    EXPECT_EQ(c.cwnd(), kMss) << "what duplicate ACKs tell now is about the time before";
    c.on_ack(10 * kMss, kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 2 * kMss) << "slow start, one segment for an ACK (RFC 3465)";
    c.on_recovery_exit();
    EXPECT_EQ(c.cwnd(), 2 * kMss) << "and no jump at its end";
    c.on_ack(4 * kMss, 2 * kMss, false, Usec(1000), Time(kMs));
    c.on_ack(4 * kMss, 4 * kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), 5 * kMss) << "up to the threshold";
    EXPECT_FALSE(c.in_slow_start());
}

TEST(TcpCongestion, TimeoutInARecoveryDoesNotReduceTwice) {
    Congestion c = make(newreno);
    c.on_loss_event(10 * kMss, Time());
    c.on_rto(5 * kMss, true, Time());
    EXPECT_EQ(c.ssthresh(), 5 * kMss);
    EXPECT_EQ(c.cwnd(), kMss);
    c.on_spurious();
    EXPECT_EQ(c.cwnd(), 10 * kMss) << "back to before the recovery";
}

TEST(TcpCongestion, SpuriousIsUndoneOnce) {
    for (const CongestionAlgorithm a : {newreno, cubic}) {
        Congestion c = make(a);
        Time now(kMs);
        round_trip(c, now, 10 * kMs);
        const std::uint32_t cwnd = c.cwnd(), ssthresh = c.ssthresh();
        c.on_rto(cwnd, true, now);
        EXPECT_EQ(c.cwnd(), kMss);
        c.on_spurious();
        EXPECT_EQ(c.cwnd(), cwnd);
        EXPECT_EQ(c.ssthresh(), ssthresh);
        EXPECT_FALSE(c.in_recovery());
        c.on_loss_event(cwnd, now);
        const std::uint32_t reduced = c.cwnd();
        c.on_spurious();
        c.on_spurious();
        EXPECT_EQ(c.cwnd(), cwnd);
        EXPECT_LT(reduced, cwnd);
    }
}

TEST(TcpCongestion, IdleHalvesTheWindowForEachTimeout) {
    Congestion c = make(newreno);
    for (int i = 0; i < 35; i++) c.on_ack(2 * kMss, c.cwnd(), false, Usec(1000), Time(kMs));
    ASSERT_EQ(c.cwnd(), 80 * kMss);
    c.after_idle(std::chrono::microseconds(200'000), Usec(200'000));
    EXPECT_EQ(c.cwnd(), 80 * kMss);
    c.after_idle(std::chrono::microseconds(300'000), Usec(200'000));
    EXPECT_EQ(c.cwnd(), 40 * kMss);
    EXPECT_EQ(c.ssthresh(), Congestion::kNoThreshold);
    c.after_idle(std::chrono::microseconds(3'600'000'000), Usec(200'000));
    EXPECT_EQ(c.cwnd(), 10 * kMss) << "the restart window";
    c.on_loss_event(10 * kMss, Time());
    c.on_recovery_exit();
    c.after_idle(std::chrono::microseconds(3'600'000'000), Usec(200'000));
    EXPECT_EQ(c.cwnd(), 5 * kMss) << "never larger than it was";
}

TEST(TcpCongestion, NoneHasNoWindow) {
    Congestion c = make(none);
    c.on_loss_event(10 * kMss, Time());
    c.on_rto(10 * kMss, true, Time());
    c.after_idle(std::chrono::microseconds(1'000'000'000), Usec(1));
    c.on_ack(kMss, kMss, false, Usec(1000), Time(kMs));
    EXPECT_EQ(c.cwnd(), Congestion::kUnlimited);
    c.change(newreno);
    EXPECT_LE(c.cwnd(), 10 * kMss);
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
        for (std::uint64_t i = 0; i < 20000; i++)
            c.on_ack(1u << 20, c.cwnd(), false, Usec(1000), Time(i * kMs));
        EXPECT_EQ(c.cwnd(), Congestion::kUnlimited);
        c.on_loss_event(UINT32_MAX, Time());
        c.on_recovery_exit();
        for (std::uint64_t i = 0; i < 20000; i++)
            c.on_ack(UINT32_MAX, c.cwnd(), false, Usec::max(), Time((20000 + i) * 1000 * kMs));
        EXPECT_LE(c.cwnd(), Congestion::kUnlimited);
    }
}

// RFC 9438's curve at a path where it matters: 100 ms, a window of 2,000 segments.
TEST(TcpCubic, FollowsTheCurve) {
    Congestion c;
    c.init(cubic, kMss, 2000 * kMss);
    c.on_loss_event(2000 * kMss, Time());
    c.on_recovery_exit();
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
            x.on_loss_event(x.cwnd(), t);
            x.on_recovery_exit();
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
    c.on_loss_event(1000 * kMss, now);
    c.on_recovery_exit();
    c.on_loss_event(700 * kMss, now);
    c.on_recovery_exit();
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
        x->on_loss_event(500 * kMss, Time());
        x->on_recovery_exit();
    }
    Time now(kMs), steady_now(kMs);
    for (int i = 0; i < 20; i++) {
        round_trip(c, now, 50 * kMs);
        round_trip(steady, steady_now, 50 * kMs);
    }
    for (int i = 0; i < 1000; i++) {  // ten seconds in which the program hardly sends
        now += 10 * kMs;
        c.on_ack(100, 100, true, Usec(50'000), now);
    }
    round_trip(c, now, 50 * kMs);
    round_trip(steady, steady_now, 50 * kMs);
    EXPECT_NEAR(c.cwnd() / double{kMss}, steady.cwnd() / double{kMss}, 3);
}

// A path whose queue fills: the delay ends slow start before anything is lost.
TEST(TcpCubic, RisingDelayEndsSlowStart) {
    Congestion c = make(cubic);
    Time now(kMs);
    constexpr std::uint32_t kPath = 200 * kMss;  // what fits on the path without a queue
    int rounds = 0;
    for (; rounds < 40 && c.in_slow_start(); rounds++) {
        const std::uint32_t window = c.cwnd() / kMss * kMss;
        const Usec rtt(40'000 + (window > kPath ? (window - kPath) / kMss * 200 : 0));
        for (std::uint32_t done = 0; done < window; done += kMss) {
            c.on_rtt_sample(rtt);
            c.on_ack(kMss, window, false, rtt, now);
        }
        now += rtt;
    }
    EXPECT_FALSE(c.in_slow_start());
    EXPECT_GT(c.cwnd(), kPath);
    EXPECT_LT(c.cwnd(), 5 * kPath) << "without it the window would double until something is lost";
    EXPECT_EQ(c.ssthresh(), c.cwnd());
}

TEST(TcpCubic, SteadyDelayDoesNot) {
    Congestion c = make(cubic);
    Time now(kMs);
    for (int rounds = 0; rounds < 10; rounds++) {
        const std::uint32_t window = c.cwnd() / kMss * kMss;
        for (std::uint32_t done = 0; done < window; done += kMss) {
            c.on_rtt_sample(Usec(10'000 + (done / kMss) % 7 * 300));
            c.on_ack(kMss, window, false, Usec(10'000), now);
        }
        now += 10 * kMs;
    }
    EXPECT_TRUE(c.in_slow_start());
    EXPECT_GT(c.cwnd(), 5000 * kMss);
}

}  // namespace
