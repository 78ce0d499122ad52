// SPDX-License-Identifier: BSD-2-Clause
// The thread that keeps lazy transmission's promise: the last frame of a burst leaves even if the program
// makes no further call. It leaves within 50 us, or after a quarter of the time that the burst has gone on,
// at most 300 us.
//
// Each look takes a processor from the program, often the sender's. While a burst goes on the sender itself
// sees how old its held frames are. So the thread looks ever more rarely, until it finds frames that the
// sender has left. After two idle milliseconds it sleeps on a futex, and the next burst pays one wake-up.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "libvma/ring/tx_queue.h"
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
    LookAtHeld look(std::uint64_t now, std::uint64_t age) noexcept;

    std::atomic<std::uint32_t> asleep_{1};  // futex word; also 1 while there is no thread
    Lock lock_;
    std::vector<Ring*> rings_;
    bool started_ = false;
};

}  // namespace vma::ring
