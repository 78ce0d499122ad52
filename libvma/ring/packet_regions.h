// SPDX-License-Identifier: BSD-2-Clause
// All packet memory of the process, numbered: where a buffer is told by a number, not by a pointer, and
// where addresses are asked about. A reader takes no lock: what it finds stays, as rings are never destroyed.
// A forked child begins with none, as it does not inherit the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/ring/rx_buffer.h"

namespace vma::ring {

class PacketRegions {
  public:
    static constexpr unsigned kMost = 128;  // what is beyond has no number
    static constexpr unsigned kNone = kMost;

    // The memory of [base, base + length), and the descriptors of its receive buffers. Its number, or kNone.
    static unsigned add(const std::uint8_t* base, std::size_t length, std::span<RxBuffer> buffers) noexcept;
    // For a ring that was not finished, and tests.
    static void remove(unsigned number) noexcept;
    // A descriptor by the number of its memory and its place there; null: there is none.
    static RxBuffer* buffer(unsigned number, std::uint32_t index) noexcept {
        if (number >= kMost) return nullptr;
        const Region& r = regions_[number];
        RxBuffer* const first = r.buffers.load(std::memory_order_acquire);
        return first != nullptr && index < r.count.load(std::memory_order_relaxed) ? first + index : nullptr;
    }
    // Do all these bytes lie in the packet memory of one ring?
    static bool hold(const void* start, std::size_t length) noexcept {
        const auto from = reinterpret_cast<std::uintptr_t>(start);
        const unsigned used = used_.load(std::memory_order_acquire);
        for (unsigned i = 0; i < used; i++) {
            const std::uintptr_t begin = regions_[i].begin.load(std::memory_order_relaxed),
                                 end = regions_[i].end.load(std::memory_order_relaxed);
            if (from >= begin && from < end && length <= end - from) return true;
        }
        return false;
    }
    // In a forked child.
    static void renew() noexcept;

  private:
    struct Region {
        std::atomic<std::uintptr_t> begin{0}, end{0};
        std::atomic<RxBuffer*> buffers{nullptr};
        std::atomic<std::uint32_t> count{0};
        std::atomic<bool> taken{false};
    };
    static void clear(Region& region) noexcept;

    static constinit Region regions_[kMost];
    static constinit std::atomic<unsigned> used_;  // regions at most so far
};

}  // namespace vma::ring
