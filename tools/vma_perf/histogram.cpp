// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vma_perf {
namespace {

constexpr std::uint64_t kHalf = 1u << kHalfBits;
constexpr std::uint64_t kLargest = (std::uint64_t{1} << kMaxBits) - 1;

// Powers of two that a bucket's value is shifted by.
unsigned shift_of(std::size_t bucket) noexcept {
    return bucket < 2 * kHalf ? 0 : static_cast<unsigned>(bucket >> kHalfBits) - 1;
}

}  // namespace

std::size_t bucket_of(std::uint64_t ns) noexcept {
    const std::uint64_t value = std::min(ns, kLargest);
    if (value < 2 * kHalf) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kHalfBits - 1;
    return (std::size_t{shift} << kHalfBits) + (value >> shift);
}

std::uint64_t bucket_low(std::size_t bucket) noexcept {
    const unsigned shift = shift_of(bucket);
    return (bucket - (std::size_t{shift} << kHalfBits)) << shift;
}

double bucket_middle(std::size_t bucket) noexcept {
    const std::uint64_t width = std::uint64_t{1} << shift_of(bucket);
    return static_cast<double>(bucket_low(bucket)) + static_cast<double>(width - 1) / 2;
}

double Distribution::deviation() const noexcept {
    if (count_ < 2) return 0;
    const double n = static_cast<double>(count_);
    return std::sqrt(std::max(0.0, (squares_ - sum_ * sum_ / n) / (n - 1)));
}

double Distribution::min() const noexcept {
    if (count_ == 0) return 0;
    if (min_ >= 0) return min_;
    const auto first = std::find_if(counts_.begin(), counts_.end(), [](std::uint64_t c) { return c != 0; });
    return bucket_middle(static_cast<std::size_t>(first - counts_.begin()));
}

double Distribution::max() const noexcept {
    if (count_ == 0) return 0;
    if (max_ >= 0) return max_;
    const auto last = std::find_if(counts_.rbegin(), counts_.rend(), [](std::uint64_t c) { return c != 0; });
    return bucket_middle(static_cast<std::size_t>(counts_.rend() - last) - 1);
}

double Distribution::percentile(double percent) const noexcept {
    if (count_ == 0) return 0;
    if (percent <= 0) return min();
    if (percent >= 100) return max();
    // The smallest value so that at least this many samples are not above it.
    const auto rank = static_cast<std::uint64_t>(
        std::max(1.0, std::ceil(percent / 100 * static_cast<double>(count_) - 1e-9)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
        seen += counts_[i];
        if (seen >= rank) return std::clamp(bucket_middle(i), min(), max());
    }
    return max();
}

std::vector<std::pair<double, std::uint64_t>> Distribution::buckets() const {
    std::vector<std::pair<double, std::uint64_t>> result;
    for (std::size_t i = 0; i < counts_.size(); ++i)
        if (counts_[i] != 0) result.emplace_back(bucket_middle(i), counts_[i]);
    return result;
}

Distribution& Distribution::operator+=(const Distribution& other) noexcept {
    if (other.count_ == 0) return *this;
    const bool empty = count_ == 0;
    const double low = min(), high = max(), other_low = other.min(), other_high = other.max();
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    squares_ += other.squares_;
    min_ = empty ? other_low : std::min(low, other_low);
    max_ = empty ? other_high : std::max(high, other_high);
    return *this;
}

Distribution& Distribution::operator-=(const Distribution& other) noexcept {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] -= other.counts_[i];
    count_ -= other.count_;
    sum_ -= other.sum_;
    squares_ -= other.squares_;
    min_ = max_ = -1;
    return *this;
}

void Histogram::add_to(Distribution& to) const noexcept {
    Distribution copy;
    for (std::size_t i = 0; i < kBuckets; ++i) {
        copy.counts_[i] = counts_[i].load(std::memory_order_relaxed);
        copy.count_ += copy.counts_[i];
    }
    if (copy.count_ == 0) return;
    copy.sum_ = sum_.load(std::memory_order_relaxed);
    copy.squares_ = squares_.load(std::memory_order_relaxed);
    copy.min_ = static_cast<double>(std::min(min_.load(std::memory_order_relaxed), kLargest));
    copy.max_ = static_cast<double>(max_.load(std::memory_order_relaxed));
    to += copy;
}

}  // namespace vma_perf
