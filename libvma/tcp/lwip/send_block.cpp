// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/send_block.h"

#include <errno.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/lwip/memory.h"

namespace vma::tcp::lwip {

namespace {

constexpr std::size_t bytes_of(bool large) noexcept {
    return (large ? SendBlock::kLarge : SendBlock::kSmall) + SendBlock::kHeader;
}

}  // namespace

// The free blocks of one size. A thread that gives a block back takes no lock, so it may be a signal handler
// that interrupted any other function here.
struct SendBlockPool {
    Lock lock;
    SendBlock* free = nullptr;
    std::atomic<SendBlock*> returned{nullptr};

    void put(SendBlock* block) noexcept {
        block->next_ = returned.load(std::memory_order_relaxed);
        while (!returned.compare_exchange_weak(block->next_, block, std::memory_order_release,
                                               std::memory_order_relaxed)) {
        }
    }
    // The block that came back last, since it may be in the caches. Null: there is none.
    SendBlock* take() noexcept {
        if (lock.owned_by_me()) return nullptr;
        const std::lock_guard guard(lock);
        if (SendBlock* const list = returned.exchange(nullptr, std::memory_order_acquire)) {
            SendBlock* last = list;
            while (last->next_ != nullptr) last = last->next_;
            last->next_ = free;
            free = list;
        }
        SendBlock* const block = free;
        if (block != nullptr) free = block->next_;
        return block;
    }
};

namespace {

constinit SendBlockPool g_pools[2];

// The child's only thread is the one that forked; another may have held a lock.
void forget_blocks_in_child() noexcept {
    for (SendBlockPool& pool : g_pools) new (&pool) SendBlockPool();
}
VMA_RENEW_IN_CHILD(forget_blocks_in_child);

// From the system. Null without memory.
void* take_memory(std::size_t bytes) noexcept {
    const int before = errno;
    void* memory = nullptr;
    if (kPooled) {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) memory = nullptr;
    } else {
        memory = std::aligned_alloc(SendBlock::kHeader, bytes);
    }
    errno = before;
    if (memory != nullptr) count_mapped(static_cast<std::int64_t>(bytes));
    return memory;
}

}  // namespace

SendBlock* SendBlock::make(bool large) noexcept {
    const std::size_t bytes = bytes_of(large);
    SendBlock* block = kPooled ? g_pools[large].take() : nullptr;
    if (block == nullptr) {
        void* const memory = take_memory(bytes);
        if (memory == nullptr) return nullptr;
        block = new (memory) SendBlock;
    }
    block->refs_ = 1;
    block->large_ = large;
    count_used(static_cast<std::int64_t>(bytes));
    return block;
}

void SendBlock::free() noexcept {
    const auto bytes = static_cast<std::int64_t>(bytes_of(large_));
    count_used(-bytes);
    if (kPooled) return g_pools[large_].put(this);
    count_mapped(-bytes);
    std::free(this);
}

}  // namespace vma::tcp::lwip
