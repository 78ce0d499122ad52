// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/histogram.h"

#include <gtest/gtest.h>

#include <memory>

namespace tools {
namespace {

using Small = Histogram<LogBuckets<5, 48>>;

template <class Buckets>
void expect_each_value_once() {
    std::uint64_t expected = 0;
    for (std::size_t b = 0; b < Buckets::kCount; ++b) {
        ASSERT_EQ(Buckets::first(b), expected);
        ASSERT_EQ(Buckets::of(expected), b);
        ASSERT_EQ(Buckets::of(Buckets::last(b)), b);
        ASSERT_EQ(Buckets::middle(b),
                  (static_cast<double>(expected) + static_cast<double>(Buckets::last(b))) / 2);
        expected = Buckets::last(b) + 1;
    }
    EXPECT_EQ(expected, Buckets::kLargest + 1);
    EXPECT_EQ(Buckets::of(Buckets::kLargest), Buckets::kCount - 1);
    EXPECT_EQ(Buckets::of(UINT64_MAX), Buckets::kCount - 1);
}

TEST(CommonHistogram, BucketsCoverEveryValueOnce) {
    expect_each_value_once<LogBuckets<10, 36>>();
    expect_each_value_once<LogBuckets<5, 48>>();
}

TEST(CommonHistogram, FindsTheBucketOfAPart) {
    using Buckets = LogBuckets<10, 36>;
    auto values = std::make_unique<Histogram<Buckets>>();
    for (std::uint64_t v = 1; v <= 1000; ++v) values->put(v);
    const auto of_part = [&](double part, std::uint64_t count) {
        return Buckets::of_part(part, count, [&](std::size_t b) { return values->at(b); });
    };
    EXPECT_EQ(of_part(0, 1000), 1u);
    EXPECT_EQ(of_part(.5, 1000), 500u);
    EXPECT_EQ(of_part(.999, 1000), 999u);  // the product is a little above 999 as a double, or below
    EXPECT_EQ(of_part(1, 1000), 1000u);
    EXPECT_EQ(of_part(1, 1001), Buckets::kCount);  // one value more than there are
}

TEST(CommonHistogram, KnowsPercentilesWithinABucket) {
    Small h;
    EXPECT_EQ(h.percentile(.5), 0u);
    for (std::uint64_t v = 1; v <= 10000; v++) h.put(v);
    EXPECT_EQ(h.count(), 10000u);
    EXPECT_EQ(h.min(), 1u);
    EXPECT_EQ(h.max(), 10000u);
    EXPECT_DOUBLE_EQ(h.mean(), 5000.5);
    for (const double part : {.01, .5, .9, .99, .999})
        EXPECT_NEAR(static_cast<double>(h.percentile(part)), 10000 * part, 10000 * part * .04) << part;
    EXPECT_EQ(h.percentile(1), 10000u);
    EXPECT_EQ(h.percentile(0), 1u);
}

TEST(CommonHistogram, TakesExtremeValues) {
    Small h;
    h.put(0);
    EXPECT_EQ(h.min(), 0u);
    EXPECT_EQ(h.max(), 0u);
    h.put(~std::uint64_t{0});
    EXPECT_EQ(h.max(), ~std::uint64_t{0});
    EXPECT_EQ(h.min(), 0u);
    EXPECT_EQ(h.percentile(.5), 0u);
}

TEST(CommonHistogram, MergesWhatOthersCounted) {
    Small a, b;
    a.put(5);
    b.put(3);
    b.put(1000);
    a.merge(b);
    EXPECT_EQ(a.count(), 3u);
    EXPECT_EQ(a.min(), 3u);
    EXPECT_EQ(a.max(), 1000u);
}

}  // namespace
}  // namespace tools
