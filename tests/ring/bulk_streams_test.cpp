// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/bulk_streams.h"

#include <gtest/gtest.h>

namespace vma::ring {
namespace {

TEST(BulkStreams, ThoseOfTwoPeriodsShare) {
    BulkStreams streams;
    const std::uint32_t whole = streams.share();
    streams.join(7);
    EXPECT_EQ(streams.share(), whole);
    for (int i = 0; i < 3; i++) streams.join(7);
    EXPECT_EQ(streams.share(), whole / 4);
    streams.join(8);  // the others may still come
    EXPECT_EQ(streams.share(), whole / 4);
    streams.join(9);
    streams.join(9);
    EXPECT_EQ(streams.share(), whole / 2);
    streams.join(11);  // nothing came for a whole period
    EXPECT_EQ(streams.share(), whole);
}

TEST(BulkStreams, ManyKeepASuperFrameEach) {
    BulkStreams streams;
    for (int i = 0; i < 10'000; i++) streams.join(1);
    EXPECT_EQ(streams.share(), 64u << 10);
}

}  // namespace
}  // namespace vma::ring
