// SPDX-License-Identifier: BSD-2-Clause
// The books of a ring's send buffers: which are free, and which wait for their completion, in post order.
//
// A frame takes one place in the queue for each buffer it fills. A frame posted inline takes a place without
// a buffer, since the device copies it at once. Places are numbered from 1 on, and the number of a request's
// last place is the request's wr_id: its completion is that of all places up to it.
//
// Locks: the caller holds TxQueue's lock. The memory is PacketMemory's.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "libvma/ring/packet_memory.h"

namespace vma::ring {

class TxBuffers {
  public:
    // Takes the memory's send chunks. `headroom`: bytes the device needs in front of a frame. Once. May throw
    // std::bad_alloc.
    void open(const PacketMemory& memory, std::uint32_t headroom) {
        count_ = memory.tx_chunks();
        chunk_size_ = memory.chunk_size();
        base_ = memory.tx_base() + headroom;
        room_ = chunk_size_ - headroom;
        lkey_ = memory.lkey();
        free_.reserve(count_);
        for (std::uint32_t i = count_; i-- > 0;) free_.push_back(i);
        outstanding_.resize(std::bit_ceil(count_));  // a power of two, so that an index is a mask away
    }

    std::uint32_t count() const noexcept { return count_; }
    std::uint32_t free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
    // Bytes of a frame in one buffer.
    std::uint32_t room() const noexcept { return room_; }
    std::uint32_t lkey() const noexcept { return lkey_; }
    // Running number of the last place taken.
    std::uint64_t posted() const noexcept { return posted_; }
    // Places whose completion was not seen yet.
    std::uint64_t under_way() const noexcept { return posted_ - reaped_; }
    bool full(std::size_t pieces) const noexcept { return under_way() + pieces > outstanding_.size(); }

    // Takes the next place in the queue, and with it a free buffer; with `as_inline` the buffer stays free,
    // and may be written until the request is posted. Returns where its frame begins. There must be a free
    // buffer and a free place.
    std::uint8_t* take(bool as_inline = false) noexcept {
        const std::uint32_t chunk = free_.back();
        if (!as_inline) free_.pop_back();
        outstanding_[posted_++ & (outstanding_.size() - 1)] = as_inline ? kNone : chunk;
        return base_ + std::size_t{chunk} * chunk_size_;
    }
    // The request in the last place, or in the last but so many, was posted inline: its buffer is free.
    void free_last(unsigned back = 1) noexcept {
        std::uint32_t& chunk = outstanding_[(posted_ - back) & (outstanding_.size() - 1)];
        free_.push_back(chunk);
        chunk = kNone;
    }
    // The last `pieces` places were not posted.
    void untake(std::uint32_t pieces) noexcept {
        while (pieces-- != 0) give_back(outstanding_[--posted_ & (outstanding_.size() - 1)]);
    }

    // ---- buffers that the program fills (SendBuffer), by the numbers of their chunks ----
    // Others send from the rest. There must be `n` free buffers.
    bool may_lend(std::uint32_t n) const noexcept { return lent_ + n <= count_ / kLentShare; }
    std::uint32_t lend() noexcept {
        const std::uint32_t chunk = free_.back();
        free_.pop_back();
        lent_++;
        return chunk;
    }
    void end_loan(std::uint32_t chunk) noexcept {
        lent_--;
        free_.push_back(chunk);
    }
    // take() of a lent buffer: it comes back by its completion. There must be a free place.
    void take_lent(std::uint32_t chunk) noexcept {
        lent_--;
        outstanding_[posted_++ & (outstanding_.size() - 1)] = chunk;
    }
    // After the untake() of one that was not posted: it is lent again.
    void lend_again() noexcept { (void)lend(); }

    // Everything up to place `upto` is done.
    void done(std::uint64_t upto) noexcept {
        while (reaped_ < upto) give_back(outstanding_[reaped_++ & (outstanding_.size() - 1)]);
    }

  private:
    static constexpr std::uint32_t kNone = ~0u;     // in outstanding_: a place without a buffer
    static constexpr std::uint32_t kLentShare = 4;  // the program may have this part of the buffers

    void give_back(std::uint32_t chunk) noexcept {
        if (chunk != kNone) free_.push_back(chunk);
    }

    std::vector<std::uint32_t> free_;         // numbers of chunks; the last one was in use last
    std::vector<std::uint32_t> outstanding_;  // ring of such numbers in post order
    std::uint64_t posted_ = 0, reaped_ = 0;   // places, running
    std::uint8_t* base_ = nullptr;            // where the first chunk's frame begins
    std::uint32_t room_ = 0;
    std::uint32_t chunk_size_ = 0;
    std::uint32_t lkey_ = 0;
    std::uint32_t count_ = 0;
    std::uint32_t lent_ = 0;  // buffers that the program has
};

}  // namespace vma::ring
