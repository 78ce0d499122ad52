// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/moderation.h"

#include <gtest/gtest.h>

namespace {

using vma::clock::Msec;
using vma::clock::Nsec;
using vma::clock::Usec;
using vma::ring::Moderation;
using vma::ring::ModerationConfig;

constexpr Nsec kSecond{1'000'000'000};
constexpr ModerationConfig kAdaptive{.enabled = true,
                                     .count = 48,
                                     .period = Usec(50),
                                     .max_count = 560,
                                     .max_period = Usec(250),
                                     .interval = Msec(250),
                                     .rate = 5000};

// So many wake-ups a second for a second, each with so many frames.
struct Load {
    Moderation& moderation;
    vma::clock::Time now{kSecond};
    std::uint64_t frames = 0;
    void run(std::uint64_t rate, std::uint64_t frames_each) {
        for (std::uint64_t i = 0; i < rate; i++) {
            now += kSecond / rate;
            frames += frames_each;
            moderation.interrupt(frames, now);
        }
    }
};

TEST(Moderation, Disabled) {
    Moderation m({.enabled = false, .count = 10, .period = Usec(100), .interval = Msec(0)});
    Load{m}.run(100'000, 10);
    EXPECT_EQ(m.hold(), Nsec(0));
    EXPECT_EQ(m.received(), 100'000u);
}

TEST(Moderation, FixedIsAsConfigured) {
    Moderation m({.enabled = true, .count = 10, .period = Usec(100), .interval = Msec(0)});
    EXPECT_EQ(m.hold(), Nsec(100'000));
    // 10 frames come in less than the period: 9 more at a million a second.
    Load{m}.run(100'000, 10);
    EXPECT_EQ(m.count(), 10u);
    EXPECT_EQ(m.period(), Usec(100));
    EXPECT_NEAR(static_cast<double>(m.hold().count()), 9000, 100);
}

TEST(Moderation, NothingIsHeldBackAtLowRates) {
    Moderation m(kAdaptive);
    EXPECT_EQ(m.hold(), Nsec(0));
    Load{m}.run(4000, 1);
    EXPECT_EQ(m.hold(), Nsec(0));
    EXPECT_EQ(m.count(), 0u);
}

TEST(Moderation, AimsAtTheRate) {
    Moderation m(kAdaptive);
    Load load{m};
    load.run(50'000, 1);
    // Ten frames for each wake-up, which is 200 us less what one frame takes.
    EXPECT_NEAR(m.count(), 10, 1);
    EXPECT_NEAR(m.period().count(), 180, 2);
    EXPECT_GT(m.hold(), Nsec(0));
    // With that, there are 5000 wake-ups a second of 10 frames each; that is no reason to stop.
    load.run(5000, 10);
    EXPECT_NEAR(m.count(), 10, 1);
    EXPECT_GT(m.hold(), Nsec(0));
    load.run(1000, 2);
    EXPECT_EQ(m.hold(), Nsec(0));
}

TEST(Moderation, HasLimits) {
    Moderation m(
        {.enabled = true, .max_count = 30, .max_period = Usec(40), .interval = Msec(250), .rate = 100});
    Load{m}.run(100'000, 10);
    EXPECT_EQ(m.count(), 30u);
    EXPECT_EQ(m.period(), Usec(40));
    EXPECT_LE(m.hold(), Nsec(40'000));
}

TEST(Moderation, APauseSaysThatTheRateIsLow) {
    Moderation m(kAdaptive);
    Load load{m};
    load.run(50'000, 1);
    EXPECT_GT(m.hold(), Nsec(0));
    load.now += 60 * kSecond;
    load.moderation.interrupt(++load.frames, load.now);
    EXPECT_EQ(m.hold(), Nsec(0));
}

}  // namespace
