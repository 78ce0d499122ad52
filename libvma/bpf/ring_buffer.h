// SPDX-License-Identifier: BSD-2-Clause
// The reader of a BPF ring buffer (BPF_MAP_TYPE_RINGBUF).
#pragma once

#include <linux/bpf.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/bpf/map_memory.h"

namespace vma::bpf {

class RingBuffer {
  public:
    // Maps the buffer, whose records take `bytes`, a power of two and whole pages. False: errno says why.
    bool map(int fd, std::size_t bytes) noexcept {
        const auto page = static_cast<std::size_t>(getpagesize());
        mask_ = bytes - 1;
        // The kernel has the records twice, one behind the other, so that none has a seam.
        return consumer_.map(fd, page) && producer_.map(fd, page + 2 * bytes, false, page);
    }
    // Calls `take(record)` for each record that is there, for `most` at most. Returns how many it was. One
    // thread at a time. A record is valid within `take`.
    template <class F>
    unsigned take(unsigned most, F&& take) noexcept {
        auto consumed = std::atomic_ref(*consumer_.as<std::uint64_t>());
        const auto produced = std::atomic_ref(*producer_.as<std::uint64_t>());
        const auto* records = producer_.as<std::uint8_t>() + getpagesize();
        std::uint64_t at = consumed.load(std::memory_order_relaxed);
        unsigned taken = 0;
        while (taken < most && at != produced.load(std::memory_order_acquire)) {
            auto* head = reinterpret_cast<std::uint32_t*>(const_cast<std::uint8_t*>(records + (at & mask_)));
            const std::uint32_t word = std::atomic_ref(*head).load(std::memory_order_acquire);
            if ((word & BPF_RINGBUF_BUSY_BIT) != 0) break;  // its program is still writing
            const std::uint32_t length = word & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
            if ((word & BPF_RINGBUF_DISCARD_BIT) == 0)
                take(std::span(records + (at & mask_) + BPF_RINGBUF_HDR_SZ, length)), taken++;
            at += (std::uint64_t{length} + BPF_RINGBUF_HDR_SZ + 7) & ~std::uint64_t{7};
            // The kernel wakes the reader for a record that finds the buffer empty.
            consumed.store(at, std::memory_order_seq_cst);
        }
        return taken;
    }

  private:
    MapMemory consumer_, producer_;
    std::size_t mask_ = 0;
};

}  // namespace vma::bpf
