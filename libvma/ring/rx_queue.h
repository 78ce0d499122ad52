// SPDX-License-Identifier: BSD-2-Clause
// The receive buffers of a ring, and their way: posted to the device, in a sink's hands, free.
//
// Receives are posted for what arrives, not for what the device's queue could hold. The device uses them in
// turn, so each posted buffer is one more that has left the caches when its turn comes. depth_ says how many
// are kept posted. It grows with what sockets expect, and when polls fall behind; it never shrinks.
//
// Buffers come back from any thread (release) over a lock-free list, and are posted again in batches.
//
// Locks: the caller holds the receive lock, except where "any thread" is said. The memory and the descriptors
// are PacketMemory's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libvma/ring/packet_memory.h"
#include "libvma/ring/ring_config.h"
#include "libvma/ring/ring_counters.h"
#include "libvma/ring/rx_buffer.h"
#include "libvma/ring/rx_shares.h"

namespace vma::ring {

class RxQueue {
  public:
    // Takes the receive chunks of `memory` for `ring`, and posts the first receives to `qp`. `max_depth`:
    // what the device's queue takes. `hint`: receives worth posting as long as little arrives, 0: max_depth.
    // `reserve`: buffers for lend(). Once. May throw std::bad_alloc.
    void open(Ring& ring, ibv_qp* qp, PacketMemory& memory, std::uint32_t max_depth, std::uint32_t hint,
              std::uint32_t reserve, const RingConfig& config);

    std::uint32_t total() const noexcept { return static_cast<std::uint32_t>(buffers_.size()); }
    RxBuffer& buffer(std::uint64_t number) noexcept { return buffers_[number]; }

    // ---- of a poll ----
    // The device filled `n` buffers; `full`: a poll could take no more.
    void taken(std::uint32_t n, bool full) noexcept {
        posted_ -= n;
        if (full)
            grow_if_behind(n);
        else
            full_batches_ = 0;
    }
    // What was taken has been delivered: posts what is missing.
    void replenish() noexcept {
        if (__builtin_expect(bulk_.load(std::memory_order_relaxed) != bulk_posted_, 0)) {
            bulk_posted_ = bulk_.load(std::memory_order_relaxed);
            deepen();
        }
        const bool shortage = posted_ < low_water();
        if (depth_ - posted_ >= post_batch_ || shortage) refill(shortage);
    }
    // A poll found nothing: the time to post what was taken. After a shortage there is no other: the queue
    // may be all but empty, and then nothing arrives that would fill it again.
    void replenish_idle() noexcept {
        if (depth_ - posted_ >= kIdlePost) refill(true);
        full_batches_ = 0;
    }
    // The last resort, if sinks keep datagrams in spite of should_copy(): less than a quarter of the queue
    // can stay filled.
    bool exhausted() noexcept {
        if (__builtin_expect(at_hand() >= low_water(), 1)) return false;
        take_returned();
        return at_hand() < low_water();
    }
    // Receives in the device: no more frames than these can wait there.
    std::uint32_t posted() const noexcept { return posted_; }
    // A chain that no sink has is free again.
    void recycle(RxBuffer* chain) noexcept {
        while (chain != nullptr) {
            RxBuffer* more = chain->more;
            free_one(chain);
            chain = more;
        }
    }

    // A free buffer, for a copy. Null: too few are left.
    RxBuffer* take() noexcept {
        if (exhausted()) return nullptr;
        if (free_.empty()) take_returned();
        if (free_.empty()) return nullptr;
        RxBuffer* b = &buffers_[free_.back()];
        free_.pop_back();
        return b;
    }

    // ---- as in Ring ----
    bool scarce() const noexcept { return at_hand() < scarce_; }
    bool should_copy(std::uint32_t held) noexcept {
        return __builtin_expect(held >= hold_limit_ || at_hand() < plenty_, 0) && still_short(held);
    }
    // `sinks`: how many share RingConfig::max_copied.
    RxBuffer* swap_for_copy(RxBuffer* frame, std::uint64_t queued, std::uint32_t sinks,
                            RxCounters& counters) noexcept;
    void expect(std::int64_t delta) noexcept;
    void expect_stream(bool more) noexcept;
    // Posts `receives` more for good: others take and return them.
    void post_for_others(std::uint32_t receives) noexcept;
    // Any thread.
    void expect_bulk(std::uint32_t window) noexcept {
        const std::uint32_t frames = std::min(window / kBulkFrame, kMostBulk);
        if (frames > bulk_.load(std::memory_order_relaxed)) bulk_.store(frames, std::memory_order_relaxed);
    }
    // Any thread.
    std::uint64_t copied_bytes() const noexcept { return copied_bytes_.load(std::memory_order_relaxed); }
    void count(BufferCounts& out) noexcept;
    RxShares& shares() noexcept { return shares_; }

    // ---- for RxBuffer::release(), any thread ----
    // Buffers from `first` to `last`, linked over `next`.
    void release(RxBuffer* first, RxBuffer* last) noexcept {
        RxBuffer* head = returned_.load(std::memory_order_relaxed);
        do {
            last->next = head;
        } while (!returned_.compare_exchange_weak(head, first, std::memory_order_release,
                                                  std::memory_order_relaxed));
    }
    void free_copy(RxBuffer* copy) noexcept;

    // ---- for RxBuffer::lend(), any thread ----
    // A quarter of the buffers at most: others receive into the rest. False: there are none left to lend.
    bool lend(std::uint32_t chunks) noexcept;
    void end_loan(std::uint32_t chunks) noexcept { lent_.fetch_sub(chunks, std::memory_order_relaxed); }
    std::uint32_t lent() const noexcept { return lent_.load(std::memory_order_relaxed); }
    // A copy of the datagram in memory of its own; null: no memory, or copies take up RingConfig::max_copied.
    RxBuffer* copy_of(const RxBuffer& frame) noexcept;

    // ---- for Recovery ----
    // Nothing is posted until resume().
    void suspend() noexcept { suspended_ = true; }
    bool suspended() const noexcept { return suspended_; }
    void resume() noexcept;
    // Receives that the device had and did not give back are free: their buffers are neither in use nor free.
    void reclaim() noexcept;

  private:
    static constexpr std::uint32_t kIdlePost = 8;  // receives worth posting while there is nothing else to do
    // Bytes of a window for each receive: the last chunk of a super-frame, and of each page of it, is not
    // full.
    static constexpr std::uint32_t kBulkFrame = 512;
    static constexpr std::uint32_t kMostBulk = 2048;  // receives

    static constexpr std::uint32_t kLentShare = 4;  // the program may keep this part of the buffers

    RxBuffer* make_copy(const RxBuffer& frame) noexcept;
    // Buffers that no sink has.
    std::size_t at_hand() const noexcept { return posted_ + free_.size(); }
    // Fewer receives in the device than this is a shortage: partial batches are posted, and sinks that kept
    // datagrams in spite of should_copy() get no more.
    std::uint32_t low_water() const noexcept { return depth_ / 4; }
    void free_one(RxBuffer* b) noexcept {
        b->more = nullptr;
        b->length = 0;
        free_.push_back(static_cast<std::uint32_t>(b - buffers_.data()));
    }
    void take_returned() noexcept;
    void post_free(bool all) noexcept;
    // Both: takes back what was released, and posts it; `all`: also less than a batch.
    void refill(bool all) noexcept;
    bool still_short(std::uint32_t held) noexcept;
    void grow_if_behind(std::uint32_t batch) noexcept;
    void deepen() noexcept;

    // What a frame touches.
    std::span<RxBuffer> buffers_;      // the ring's, in PacketMemory
    std::vector<std::uint32_t> free_;  // numbers of buffers to post; the last one was in use last
    std::uint32_t posted_ = 0;
    std::uint32_t depth_ = 0;         // receives to keep posted; grows with demand up to the device's queue
    std::uint32_t post_batch_ = 1;    // receives posted at a time
    std::uint32_t hold_limit_ = 0;    // datagrams that one sink may keep in buffers
    std::uint32_t plenty_ = 0;        // buffers not held by sinks; with fewer, no datagram stays in one
    std::uint32_t scarce_ = 0;        // with fewer, connections keep none
    std::uint32_t full_batches_ = 0;  // polls in a row that found as much as they could take
    std::atomic<std::uint32_t> bulk_{0};  // receives for expect_bulk()
    std::uint32_t bulk_posted_ = 0;       // of these
    bool suspended_ = false;
    // What posting touches.
    struct Posting {
        ibv_qp* qp = nullptr;
        std::vector<ibv_recv_wr> requests;
        std::vector<ibv_sge> pieces;
        std::uintptr_t base = 0;  // of the first chunk
        std::uint32_t chunk_size = 0;
        std::uint32_t lkey = 0;
    };
    Posting posting_;
    std::uint32_t max_depth_ = 0;   // what the device's queue takes, and there are buffers for
    std::uint32_t streams_ = 0;     // TCP connections
    std::int64_t expected_ = 0;     // datagrams, and what others take
    std::uint64_t max_copied_ = 0;  // bytes
    alignas(64) std::atomic<RxBuffer*> returned_{nullptr};  // released by other threads, not yet taken
    std::atomic<std::uint64_t> copied_bytes_{0};
    std::atomic<std::uint32_t> lent_{0};  // buffers that the program keeps
    RxShares shares_;
};

}  // namespace vma::ring
