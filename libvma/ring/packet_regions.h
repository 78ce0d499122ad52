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
#include "libvma/ring/send_buffer.h"

namespace vma::ring {

class PacketRegions {
  public:
    static constexpr unsigned kMost = 128;  // what is beyond has no number
    static constexpr unsigned kNone = kMost;

    // A place is the number of a memory, a bit for send buffers, and the descriptor's index.
    static constexpr unsigned kIndexBits = 20, kPlaceBits = 28;
    static constexpr std::uint64_t kNowhere = ~std::uint64_t{0}, kSends = std::uint64_t{1} << kIndexBits;
    static_assert(kMost == 1u << (kPlaceBits - kIndexBits - 1));

    // The memory of [base, base + length), and the descriptors of its buffers. Its number, or kNone.
    static unsigned add(const std::uint8_t* base, std::size_t length, std::span<RxBuffer> buffers,
                        std::span<SendBuffer> sends = {}) noexcept;
    // For a ring that was not finished, and tests.
    static void remove(unsigned number) noexcept;
    // `kind`: 0 or kSends. kNowhere: the memory has no number, or the index is too large.
    static std::uint64_t place_of(unsigned number, std::uint64_t index, std::uint64_t kind = 0) noexcept {
        if (number >= kMost || index >> kIndexBits != 0) return kNowhere;
        return std::uint64_t{number} << (kIndexBits + 1) | kind | index;
    }
    // A descriptor by its place; null: there is none.
    static RxBuffer* buffer(std::uint64_t place) noexcept {
        const Region* const r = (place & kSends) == 0 ? region_of(place) : nullptr;
        return r != nullptr ? one_of(r->buffers, r->count, place) : nullptr;
    }
    static SendBuffer* send_buffer(std::uint64_t place) noexcept {
        const Region* const r = (place & kSends) != 0 ? region_of(place) : nullptr;
        return r != nullptr ? one_of(r->sends, r->send_count, place) : nullptr;
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
        std::atomic<SendBuffer*> sends{nullptr};
        std::atomic<std::uint32_t> send_count{0};
        std::atomic<bool> taken{false};
    };
    static void clear(Region& region) noexcept;
    static const Region* region_of(std::uint64_t place) noexcept {
        return place >> kPlaceBits == 0 ? &regions_[place >> (kIndexBits + 1)] : nullptr;
    }
    template <class T>
    static T* one_of(const std::atomic<T*>& list, const std::atomic<std::uint32_t>& count,
                     std::uint64_t place) noexcept {
        T* const first = list.load(std::memory_order_acquire);
        const std::uint64_t index = place & (kSends - 1);
        return first != nullptr && index < count.load(std::memory_order_relaxed) ? first + index : nullptr;
    }

    static constinit Region regions_[kMost];
    static constinit std::atomic<unsigned> used_;  // regions at most so far
};

}  // namespace vma::ring
