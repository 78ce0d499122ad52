// SPDX-License-Identifier: BSD-2-Clause
// One received frame for several sinks, without copying it.
//
// Each sink gets a descriptor of its own (RxBuffer::Kind::share), with its own place in a queue and its own
// counters. All point to the same bytes. The frame's buffer counts them, and goes back to its ring with the
// last one. Descriptors come back from any thread over a lock-free list. They are memory of the class, which
// grows by blocks and never shrinks; sinks bound them, since each descriptor counts against SO_RCVBUF.
//
// A frame for one sink needs none of this, and costs nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "libvma/ring/rx_buffer.h"

namespace vma::ring {

class RxShares {
  public:
    // ---- with the ring's receive lock held ----
    // The caller, who owns `frame`, is about to share it; it uses the frame until end().
    static void begin(RxBuffer* frame) noexcept;
    // Another descriptor of the frame, the caller's to release(). Null: no memory.
    RxBuffer* share(RxBuffer* frame) noexcept;
    static void end(RxBuffer* frame) noexcept { drop(frame); }

    // Any thread.
    void release(RxBuffer* share) noexcept;

  private:
    static constexpr std::size_t kBlock = 128;  // descriptors made at a time
    static constexpr std::size_t kMaxBlocks = 16384;

    // What begin() and share() put into RxBuffer::user.
    struct Count {
        std::atomic<std::uint32_t> users;
    };
    struct Origin {
        RxBuffer* frame;
    };
    template <class T>
    static T& in(RxBuffer* b) noexcept {
        static_assert(sizeof(T) <= sizeof b->user);
        return *std::launder(reinterpret_cast<T*>(b->user));
    }
    static void drop(RxBuffer* frame) noexcept;
    bool grow() noexcept;

    RxBuffer* free_ = nullptr;
    std::vector<std::unique_ptr<RxBuffer[]>> blocks_;
    alignas(64) std::atomic<RxBuffer*> returned_{nullptr};
};

}  // namespace vma::ring
