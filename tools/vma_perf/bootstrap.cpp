// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace vma_perf {
namespace {

constexpr std::size_t kLeast = 3;  // pieces, for an interval

double take_median(std::vector<double>& values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

class Draws {
  public:
    explicit Draws(std::uint64_t seed) : random_(seed) {}
    double median_of(std::span<const double> values) {
        drawn_.resize(values.size());
        // The remainder of 64 random bits is uniform enough, and the same with every library.
        for (double& d : drawn_) d = values[random_() % values.size()];
        return take_median(drawn_);
    }

  private:
    std::mt19937_64 random_;
    std::vector<double> drawn_;
};

template <class Draw>
Interval interval(double ratio, const Resampling& resampling, Draw&& draw) {
    std::vector<double> ratios(resampling.count);
    for (double& r : ratios) r = draw();
    std::sort(ratios.begin(), ratios.end());
    const double outside = (1 - resampling.confidence / 100) / 2;
    const auto at = [&](double part) {
        return ratios[static_cast<std::size_t>(std::lround(part * static_cast<double>(ratios.size() - 1)))];
    };
    return {ratio, at(outside), at(1 - outside)};
}

}  // namespace

double median(std::span<const double> values) {
    std::vector<double> copy(values.begin(), values.end());
    return take_median(copy);
}

Interval ratio_of_medians(std::span<const double> a, std::span<const double> b,
                          const Resampling& resampling) {
    const double ratio = median(b) / median(a);
    if (a.size() < kLeast || b.size() < kLeast || resampling.count == 0) return {ratio, ratio, ratio};
    Draws draws(resampling.seed);
    return interval(ratio, resampling, [&] {
        const double of_a = draws.median_of(a);
        return draws.median_of(b) / of_a;
    });
}

Interval median_of_ratios(std::span<const double> ratios, const Resampling& resampling) {
    const double ratio = median(ratios);
    if (ratios.size() < kLeast || resampling.count == 0) return {ratio, ratio, ratio};
    Draws draws(resampling.seed);
    return interval(ratio, resampling, [&] { return draws.median_of(ratios); });
}

}  // namespace vma_perf
