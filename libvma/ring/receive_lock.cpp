// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/receive_lock.h"

#include "libvma/ring/ring.h"

namespace vma::ring {

void ReceiveLock::note_detach(const Detach& detach) noexcept {
    work_lock_.lock();
    try {
        detaches_.push_back(detach);
    } catch (...) {
        // See the header.
    }
    pending_.store(true, std::memory_order_seq_cst);
    work_lock_.unlock();
}

void ReceiveLock::note_error() noexcept {
    work_lock_.lock();
    broken_.store(true, std::memory_order_relaxed);
    pending_.store(true, std::memory_order_seq_cst);
    work_lock_.unlock();
}

void ReceiveLock::attend() noexcept {
    if (lock_.owned_by_me() || !lock_.try_lock()) return;  // its owner sees the mark
    unlock();
}

ReceiveLock::Next ReceiveLock::next(Detach& detach) noexcept {
    Next next = Next::nothing;
    work_lock_.lock();
    if (broken_.load(std::memory_order_relaxed)) {
        next = Next::recover;
    } else if (detaches_.empty()) {
        pending_.store(false, std::memory_order_relaxed);
    } else {
        next = Next::detach;
        detach = detaches_.back();
        detaches_.pop_back();
    }
    work_lock_.unlock();
    return next;
}

void ReceiveLock::settle_error() noexcept {
    work_lock_.lock();
    broken_.store(false, std::memory_order_relaxed);
    work_lock_.unlock();
}

[[gnu::cold]] void ReceiveLock::run() noexcept { ring_.run_deferred(); }

}  // namespace vma::ring
