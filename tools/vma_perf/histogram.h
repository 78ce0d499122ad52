// SPDX-License-Identifier: BSD-2-Clause
// Counting times in constant memory, whatever their number: a log-linear histogram.
//
// Up to 2048 ns each nanosecond has a bucket of its own; above, each power of two is divided into 1024
// buckets, so a value is known to 0.1 per cent. 230 KB hold everything up to a minute.
//
// Histogram is written by one thread and may be read by others meanwhile: counters are relaxed atomics, and a
// reader sees each of them at about the same time, which is good enough for a running table. Distribution is
// a copy to calculate with.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace vma_perf {

inline constexpr unsigned kHalfBits = 10;
inline constexpr unsigned kMaxBits = 36;  // longer times, more than 68 s, are counted as this long
inline constexpr std::size_t kBuckets = ((kMaxBits - kHalfBits - 1) + 2) << kHalfBits;

std::size_t bucket_of(std::uint64_t ns) noexcept;
// Smallest value of a bucket, and the one in its middle, ns.
std::uint64_t bucket_low(std::size_t bucket) noexcept;
double bucket_middle(std::size_t bucket) noexcept;

// A copy of a histogram, or a sum or difference of copies. Values in nanoseconds.
class Distribution {
  public:
    Distribution() : counts_(kBuckets) {}

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
    friend class Histogram;
    std::vector<std::uint64_t> counts_;
    std::uint64_t count_ = 0;
    double sum_ = 0, squares_ = 0;
    // Exact extremes; of a difference they are unknown (negative), and the buckets tell.
    double min_ = -1, max_ = -1;
};

class Histogram {
  public:
    Histogram() : counts_(std::make_unique<std::atomic<std::uint64_t>[]>(kBuckets)) {}

    // Single writer. Negative times, which no steady clock gives, count as 0.
    void add(std::int64_t ns) noexcept {
        const std::uint64_t value = ns < 0 ? 0 : static_cast<std::uint64_t>(ns);
        bump(counts_[bucket_of(value)], 1);
        const double v = static_cast<double>(value);
        sum_.store(sum_.load(std::memory_order_relaxed) + v, std::memory_order_relaxed);
        squares_.store(squares_.load(std::memory_order_relaxed) + v * v, std::memory_order_relaxed);
        if (value < min_.load(std::memory_order_relaxed)) min_.store(value, std::memory_order_relaxed);
        if (value > max_.load(std::memory_order_relaxed)) max_.store(value, std::memory_order_relaxed);
    }
    // Adds what is in here to `to`. Any thread.
    void add_to(Distribution& to) const noexcept;

    // Adds to a counter that only this thread writes; cheaper than fetch_add.
    static void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by) noexcept {
        counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }

  private:
    std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
    std::atomic<double> sum_{0}, squares_{0};
    std::atomic<std::uint64_t> min_{UINT64_MAX}, max_{0};
};

}  // namespace vma_perf
