// SPDX-License-Identifier: BSD-2-Clause
// A log-linear histogram: it counts values in constant memory, however many there are.
//
// Up to 2^(SubBits + 1) each value has a bucket of its own. Above, each power of two is divided into
// 2^SubBits buckets, so a percentile is off by one part in 2^SubBits at most.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "libvma/stats/counter.h"

namespace tools {

// Which bucket counts a value. Values of more than MaxBits bits share the last bucket.
template <unsigned SubBits, unsigned MaxBits>
struct LogBuckets {
    static constexpr std::uint64_t kSub = std::uint64_t{1} << SubBits;
    static constexpr std::uint64_t kLargest = (std::uint64_t{1} << MaxBits) - 1;
    static constexpr std::size_t kCount = std::size_t{MaxBits - SubBits + 1} << SubBits;

    static constexpr std::size_t of(std::uint64_t value) noexcept {
        if (value > kLargest) [[unlikely]]
            return kCount - 1;
        // Values below kSub need no branch. Written as an exclusive or, `top` is one instruction.
        const unsigned top = 63u ^ static_cast<unsigned>(std::countl_zero(value | kSub));
        const unsigned shift = top - SubBits;
        return shift * kSub + (value >> shift);
    }
    // The smallest and the largest value of a bucket, and their middle.
    static constexpr std::uint64_t first(std::size_t bucket) noexcept {
        const unsigned shift = shift_of(bucket);
        return (bucket - shift * kSub) << shift;
    }
    static constexpr std::uint64_t last(std::size_t bucket) noexcept {
        return first(bucket) + (std::uint64_t{1} << shift_of(bucket)) - 1;
    }
    static constexpr double middle(std::size_t bucket) noexcept {
        return static_cast<double>(first(bucket)) + static_cast<double>(last(bucket) - first(bucket)) / 2;
    }
    // The bucket of the smallest value that at least `part` (0 to 1) of `count` values do not exceed.
    // `at(bucket)` is the number of values in a bucket. kCount: the buckets hold fewer values.
    template <class At>
    static std::size_t of_part(double part, std::uint64_t count, At&& at) noexcept {
        // A product such as .999 * 1000 may come out a little above the whole number.
        const auto rank =
            static_cast<std::uint64_t>(std::max(1.0, std::ceil(part * static_cast<double>(count) - 1e-9)));
        std::uint64_t seen = 0;
        for (std::size_t bucket = 0; bucket < kCount; ++bucket) {
            seen += at(bucket);
            if (seen >= rank) return bucket;
        }
        return kCount;
    }

  private:
    static constexpr unsigned shift_of(std::size_t bucket) noexcept {
        return bucket < 2 * kSub ? 0 : static_cast<unsigned>(bucket >> SubBits) - 1;
    }
};

// One thread at a time adds; any thread may read meanwhile. Each word is read and written whole, so a reader
// is one value behind at most. Zeroed memory is an empty histogram, and adding allocates nothing.
template <class BucketsType>
class Histogram {
  public:
    using Buckets = BucketsType;

    void put(std::uint64_t value) noexcept {
        vma::stats::add(counts_[Buckets::of(value)], 1);
        vma::stats::add(sum_, value);
        vma::stats::raise(max_, value);
        // Kept as its complement, so that zero means that no value came.
        vma::stats::raise(min_complement_, ~value);
    }

    // The number of values in a bucket.
    std::uint64_t at(std::size_t bucket) const noexcept { return vma::stats::load(counts_[bucket]); }
    std::uint64_t count() const noexcept {
        std::uint64_t n = 0;
        for (std::size_t bucket = 0; bucket < Buckets::kCount; ++bucket) n += at(bucket);
        return n;
    }
    std::uint64_t sum() const noexcept { return vma::stats::load(sum_); }
    // The extremes are exact; 0 without values.
    std::uint64_t min() const noexcept {
        const std::uint64_t complement = vma::stats::load(min_complement_);
        return max() == 0 && complement == 0 ? 0 : ~complement;
    }
    std::uint64_t max() const noexcept { return vma::stats::load(max_); }
    double mean() const noexcept {
        const std::uint64_t n = count();
        return n == 0 ? 0 : static_cast<double>(sum()) / static_cast<double>(n);
    }
    // The smallest value that at least `part` (0 to 1) of all values do not exceed, rounded up to the end of
    // its bucket; 0 without values.
    std::uint64_t percentile(double part) const noexcept {
        const std::uint64_t n = count();
        if (n == 0) return 0;
        const std::size_t bucket =
            Buckets::of_part(part, n, [this](std::size_t number) { return at(number); });
        return bucket == Buckets::kCount ? max()
                                         : std::clamp(Buckets::last(bucket), min(), std::max(min(), max()));
    }
    // Adds what `other` counted.
    void merge(const Histogram& other) noexcept {
        for (std::size_t bucket = 0; bucket < Buckets::kCount; ++bucket)
            vma::stats::add(counts_[bucket], other.at(bucket));
        vma::stats::add(sum_, other.sum());
        vma::stats::raise(max_, other.max());
        vma::stats::raise(min_complement_, vma::stats::load(other.min_complement_));
    }

  private:
    std::array<std::uint64_t, Buckets::kCount> counts_{};
    std::uint64_t sum_ = 0, max_ = 0, min_complement_ = 0;
};

}  // namespace tools
