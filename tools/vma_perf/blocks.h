// SPDX-License-Identifier: BSD-2-Clause
// The pieces of a run, for comparisons: at most kMost, however long the run is.
#pragma once

#include <vector>

#include "tools/vma_perf/result.h"

namespace vma_perf {

class Blocks {
  public:
    static constexpr std::size_t kMost = 128;
    static constexpr double kLength =
        0.02;  // seconds of a block, at least: enough round trips for its 99.9th percentile

    // With too many blocks, every other one goes, and from then on only every other new one is kept.
    void add(const Block& block) {
        if (skip_ > 0) {
            --skip_;
            return;
        }
        skip_ = every_ - 1;
        blocks_.push_back(block);
        if (blocks_.size() < kMost) return;
        for (std::size_t i = 0; i < kMost / 2; ++i) blocks_[i] = blocks_[2 * i];
        blocks_.resize(kMost / 2);
        every_ *= 2;
        skip_ = every_ - 1;
    }
    const std::vector<Block>& all() const noexcept { return blocks_; }

  private:
    std::vector<Block> blocks_;
    std::size_t every_ = 1;  // of the blocks that come, one is kept
    std::size_t skip_ = 0;
};

}  // namespace vma_perf
