// SPDX-License-Identifier: BSD-2-Clause
// See histogram.h.
#include "tools/vma_trace/histogram.h"

#include <algorithm>
#include <cmath>

namespace vma_trace {

std::uint64_t Histogram::count() const noexcept {
    std::uint64_t n = 0;
    for (const std::uint64_t& bucket : buckets_) n += load(bucket);
    return n;
}

double Histogram::mean() const noexcept {
    const std::uint64_t n = count();
    return n == 0 ? 0 : static_cast<double>(load(sum_)) / static_cast<double>(n);
}

std::uint64_t Histogram::percentile(double part) const noexcept {
    const std::uint64_t n = count();
    if (n == 0) return 0;
    const auto wanted =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(part * static_cast<double>(n))));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; i++) {
        seen += load(buckets_[i]);
        if (seen >= wanted) return std::clamp(last_of(i), min(), std::max(min(), max()));
    }
    return max();
}

void Histogram::merge(const Histogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; i++) add(buckets_[i], load(other.buckets_[i]));
    add(sum_, load(other.sum_));
    raise(max_, load(other.max_));
    raise(min_complement_, load(other.min_complement_));
}

}  // namespace vma_trace
