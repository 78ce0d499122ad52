// SPDX-License-Identifier: BSD-2-Clause
// How often each duration occurred: buckets that grow with the value, 32 to a power of two, so a percentile
// is off by 3 % at most.
//
// One thread at a time adds, any thread may read meanwhile: words are read and written whole, and what is
// read may be one value old. Zeroed memory is an empty histogram, and adding allocates nothing.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "libvma/stats/counter.h"

namespace vma_trace {

using vma::stats::add;
using vma::stats::add_shared;
using vma::stats::load;
using vma::stats::raise;
using vma::stats::store;

class Histogram {
  public:
    void put(std::uint64_t value) noexcept {
        add(buckets_[bucket_of(value)], 1);
        add(sum_, value);
        raise(max_, value);
        // Kept as its complement, so that zero means none yet.
        raise(min_complement_, ~value);
    }
    std::uint64_t count() const noexcept;
    std::uint64_t min() const noexcept {
        return load(max_) == 0 && load(min_complement_) == 0 ? 0 : ~load(min_complement_);
    }
    std::uint64_t max() const noexcept { return load(max_); }
    double mean() const noexcept;
    // The smallest value that at least `part` (0 to 1) of all values do not exceed, within a bucket's width;
    // 0 without values.
    std::uint64_t percentile(double part) const noexcept;
    // Adds what `other` counted.
    void merge(const Histogram& other) noexcept;

  private:
    static constexpr unsigned kSubBits = 5, kSub = 1u << kSubBits;
    static constexpr unsigned kTopBit = 47;  // longer ones, some ten hours in ticks, share the last bucket
    static constexpr std::size_t kBuckets = (kTopBit - kSubBits + 2) * kSub;

    static constexpr std::size_t bucket_of(std::uint64_t value) noexcept {
        if (value >> (kTopBit + 1) != 0) [[unlikely]]
            return kBuckets - 1;
        // Without a branch for values below kSub, which have a bucket each. Written as an exclusive or, this
        // is one instruction.
        const unsigned top = 63u ^ static_cast<unsigned>(std::countl_zero(value | kSub));
        const unsigned shift = top - kSubBits;
        return shift * kSub + (value >> shift);
    }
    // The largest value of a bucket.
    static constexpr std::uint64_t last_of(std::size_t bucket) noexcept {
        if (bucket < kSub) return bucket;
        const unsigned shift = static_cast<unsigned>(bucket / kSub) - 1;
        return ((std::uint64_t{kSub} + bucket % kSub + 1) << shift) - 1;
    }

    std::array<std::uint64_t, kBuckets> buckets_{};
    std::uint64_t sum_ = 0, max_ = 0, min_complement_ = 0;
};

}  // namespace vma_trace
