// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/bulk_streams.h"

#include <gtest/gtest.h>

namespace vma::ring {
namespace {

TEST(BulkStreams, ThoseOfTwoPeriodsShare) {
    BulkStreams streams;
    for (int i = 0; i < 8; i++) streams.join(7);
    const std::uint32_t eighth = streams.share();
    for (int i = 0; i < 8; i++) streams.join(7);
    EXPECT_EQ(streams.share(), eighth / 2);
    streams.join(8);  // the others may still come
    EXPECT_EQ(streams.share(), eighth / 2);
    for (int i = 0; i < 8; i++) streams.join(9);
    EXPECT_EQ(streams.share(), eighth);
    for (int i = 0; i < 8; i++) streams.join(11);  // nothing came for a whole period
    EXPECT_EQ(streams.share(), eighth);
}

// The windows together stay bounded; a few streams do not get more than a lone one.
TEST(BulkStreams, WindowsTogetherAreBounded) {
    BulkStreams streams;
    EXPECT_EQ(streams.share(), 512u << 10);
    for (std::uint32_t n = 1; n <= 32; n++) {
        streams.join(1);
        EXPECT_LE(streams.share(), 512u << 10);
        EXPECT_LE(streams.share() * n, 2048u << 10);
        if (n <= 8) {
            EXPECT_GE(streams.share(), 256u << 10);  // four super-frames
        }
    }
}

TEST(BulkStreams, ManyKeepASuperFrameEach) {
    BulkStreams streams;
    for (int i = 0; i < 10'000; i++) streams.join(1);
    EXPECT_EQ(streams.share(), 64u << 10);
}

}  // namespace
}  // namespace vma::ring
