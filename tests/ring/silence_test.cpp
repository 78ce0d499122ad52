// SPDX-License-Identifier: BSD-2-Clause
// When is a device silent? Each look is a second.
#include "libvma/ring/silence.h"

#include <gtest/gtest.h>

#include <string>

namespace {

using vma::ring::Silence;

// The number of the look that finds it, of `count`; 0: none does.
template <class Seen>
unsigned found(Silence& silence, unsigned count, Seen&& seen) {
    for (unsigned i = 1; i <= count; i++)
        if (silence.look(seen(i)) != nullptr) return i;
    return 0;
}

TEST(Silence, IsNotWhereNothingIsToBeSaid) {
    Silence silence;
    EXPECT_EQ(found(silence, 1000, [](unsigned) { return Silence::Seen{}; }), 0u);
}

TEST(Silence, SendsThatStandForFiveSecondsAreOne) {
    Silence silence;
    const auto stands = [](unsigned) { return Silence::Seen{.sends_stand = true}; };
    EXPECT_EQ(found(silence, 4, stands), 0u);
    EXPECT_EQ(silence.look({}), nullptr);  // one went
    EXPECT_EQ(found(silence, 10, stands), 5u);
}

TEST(Silence, WithoutALinkNothingIsExpected) {
    Silence silence;
    EXPECT_EQ(found(silence, 100,
                    [](unsigned i) {
                        return Silence::Seen{.link = false, .sends_stand = true, .strays = 1000ull * i};
                    }),
              0u);
    // The strays of before do not count.
    EXPECT_EQ(silence.look({.strays = 100'001}), nullptr);
}

TEST(Silence, SegmentsThatOnlyTheKernelReceivesAreOne) {
    Silence silence;
    EXPECT_EQ(
        found(silence, 100, [](unsigned i) { return Silence::Seen{.frames = i, .strays = 1000ull * i}; }),
        0u);
    const auto deaf = [](unsigned i) {
        return Silence::Seen{.frames = 100, .strays = 100'000 + 1000ull * i};
    };
    EXPECT_EQ(found(silence, 100, deaf), 3u);
}

TEST(Silence, FewSegmentsAreNone) {
    Silence silence;
    EXPECT_EQ(found(silence, 1000, [](unsigned i) { return Silence::Seen{.strays = i < 31 ? i : 31}; }), 0u);
    EXPECT_NE(silence.look({.strays = 32}), nullptr);
}

}  // namespace
