// SPDX-License-Identifier: BSD-2-Clause
// Memory of the program's for packets (CMSG_VMA_IOCTL_USER_ALLOC of the extra API). The program hands over
// one region before there is a ring; the first ring keeps its packets there, further rings map their own.
//
// The library asks for the region in the program's own call, with nothing held: an allocator may do anything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace vma::ring {

class LentMemory {
  public:
    // Bytes that hold the packets of one ring, by the parameters. A device with larger buffers needs more.
    static std::size_t wanted() noexcept;
    // No ring has memory yet, and nothing was handed over.
    static bool in_time() noexcept { return state_.load(std::memory_order_acquire) == State::none; }
    // The memory stays the library's until the process ends. False: too late; it stays the program's.
    static bool hand_over(std::span<std::uint8_t> memory) noexcept;
    // The next ring's memory will be the program's.
    static bool there() noexcept { return state_.load(std::memory_order_acquire) == State::there; }
    // For the first ring: `length` bytes from a page's first one, not inherited by forked children. Null:
    // there is none, it is too small (the log says so), or it cannot be written. From then on it is too late.
    static std::uint8_t* take(std::size_t length) noexcept;

  private:
    enum class State : unsigned { none, writing, there, over };
    static constinit std::atomic<State> state_;
    static constinit std::span<std::uint8_t> memory_;  // from `there` on
};

}  // namespace vma::ring
