// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/rx_shares.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace vma::ring {

void RxShares::begin(RxBuffer* frame) noexcept { new (frame->user) Count{1}; }

RxBuffer* RxShares::share(RxBuffer* frame) noexcept {
    if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
    if (free_ == nullptr && !grow()) return nullptr;
    RxBuffer* b = std::exchange(free_, free_->next);
    // All but `user`: there other threads count.
    std::memcpy(static_cast<void*>(b), frame, offsetof(RxBuffer, user));
    b->kind = RxBuffer::Kind::share;
    b->next = nullptr;
    new (b->user) Origin{frame};
    in<Count>(frame).users.fetch_add(1, std::memory_order_relaxed);
    return b;
}

void RxShares::drop(RxBuffer* frame) noexcept {
    if (in<Count>(frame).users.fetch_sub(1, std::memory_order_acq_rel) == 1) frame->release();
}

void RxShares::release(RxBuffer* share) noexcept {
    drop(in<Origin>(share).frame);
    RxBuffer* head = returned_.load(std::memory_order_relaxed);
    do {
        share->next = head;
    } while (
        !returned_.compare_exchange_weak(head, share, std::memory_order_release, std::memory_order_relaxed));
}

bool RxShares::grow() noexcept {
    if (blocks_.size() == kMaxBlocks) return false;
    try {
        blocks_.reserve(blocks_.size() + 1);
        blocks_.push_back(std::make_unique<RxBuffer[]>(kBlock));
    } catch (const std::bad_alloc&) {
        return false;
    }
    for (std::size_t i = 0; i < kBlock; i++) {
        RxBuffer& b = blocks_.back()[i];
        b.next = std::exchange(free_, &b);
    }
    return true;
}

}  // namespace vma::ring
