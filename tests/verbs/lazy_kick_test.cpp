// SPDX-License-Identifier: BSD-2-Clause
// The policy of lazy transmission, with invented times.
#include "libvma/verbs/lazy_kick.h"

#include <gtest/gtest.h>

namespace vma::verbs {
namespace {

constexpr std::uint64_t kGap = 100;

// Posts at `now` and kicks when told to, as a device does.
bool post(LazyKick& lazy, std::uint64_t now) {
    if (!lazy.posted(now)) return false;
    lazy.kicked(now);
    return true;
}

TEST(LazyKick, LoneFrameLeavesAtOnce) {
    LazyKick lazy(kGap, 1);
    EXPECT_TRUE(post(lazy, 1000));
    EXPECT_EQ(lazy.held(), 0u);
    EXPECT_TRUE(post(lazy, 1000 + kGap)) << "a gap as long as the limit is no burst";
    EXPECT_TRUE(post(lazy, 5000));
}

TEST(LazyKick, FirstFrameLeavesEvenWhenTheClockStartsAtZero) {
    LazyKick lazy(kGap, 1);
    EXPECT_TRUE(post(lazy, 0));
}

TEST(LazyKick, SecondFrameWithinTheGapIsHeld) {
    LazyKick lazy(kGap, 1);
    EXPECT_TRUE(post(lazy, 1000));
    EXPECT_FALSE(post(lazy, 1000 + kGap - 1));
    EXPECT_EQ(lazy.held(), 1u);
    EXPECT_FALSE(post(lazy, 1000 + kGap));
    EXPECT_EQ(lazy.held(), 2u);
}

TEST(LazyKick, HeldSinceIsTheOldestHeldFrame) {
    LazyKick lazy(kGap, 1);
    post(lazy, 1000);
    post(lazy, 1010);
    post(lazy, 1020);
    EXPECT_EQ(lazy.held_since(), 1010u);
    lazy.kicked(1030);
    EXPECT_EQ(lazy.held(), 0u);
    EXPECT_FALSE(post(lazy, 1040));
    EXPECT_EQ(lazy.held_since(), 1040u) << "what was kicked is not held any more";
}

TEST(LazyKick, FullBatchIsKicked) {
    LazyKick lazy(kGap, 1);
    std::uint64_t now = 1000;
    EXPECT_TRUE(post(lazy, now));
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 1; i < LazyKick::kMaxHeld; i++) {
            ASSERT_FALSE(post(lazy, ++now)) << round << " " << i;
            ASSERT_EQ(lazy.held(), i);
        }
        EXPECT_TRUE(post(lazy, ++now)) << "frame number " << LazyKick::kMaxHeld << " of the batch";
        EXPECT_EQ(lazy.held(), 0u);
    }
}

TEST(LazyKick, LateFrameTakesTheHeldOnesAlong) {
    LazyKick lazy(kGap, 1);
    post(lazy, 1000);
    post(lazy, 1010);
    EXPECT_TRUE(lazy.posted(1010 + kGap));
    EXPECT_EQ(lazy.held(), 2u) << "until the kick is done";
    lazy.kicked(1010 + kGap);
    EXPECT_EQ(lazy.held(), 0u);
}

TEST(LazyKick, TimeOfTheKickIsNoGap) {
    LazyKick lazy(kGap, 1);
    EXPECT_TRUE(lazy.posted(1000));
    lazy.kicked(1000 + 5 * kGap);
    EXPECT_FALSE(lazy.posted(1000 + 5 * kGap + 1)) << "the sender was busy kicking, it did not pause";
}

TEST(LazyKick, ReceivingEndsTheBurst) {
    LazyKick lazy(kGap, 1);
    EXPECT_TRUE(post(lazy, 1000));
    lazy.end_burst();
    EXPECT_TRUE(post(lazy, 1001)) << "a request after a receive waits for nobody";
    EXPECT_FALSE(post(lazy, 1002));
    lazy.kicked(1003);  // the receive call's flush
    lazy.end_burst();
    EXPECT_TRUE(post(lazy, 1004));
}

TEST(LazyKick, ABurstBeginsAfterSomeFrames) {
    LazyKick lazy(kGap);
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < LazyKick::kLoneFrames; i++) ASSERT_TRUE(post(lazy, 1000 + i)) << i;
        EXPECT_FALSE(post(lazy, 1000 + LazyKick::kLoneFrames));
        lazy.kicked(1000 + LazyKick::kLoneFrames);
        lazy.end_burst();
    }
}

TEST(LazyKick, OldHeldFramesLeaveWithTheNextOne) {
    LazyKick lazy(kGap, 1, 250);
    EXPECT_TRUE(post(lazy, 1000));
    EXPECT_FALSE(post(lazy, 1090));
    EXPECT_FALSE(post(lazy, 1180));
    EXPECT_FALSE(post(lazy, 1270));
    EXPECT_FALSE(post(lazy, 1339));
    EXPECT_TRUE(post(lazy, 1340)) << "the oldest is 250 old";
    EXPECT_FALSE(post(lazy, 1430));
    EXPECT_EQ(lazy.held_since(), 1430u);
}

TEST(LazyKick, ALongRunSurvivesAGap) {
    LazyKick lazy(kGap, 1);
    std::uint64_t now = 1000;
    for (unsigned i = 0; i < LazyKick::kLongRun; i++) post(lazy, ++now);
    lazy.kicked(now);
    EXPECT_FALSE(post(lazy, now += 4 * kGap - 1));
    EXPECT_TRUE(post(lazy, now += 4 * kGap)) << "four gaps end every run";
    EXPECT_FALSE(post(lazy, ++now));
    EXPECT_TRUE(post(lazy, now += kGap)) << "a new run is a short one";
}

// Posts `count` frames as one call does, from `now` on; true: what is left is kicked at its end.
bool post_together(LazyKick& lazy, std::uint64_t& now, unsigned count) {
    lazy.gather();
    for (unsigned i = 0; i < count; i++) post(lazy, ++now);
    const bool kick = lazy.end_gather(++now);
    if (kick) lazy.kicked(now);
    return kick;
}

TEST(LazyKick, ALoneCallsFramesLeaveWithIt) {
    LazyKick lazy(kGap);
    std::uint64_t now = 1000;
    EXPECT_TRUE(post_together(lazy, now, LazyKick::kLoneFrames + 8)) << "however many they are";
    now += kGap;
    EXPECT_TRUE(post_together(lazy, now, LazyKick::kLoneFrames + 8));
    lazy.end_burst();
    EXPECT_TRUE(post_together(lazy, now, LazyKick::kLoneFrames + 8)) << "the program received in between";
}

TEST(LazyKick, CallsThatFollowEachOtherShareKicks) {
    LazyKick lazy(kGap, 1, 250);
    std::uint64_t now = 1000;
    EXPECT_TRUE(post_together(lazy, now, 10));
    EXPECT_FALSE(post_together(lazy, now, 10));
    EXPECT_EQ(lazy.held(), 10u);
    const std::uint64_t oldest = lazy.held_since();
    EXPECT_FALSE(post_together(lazy, now, 10));
    EXPECT_EQ(lazy.held(), 20u);
    EXPECT_FALSE(post_together(lazy, now, LazyKick::kMaxHeld - 10));
    EXPECT_EQ(lazy.held(), 10u) << "a full batch left in between";
    EXPECT_GT(lazy.held_since(), oldest);
}

TEST(LazyKick, ACallSeesThatHeldFramesAreOld) {
    LazyKick lazy(kGap, 1, 250);
    std::uint64_t now = 1000;
    EXPECT_TRUE(post_together(lazy, now, 10));
    EXPECT_FALSE(post_together(lazy, now, 3));
    lazy.gather();
    for (int i = 0; i < 3; i++) EXPECT_FALSE(post(lazy, now += kGap - 1));
    EXPECT_TRUE(lazy.end_gather(now)) << "the oldest is older than 250";
}

TEST(LazyKick, PingPongIsNeverHeld) {
    LazyKick lazy(kGap, 1);
    for (std::uint64_t now = 0; now < 1000; now += 3) {
        ASSERT_TRUE(post(lazy, now));
        lazy.end_burst();
    }
}

}  // namespace
}  // namespace vma::verbs
