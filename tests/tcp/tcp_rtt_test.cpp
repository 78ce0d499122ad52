// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "libvma/tcp/recovery/rtt.h"

namespace {

using vma::tcp::RttEstimator;
using vma::tcp::WindowedMin;

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(TcpRtt, OneSecondBeforeTheFirstSample) {
    RttEstimator rtt;
    EXPECT_EQ(rtt.rto_us(), 1'000'000u);
    EXPECT_EQ(rtt.srtt_us(), 0u);
    EXPECT_EQ(rtt.min_rtt_us(), UINT32_MAX);
    EXPECT_FALSE(rtt.measured());
}

TEST(TcpRtt, FirstSampleSetsBoth) {
    RttEstimator rtt;
    rtt.sample(300'000, 0);
    EXPECT_EQ(rtt.srtt_us(), 300'000u);
    EXPECT_EQ(rtt.rttvar_us(), 150'000u);
    EXPECT_EQ(rtt.rto_us(), 900'000u);
}

TEST(TcpRtt, TwoHundredMillisecondsAboveAShortRoundTrip) {
    RttEstimator rtt;
    for (int i = 0; i < 100; i++) rtt.sample(40, static_cast<std::uint64_t>(i));
    EXPECT_EQ(rtt.srtt_us(), 40u);
    EXPECT_EQ(rtt.rto_us(), 200'040u);
    rtt.sample(0, 200);
    EXPECT_EQ(rtt.latest_us(), 1u);
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
        rtt.sample(r, static_cast<std::uint64_t>(i));
        ASSERT_NEAR(rtt.srtt_us(), srtt, 3) << i;
        ASSERT_NEAR(rtt.rttvar_us(), rttvar, 5) << i;
        ASSERT_NEAR(rtt.rto_us(), srtt + std::max(4 * rttvar, 200'000.0), 30) << i;
    }
}

TEST(TcpRtt, BackoffDoublesUpToTwoMinutesAndEndsWithASample) {
    RttEstimator rtt;
    rtt.sample(100'000, 0);
    const std::uint32_t rto = rtt.rto_us();
    for (unsigned i = 1; i <= 5; i++) {
        rtt.backoff();
        EXPECT_EQ(rtt.rto_us(), rto << i);
        EXPECT_EQ(rtt.backoffs(), i);
    }
    for (int i = 0; i < 1000; i++) rtt.backoff();
    EXPECT_EQ(rtt.rto_us(), 120'000'000u);
    rtt.sample(100'000, 1);
    EXPECT_EQ(rtt.backoffs(), 0u);
    EXPECT_LE(rtt.rto_us(), rto);
    rtt.backoff();
    rtt.end_backoff();
    EXPECT_LE(rtt.rto_us(), rto);
}

TEST(TcpRtt, RepeatedSynWithoutSampleMeansThreeSeconds) {
    RttEstimator rtt;
    rtt.backoff();
    EXPECT_EQ(rtt.rto_us(), 2'000'000u);
    rtt.handshake_without_sample();
    EXPECT_EQ(rtt.rto_us(), 3'000'000u);
    rtt.sample(50'000, 0);
    EXPECT_EQ(rtt.rto_us(), 250'000u);
    rtt.handshake_without_sample();
    EXPECT_EQ(rtt.rto_us(), 250'000u) << "a timestamp has given one";
}

TEST(TcpRtt, AbsurdSamplesDoNotOverflow) {
    RttEstimator rtt;
    for (int i = 0; i < 50; i++) rtt.sample(i % 2 == 0 ? UINT32_MAX : 1, static_cast<std::uint64_t>(i));
    EXPECT_LE(rtt.rto_us(), 120'000'000u);
    EXPECT_LE(rtt.srtt_us(), 120'000'000u);
    EXPECT_EQ(rtt.min_rtt_us(), 1u);
}

// The window's minimum: never below the true one, and never something that is older than the window.
TEST(TcpRtt, MinimumForgetsWhatIsOld) {
    std::mt19937 random(5);
    constexpr std::uint64_t kWindow = 300 * kSecond;
    WindowedMin min(kWindow);
    std::deque<std::pair<std::uint64_t, std::uint32_t>> samples;
    std::uint64_t now = 17 * kSecond;
    for (int i = 0; i < 20000; i++) {
        now += random() % (2 * kSecond);
        const std::uint32_t value = 100 + static_cast<std::uint32_t>(i / 4) + random() % 1000;
        min.add(value, now);
        samples.emplace_back(now, value);
        while (now - samples.front().first > kWindow) samples.pop_front();
        std::uint32_t lowest = UINT32_MAX;
        bool present = false;
        for (const auto& [at, v] : samples) {
            lowest = std::min(lowest, v);
            present |= v == min.get();
        }
        ASSERT_GE(min.get(), lowest);
        ASSERT_TRUE(present) << i;
    }
}

}  // namespace
