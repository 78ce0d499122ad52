// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "libvma/tcp/recovery/rtt.h"

namespace {

using vma::tcp::kSecond;
using vma::tcp::Nsec;
using vma::tcp::RttEstimator;
using vma::tcp::Time;
using vma::tcp::Usec;
using vma::tcp::WindowedMin;

Time at(int ns) { return Time(Nsec(static_cast<std::uint64_t>(ns))); }

TEST(TcpRtt, OneSecondBeforeTheFirstSample) {
    RttEstimator rtt;
    EXPECT_EQ(rtt.rto(), Usec(1'000'000));
    EXPECT_EQ(rtt.srtt(), Usec(0));
    EXPECT_EQ(rtt.min_rtt(), Usec::max());
    EXPECT_FALSE(rtt.measured());
}

TEST(TcpRtt, FirstSampleSetsBoth) {
    RttEstimator rtt;
    rtt.sample(Usec(300'000), at(0));
    EXPECT_EQ(rtt.srtt(), Usec(300'000));
    EXPECT_EQ(rtt.rttvar(), Usec(150'000));
    EXPECT_EQ(rtt.rto(), Usec(900'000));
}

TEST(TcpRtt, TwoHundredMillisecondsAboveAShortRoundTrip) {
    RttEstimator rtt;
    for (int i = 0; i < 100; i++) rtt.sample(Usec(40), at(i));
    EXPECT_EQ(rtt.srtt(), Usec(40));
    EXPECT_EQ(rtt.rto(), Usec(200'040));
    rtt.sample(Usec(0), at(200));
    EXPECT_EQ(rtt.latest(), Usec(1));
}

TEST(TcpRtt, FollowsTheFormulas) {
    RttEstimator rtt;
    std::mt19937 random(1);
    double srtt = 0, rttvar = 0;
    for (int i = 0; i < 5000; i++) {
        const std::uint32_t r = 1000 + random() % 400'000;
        if (i == 0) {
            srtt = r;
            rttvar = r / 2.0;
        } else {
            rttvar = 0.75 * rttvar + 0.25 * std::abs(srtt - r);
            srtt = 0.875 * srtt + 0.125 * r;
        }
        rtt.sample(Usec(r), at(i));
        ASSERT_NEAR(rtt.srtt().count(), srtt, 3) << i;
        ASSERT_NEAR(rtt.rttvar().count(), rttvar, 5) << i;
        ASSERT_NEAR(rtt.rto().count(), srtt + std::max(4 * rttvar, 200'000.0), 30) << i;
    }
}

TEST(TcpRtt, BackoffDoublesUpToTwoMinutesAndEndsWithASample) {
    RttEstimator rtt;
    rtt.sample(Usec(100'000), at(0));
    const Usec rto = rtt.rto();
    for (unsigned i = 1; i <= 5; i++) {
        rtt.backoff();
        EXPECT_EQ(rtt.rto(), rto * (1u << i));
        EXPECT_EQ(rtt.backoffs(), i);
    }
    for (int i = 0; i < 1000; i++) rtt.backoff();
    EXPECT_EQ(rtt.rto(), Usec(120'000'000));
    rtt.sample(Usec(100'000), at(1));
    EXPECT_EQ(rtt.backoffs(), 0u);
    EXPECT_LE(rtt.rto(), rto);
}

TEST(TcpRtt, RepeatedSynWithoutSampleMeansThreeSeconds) {
    RttEstimator rtt;
    rtt.backoff();
    EXPECT_EQ(rtt.rto(), Usec(2'000'000));
    rtt.handshake_without_sample();
    EXPECT_EQ(rtt.rto(), Usec(3'000'000));
    rtt.sample(Usec(50'000), at(0));
    EXPECT_EQ(rtt.rto(), Usec(250'000));
    rtt.handshake_without_sample();
    EXPECT_EQ(rtt.rto(), Usec(250'000)) << "a timestamp has given one";
}

TEST(TcpRtt, AbsurdSamplesDoNotOverflow) {
    RttEstimator rtt;
    for (int i = 0; i < 50; i++) rtt.sample(Usec(i % 2 == 0 ? UINT32_MAX : 1), at(i));
    EXPECT_LE(rtt.rto(), Usec(120'000'000));
    EXPECT_LE(rtt.srtt(), Usec(120'000'000));
    EXPECT_EQ(rtt.min_rtt(), Usec(1));
}

// The window's minimum: never below the true one, and never something that is older than the window.
TEST(TcpRtt, MinimumForgetsWhatIsOld) {
    std::mt19937 random(5);
    constexpr Nsec kWindow = 300 * kSecond;
    WindowedMin min(kWindow);
    std::deque<std::pair<Time, Usec>> samples;
    Time now(17 * kSecond);
    for (int i = 0; i < 20000; i++) {
        now += Nsec(random() % (2 * kSecond).count());
        const Usec value(100 + static_cast<std::uint32_t>(i / 4) + random() % 1000);
        min.add(value, now);
        samples.emplace_back(now, value);
        while (now - samples.front().first > kWindow) samples.pop_front();
        Usec lowest = Usec::max();
        bool present = false;
        for (const auto& [when, v] : samples) {
            lowest = std::min(lowest, v);
            present |= v == min.get();
        }
        ASSERT_GE(min.get(), lowest);
        ASSERT_TRUE(present) << i;
    }
}

}  // namespace
