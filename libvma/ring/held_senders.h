// SPDX-License-Identifier: BSD-2-Clause
// Senders that keep back the last, short piece of a burst, to fill it up (see Ring::hold).
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma::ring {

class HeldSender {
  public:
    virtual ~HeldSender() = default;
    // Sends the piece now. True: the program has not written for a while, so its burst is over. Any thread,
    // no lock of the ring held.
    virtual bool send_held() noexcept = 0;

  private:
    friend class HeldSenders;
    HeldSender* next_held_ = nullptr;
};

// Any thread, no lock.
class HeldSenders {
  public:
    // Each add() brings one send_held(). True: the list was empty before.
    bool add(HeldSender* sender) noexcept {
        HeldSender* head = head_.load(std::memory_order_relaxed);
        do {
            if (head == nullptr) since_.store(clock::ticks(), std::memory_order_relaxed);
            sender->next_held_ = head;
        } while (
            !head_.compare_exchange_weak(head, sender, std::memory_order_release, std::memory_order_relaxed));
        return head == nullptr;
    }
    bool empty() const noexcept { return head_.load(std::memory_order_relaxed) == nullptr; }
    // Ticks of the oldest add(); meaningful unless empty().
    std::uint64_t since() const noexcept { return since_.load(std::memory_order_relaxed); }
    // True: one of them says that its burst is over.
    bool send_all() noexcept {
        bool over = false;
        HeldSender* list = head_.exchange(nullptr, std::memory_order_acquire);
        while (list != nullptr) {
            HeldSender* next = list->next_held_;
            over |= list->send_held();
            list = next;
        }
        return over;
    }

  private:
    std::atomic<HeldSender*> head_{nullptr};
    std::atomic<std::uint64_t> since_{0};  // ticks
};

}  // namespace vma::ring
