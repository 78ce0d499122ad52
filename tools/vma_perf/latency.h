// SPDX-License-Identifier: BSD-2-Clause
// Latencies of a run: LatencyHistogram counts them while a thread measures, Distribution is a copy to
// calculate with.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tools/common/histogram.h"

namespace vma_perf {

// Nanoseconds, each known to 0.1 per cent. 230 KB hold everything up to 68 s.
using LatencyBuckets = tools::LogBuckets<10, 36>;

// A copy of a histogram, or a sum or difference of copies. Values in nanoseconds.
class Distribution {
  public:
    Distribution() : counts_(LatencyBuckets::kCount) {}

    std::uint64_t count() const noexcept { return count_; }
    double average() const noexcept { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
    double deviation() const noexcept;  // standard deviation
    double min() const noexcept;        // 0 when empty
    double max() const noexcept;
    // Value that `percent` per cent of the samples do not exceed; 0 when empty. 0 gives min(), 100 gives
    // max().
    double percentile(double percent) const noexcept;
    // Non-empty buckets: (middle, count), ascending.
    std::vector<std::pair<double, std::uint64_t>> buckets() const;

    Distribution& operator+=(const Distribution& other) noexcept;
    // `other` must be an earlier copy of the same histograms.
    Distribution& operator-=(const Distribution& other) noexcept;

  private:
    friend class LatencyHistogram;
    std::vector<std::uint64_t> counts_;
    std::uint64_t count_ = 0;
    double sum_ = 0, squares_ = 0;
    // Exact extremes. Those of a difference are unknown (negative): its buckets give them then.
    double min_ = -1, max_ = -1;
};

// One thread adds. Other threads may copy meanwhile: a copy holds each counter at about the same time, which
// is good enough for a running table.
class LatencyHistogram {
  public:
    // Negative times, which no steady clock gives, count as 0.
    void add(std::int64_t ns) noexcept {
        const std::uint64_t value = ns < 0 ? 0 : static_cast<std::uint64_t>(ns);
        values_->put(value);
        const double v = static_cast<double>(value);
        vma::stats::store(squares_, vma::stats::load(squares_) + v * v);
    }
    // Adds a copy to `to`. Any thread.
    void add_to(Distribution& to) const noexcept;

  private:
    std::unique_ptr<tools::Histogram<LatencyBuckets>> values_ =
        std::make_unique<tools::Histogram<LatencyBuckets>>();
    double squares_ = 0;  // sum of squares, for the deviation
};

}  // namespace vma_perf
