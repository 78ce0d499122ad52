// SPDX-License-Identifier: BSD-2-Clause
// Histogram, tracker of sequence numbers, sample queue, blocks: what a run is counted with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "tools/vma_perf/blocks.h"
#include "tools/vma_perf/latency.h"
#include "tools/vma_perf/recorder.h"
#include "tools/vma_perf/tracker.h"

namespace vma_perf {
namespace {

Distribution copy_of(const LatencyHistogram& histogram) {
    Distribution d;
    histogram.add_to(d);
    return d;
}

TEST(PerfHistogram, PercentilesAreThoseOfTheSortedSamples) {
    std::mt19937_64 random(7);
    std::lognormal_distribution<double> times(9, 1.2);
    LatencyHistogram histogram;
    std::vector<double> samples;
    for (int i = 0; i < 200000; ++i) {
        const auto ns = static_cast<std::int64_t>(times(random));
        histogram.add(ns);
        samples.push_back(static_cast<double>(ns));
    }
    std::sort(samples.begin(), samples.end());
    const Distribution d = copy_of(histogram);
    for (const double p : {1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999}) {
        const double exact =
            samples[static_cast<std::size_t>(std::ceil(p / 100 * static_cast<double>(samples.size()))) - 1];
        EXPECT_NEAR(d.percentile(p), exact, exact * 0.001 + 1) << p;
    }
    EXPECT_EQ(d.percentile(0), samples.front());
    EXPECT_EQ(d.percentile(100), samples.back());
    double sum = 0, squares = 0;
    for (const double s : samples) sum += s;
    const double average = sum / static_cast<double>(samples.size());
    for (const double s : samples) squares += (s - average) * (s - average);
    EXPECT_NEAR(d.average(), average, average * 1e-9);
    EXPECT_NEAR(d.deviation(), std::sqrt(squares / static_cast<double>(samples.size() - 1)), average * 1e-6);
}

TEST(PerfHistogram, FewSamples) {
    EXPECT_EQ(copy_of(LatencyHistogram()).percentile(50), 0);
    EXPECT_EQ(copy_of(LatencyHistogram()).max(), 0);
    LatencyHistogram one;
    one.add(5000);
    for (const double p : {0.0, 0.001, 50.0, 99.999, 100.0}) EXPECT_EQ(copy_of(one).percentile(p), 5000);
    EXPECT_EQ(copy_of(one).deviation(), 0);
    one.add(-3);
    EXPECT_EQ(copy_of(one).min(), 0);
}

TEST(PerfHistogram, DifferenceOfCopiesIsWhatCameBetween) {
    LatencyHistogram histogram;
    for (int i = 0; i < 100; ++i) histogram.add(1000);
    const Distribution before = copy_of(histogram);
    for (int i = 0; i < 10; ++i) histogram.add(2000);
    Distribution piece = copy_of(histogram);
    piece -= before;
    EXPECT_EQ(piece.count(), 10u);
    EXPECT_EQ(piece.percentile(50), 2000);
    EXPECT_EQ(piece.min(), 2000);
    EXPECT_EQ(piece.average(), 2000);
    Distribution sum = before;
    sum += piece;
    EXPECT_EQ(sum.count(), 110u);
    EXPECT_EQ(sum.percentile(95), 2000);
    EXPECT_EQ(sum.buckets().size(), 2u);
}

TEST(PerfTracker, OrderLossAndDuplicates) {
    Tracker t;
    using Kind = Tracker::Kind;
    EXPECT_EQ(t.note(0), Kind::in_order);
    EXPECT_EQ(t.note(1), Kind::in_order);
    EXPECT_EQ(t.note(5), Kind::in_order);  // 2 to 4 are missing
    EXPECT_EQ(t.note(3), Kind::reordered);
    EXPECT_EQ(t.note(3), Kind::duplicate);
    EXPECT_EQ(t.note(5), Kind::duplicate);
    EXPECT_EQ(t.note(0), Kind::duplicate);
    EXPECT_EQ(t.next(), 6u);
    EXPECT_EQ(t.note(1'000'000), Kind::in_order);
    EXPECT_EQ(t.note(999'999), Kind::reordered);
    EXPECT_EQ(t.note(4), Kind::reordered);  // too old to be known
}

// Against a set, with jumps of all sizes.
TEST(PerfTracker, AgreesWithASet) {
    std::mt19937_64 random(3);
    Tracker t;
    std::set<std::uint64_t> seen;
    std::uint64_t highest = 0;
    for (int i = 0; i < 200000; ++i) {
        const std::uint64_t jump = random() % 100 == 0 ? random() % 3000 : random() % 3;
        const std::uint64_t n =
            random() % 4 == 0 && highest > 15000 ? highest - random() % 15000 : highest + jump;
        const bool known = !seen.insert(n).second;
        const auto expected = known          ? Tracker::Kind::duplicate
                              : n >= highest ? Tracker::Kind::in_order
                                             : Tracker::Kind::reordered;
        ASSERT_EQ(t.note(n), expected) << n << " of " << highest;
        highest = std::max(highest, n);
    }
}

TEST(PerfSampleQueue, FullMeansDroppedAndCounted) {
    SampleQueue queue(4);
    for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(queue.push({.sequence = i}), i < 4);
    EXPECT_EQ(queue.dropped(), 2u);
    std::vector<std::uint64_t> got;
    queue.drain([&](const Sample& s) { got.push_back(s.sequence); });
    EXPECT_EQ(got, (std::vector<std::uint64_t>{0, 1, 2, 3}));
    EXPECT_TRUE(queue.push({.sequence = 9}));
    queue.drain([&](const Sample& s) { got.push_back(s.sequence); });
    EXPECT_EQ(got.back(), 9u);
}

TEST(PerfBlocks, NeverMoreThanTheyMayBeAndSpreadOverTheRun) {
    Blocks blocks;
    for (int i = 0; i < 100000; ++i) {
        blocks.add({.received_per_s = static_cast<double>(i)});
        ASSERT_LE(blocks.all().size(), Blocks::kMost);
    }
    EXPECT_GE(blocks.all().size(), Blocks::kMost / 2);
    EXPECT_LT(blocks.all().front().received_per_s, 1);
    EXPECT_GT(blocks.all().back().received_per_s, 95000);
    const auto earlier = [](const Block& a, const Block& b) { return a.received_per_s < b.received_per_s; };
    EXPECT_TRUE(std::is_sorted(blocks.all().begin(), blocks.all().end(), earlier));
}

}  // namespace
}  // namespace vma_perf
