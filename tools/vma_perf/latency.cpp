// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/latency.h"

#include <algorithm>
#include <cmath>

namespace vma_perf {

double Distribution::deviation() const noexcept {
    if (count_ < 2) return 0;
    const double n = static_cast<double>(count_);
    return std::sqrt(std::max(0.0, (squares_ - sum_ * sum_ / n) / (n - 1)));
}

double Distribution::min() const noexcept {
    if (count_ == 0) return 0;
    if (min_ >= 0) return min_;
    const auto first = std::find_if(counts_.begin(), counts_.end(), [](std::uint64_t c) { return c != 0; });
    return LatencyBuckets::middle(static_cast<std::size_t>(first - counts_.begin()));
}

double Distribution::max() const noexcept {
    if (count_ == 0) return 0;
    if (max_ >= 0) return max_;
    const auto last = std::find_if(counts_.rbegin(), counts_.rend(), [](std::uint64_t c) { return c != 0; });
    return LatencyBuckets::middle(static_cast<std::size_t>(counts_.rend() - last) - 1);
}

double Distribution::percentile(double percent) const noexcept {
    if (count_ == 0) return 0;
    if (percent <= 0) return min();
    if (percent >= 100) return max();
    const std::size_t bucket = LatencyBuckets::of_part(
        percent / 100, count_, [this](std::size_t number) { return counts_[number]; });
    return bucket == LatencyBuckets::kCount ? max()
                                            : std::clamp(LatencyBuckets::middle(bucket), min(), max());
}

std::vector<std::pair<double, std::uint64_t>> Distribution::buckets() const {
    std::vector<std::pair<double, std::uint64_t>> result;
    for (std::size_t i = 0; i < counts_.size(); ++i)
        if (counts_[i] != 0) result.emplace_back(LatencyBuckets::middle(i), counts_[i]);
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

void LatencyHistogram::add_to(Distribution& to) const noexcept {
    Distribution copy;
    for (std::size_t i = 0; i < LatencyBuckets::kCount; ++i) copy.count_ += copy.counts_[i] = values_->at(i);
    if (copy.count_ == 0) return;
    copy.sum_ = static_cast<double>(values_->sum());
    copy.squares_ = vma::stats::load(squares_);
    copy.min_ = static_cast<double>(std::min(values_->min(), LatencyBuckets::kLargest));
    copy.max_ = static_cast<double>(values_->max());
    to += copy;
}

}  // namespace vma_perf
