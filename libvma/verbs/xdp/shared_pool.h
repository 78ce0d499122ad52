// SPDX-License-Identifier: BSD-2-Clause
// What several AF_XDP devices of a netdev share: the umem, and fill and completion ring of each queue.
//
// The kernel has one pool of buffers for each queue: all XSKs of the queue take received frames from its fill
// ring, and their sent chunks come back by its one completion ring. So any XSK gets any chunk. The first
// device (XdpDevice) owns the umem and posts all receives. A further one (XdpLane) copies what it receives to
// memory of its own and puts the chunk back at once. So a program that leaves one device unread keeps no more
// chunks than its XSKs' RX rings hold, and the first device posts as many more for each further one.
//
// Send chunks have owners, by their place: [receive chunks | send chunks of device 0 | of 1 | of 2 ...].
// Whoever looks at the completion ring leaves what is others' in their boxes.
//
// Locks: one for the fill rings, one for the completion ring and the boxes; both leaves. A signal handler
// that interrupted this thread inside one of them does without.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "libvma/runtime/lock.h"
#include "libvma/verbs/xdp/xsk.h"

namespace vma::verbs::xdp {

// Holds a lock that devices share, and counts when it has to wait for it.
class PoolGuard {
  public:
    PoolGuard(Lock& lock, std::atomic<std::uint64_t>& waits) noexcept : lock_(lock) {
        if (__builtin_expect(lock_.try_lock(), 1)) return;
        waits.fetch_add(1, std::memory_order_relaxed);
        lock_.lock();
    }
    ~PoolGuard() { lock_.unlock(); }
    PoolGuard(const PoolGuard&) = delete;
    PoolGuard& operator=(const PoolGuard&) = delete;

  private:
    Lock& lock_;
};

class SharedPool {
  public:
    // For `devices` devices, one or more of them further ones. Each of those has `receives` places in the RX
    // ring of each queue, and `sends` chunks.
    SharedPool(unsigned devices, std::uint32_t receives, std::uint32_t sends)
        : receives_(receives), sends_(sends), boxes_(devices) {}

    unsigned devices() const noexcept { return static_cast<unsigned>(boxes_.size()); }
    std::uint32_t receives() const noexcept { return receives_; }
    std::uint32_t sends() const noexcept { return sends_; }
    // Bytes of a further device's send chunks.
    std::uint64_t send_bytes() const noexcept { return std::uint64_t{sends_} * chunk_; }

    // The umem has been registered: `length` bytes from `skipped` on, the send chunks of further devices at
    // its end. Received frames are in what is skipped, too.
    void laid_out(std::uint8_t* memory, std::size_t length, std::uint32_t chunk, std::size_t skipped) {
        memory_ = memory;
        skipped_ = skipped;
        length_ = length;
        chunk_ = chunk;
        for (auto& box : boxes_)
            box.reserve(&box == boxes_.data() ? (first_bytes() - skipped_) / chunk_ : sends_);
    }
    std::uint8_t* memory() const noexcept { return memory_; }
    std::uint8_t* umem() const noexcept { return memory_ + skipped_; }
    std::size_t umem_length() const noexcept { return length_ - skipped_; }
    // Bytes at the beginning that are not a further device's.
    std::uint64_t first_bytes() const noexcept { return length_ - (devices() - 1) * send_bytes(); }
    std::uint8_t* send_memory(unsigned device) const noexcept {
        return memory_ + first_bytes() + (device - 1) * send_bytes();
    }

    Lock& fill_lock() noexcept { return fill_lock_; }
    void set_completions(XskRing<std::uint64_t>& ring) noexcept { completions_ = &ring; }
    // Calls done(offset) for each of the device's chunks that were sent. `waits`: as of PoolGuard.
    template <class Done>
    void take_sent(unsigned device, std::atomic<std::uint64_t>& waits, Done&& done) noexcept {
        if (sent_lock_.owned_by_me()) return;
        const PoolGuard guard(sent_lock_, waits);
        for (const std::uint64_t offset : boxes_[device]) done(offset);
        boxes_[device].clear();
        const std::uint32_t ready = completions_->available();
        for (std::uint32_t i = 0; i < ready; i++) {
            const std::uint64_t offset = completions_->front(i);
            const unsigned owner = owner_of(skipped_ + offset);
            if (owner == device)
                done(offset);
            else if (owner < boxes_.size() && boxes_[owner].size() < boxes_[owner].capacity())
                boxes_[owner].push_back(offset);
        }
        if (ready != 0) completions_->release(ready);
    }

  private:
    unsigned owner_of(std::uint64_t offset) const noexcept {
        if (offset < first_bytes()) return 0;
        return static_cast<unsigned>(
            std::min<std::uint64_t>(1 + (offset - first_bytes()) / send_bytes(), boxes_.size()));
    }

    const std::uint32_t receives_, sends_;
    std::uint8_t* memory_ = nullptr;
    std::size_t length_ = 0, skipped_ = 0;
    std::uint32_t chunk_ = 0;
    Lock fill_lock_, sent_lock_;
    XskRing<std::uint64_t>* completions_ = nullptr;
    std::vector<std::vector<std::uint64_t>> boxes_;  // by device: chunks that others found
};

}  // namespace vma::verbs::xdp
