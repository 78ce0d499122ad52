// SPDX-License-Identifier: BSD-2-Clause
// How far a ratio of two measurements can be trusted: the percentile bootstrap. The bootstrap draws pieces of
// a measurement again and again, with replacement, and takes the ratio each time. The interval holds the
// middle part of the ratios.
#pragma once

#include <cstdint>
#include <span>

namespace vma_perf {

struct Interval {
    double ratio = 0;          // of the medians
    double low = 0, high = 0;  // equal to the ratio where there are too few pieces to say
};

struct Resampling {
    unsigned count = 2000;
    double confidence = 95;  // per cent
    std::uint64_t seed = 1;
};

double median(std::span<const double> values);  // 0 when empty
// median(b) / median(a), from pieces that were measured independently. Both have pieces; those of `a` are
// above 0.
Interval ratio_of_medians(std::span<const double> a, std::span<const double> b, const Resampling& resampling);
// Median of ratios that were each taken within a round.
Interval median_of_ratios(std::span<const double> ratios, const Resampling& resampling);

}  // namespace vma_perf
