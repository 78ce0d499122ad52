// SPDX-License-Identifier: BSD-2-Clause
// What came twice (RFC 2883): the block that the next ACK reports in front of its SACK blocks.
//
// One block for an ACK, and each is told once: the sender learns from it that a retransmission was needless.
#pragma once

#include "libvma/tcp/recovery/sack.h"
#include "libvma/tcp/sequence.h"

namespace vma::tcp {

class Duplicate {
  public:
    void set(SackBlock block) noexcept {
        block_ = block;
        due_ = true;
    }
    // More of the same segment: counts where it touches what is known already.
    void extend(SackBlock block) noexcept {
        if (!due_) return set(block);
        if (seq_before(block_.right, block.left) || seq_before(block.right, block_.left)) return;
        block_ = {seq_min(block_.left, block.left), seq_max(block_.right, block.right)};
    }
    bool due() const noexcept { return due_; }
    const SackBlock& block() const noexcept { return block_; }
    void told() noexcept { due_ = false; }

  private:
    SackBlock block_;
    bool due_ = false;
};

}  // namespace vma::tcp
