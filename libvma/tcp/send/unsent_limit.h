// SPDX-License-Identifier: BSD-2-Clause
// TCP_NOTSENT_LOWAT for writes, as the kernel has it.
//
// The kernel's write queue consists of buffers. A new one begins only while less than the limit is unsent;
// one that has begun is filled. So more than the limit may be unsent, by less than a buffer. Here the queue
// has other pieces, and this class knows only where the kernel's last buffer would have begun. Values go in,
// room comes out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/sequence.h"

namespace vma::tcp {

class UnsentLimit {
  public:
    // Bytes that may be written. `goal`: a buffer's size; `unsent`: bytes not sent; `end`: the sequence
    // number of the next byte.
    std::uint32_t room(std::uint32_t limit, std::uint32_t goal, std::uint32_t unsent,
                       std::uint32_t end) const noexcept {
        const std::uint32_t rest = rest_of_last(goal, unsent, end);
        const std::uint32_t then = unsent + rest;
        // Bounded: a limit of nearly 4 GB is none.
        const std::uint32_t lack = then < limit ? std::min(limit - then, kMost) : 0;
        return rest + (lack + goal - 1) / goal * goal;
    }
    // `bytes` have been written behind `unsent` ones, from the sequence number `begin` on.
    void wrote(std::uint32_t goal, std::uint32_t unsent, std::uint32_t begin, std::uint32_t bytes) noexcept {
        const std::uint32_t rest = rest_of_last(goal, unsent, begin);
        if (bytes > rest) begun_ = begin + rest + (bytes - rest - 1) / goal * goal;
    }

  private:
    static constexpr std::uint32_t kMost = 1u << 30;

    // What the last buffer, of which some bytes are unsent, has still room for.
    std::uint32_t rest_of_last(std::uint32_t goal, std::uint32_t unsent, std::uint32_t end) const noexcept {
        if (unsent == 0) return 0;
        const std::uint32_t filled = std::min(unsent, end - begun_);
        return filled < goal ? goal - filled : 0;
    }

    std::uint32_t begun_ = 0;  // where the last buffer begins
};

}  // namespace vma::tcp
