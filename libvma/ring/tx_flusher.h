// SPDX-License-Identifier: BSD-2-Clause
// The thread that keeps lazy transmission's promise: the last frame of a burst leaves within 50 us even if
// the program makes no further call.
//
// While a burst is going on it wakes when the oldest held frame reaches its age limit. A running sender has
// usually sent the frame by then; after two idle milliseconds it sleeps on a futex, and the next burst pays
// one wake-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "libvma/runtime/lock.h"

namespace vma::ring {

class Ring;

class TxFlusher {
  public:
    static TxFlusher& instance() noexcept;

    void add(Ring* ring);
    void remove(Ring* ring) noexcept;
    // A frame has just been held back. Called for the first one of a batch.
    void held() noexcept {
        // Full fence: either the thread sees the held frame before it sleeps, or this sees that it sleeps.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_relaxed) != 0) wake();
    }
    // In a forked child: the thread and the rings are gone.
    void reset_in_child() noexcept;

  private:
    static void* run(void* self);
    void loop() noexcept;
    void wake() noexcept;

    std::atomic<std::uint32_t> asleep_{1};  // futex word; also 1 while there is no thread
    Lock lock_;
    std::vector<Ring*> rings_;
    bool started_ = false;
};

}  // namespace vma::ring
