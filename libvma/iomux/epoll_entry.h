// SPDX-License-Identifier: BSD-2-Clause
// One offloaded member of an epoll set, and the two lists a set keeps its active members on.
//
// A member whose socket reports a change is pushed on the *incoming* stack, without a lock, by the reporting
// thread. A thread that looks at the set moves the member to the *active* list, under the set's lock. The
// member stays on that list as long as it may have an event to report. So the cost of a look depends on the
// active members, not on all members.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/ready_hook.h"

namespace vma::iomux {

class EpollSet;

// The kernel reports these events in any case.
inline constexpr std::uint32_t kImpliedEvents = EPOLLERR | EPOLLHUP;
// The events that a member asks for. EPOLLET and the other high bits are modes.
constexpr std::uint32_t wanted_events(std::uint32_t events) noexcept {
    constexpr std::uint32_t kPollBits = 0xffff;
    return (events & kPollBits) | kImpliedEvents;
}

struct EpollEntry final : sockets::ReadyHook {
    explicit EpollEntry(EpollSet& owner) noexcept : set(owner) {}
    void wake(std::uint32_t what) noexcept override;
    bool in_kernel_set() const noexcept override { return !removed.load(std::memory_order_relaxed); }

    EpollSet& set;
    int fd = -1;  // the number at EPOLL_CTL_ADD; number and file identify a member
    sockets::Ref<sockets::FdObject> object;
    std::uint32_t events = 0;  // as the program gave them
    std::uint64_t data = 0;
    sockets::Readiness mode = sockets::Readiness::kernel;  // as of the last resync()
    bool fired = false;                                    // one-shot and reported: silent until MOD
    // Not in the kernel's set: Readiness::ours, or one-shot and fired by the library.
    std::atomic<bool> removed{false};
    bool fresh = true;          // added or modified: an edge even without new data
    bool walked = false;        // cannot report changes: always on the active list
    bool own_rings = true;      // its rings are unknown: the call polls the socket itself
    bool asking = false;        // counted in EpollSet::asking_
    bool room_watched = false;  // Socket::watch_room() was called
    bool dead = false;          // left the set, but its hook is still in place
    std::uint32_t reported_edges = 0;
    std::uint32_t seen_edges = 0, pending = 0;  // within one collect()
    std::unique_ptr<EpollEntry> next;           // in a Dropped list

    // The events for which a wake-up matters: those asked for and the implied ones; 0 while silent.
    std::atomic<std::uint32_t> interest{0};
    std::atomic<bool> moved{false};  // readiness() or rings() changed

    // Lists. Any thread changes the incoming ones; the set's lock guards the others.
    std::atomic<bool> incoming{false};
    EpollEntry* incoming_next = nullptr;
    EpollEntry *active_prev = nullptr, *active_next = nullptr;
    bool active = false;
};

// A stack: any thread pushes, one thread takes all.
class IncomingEntries {
  public:
    // Also false while take() runs: the entries that it has taken may not be on the active list yet.
    bool empty() const noexcept {
        return head_.load(std::memory_order_seq_cst) == nullptr && !taking_.load(std::memory_order_seq_cst);
    }
    // Does nothing if the entry is on the stack already. The caller changes the member's state before.
    void push(EpollEntry& e) noexcept {
        if (e.incoming.exchange(true, std::memory_order_acq_rel)) return;
        EpollEntry* head = head_.load(std::memory_order_relaxed);
        do e.incoming_next = head;
        while (!head_.compare_exchange_weak(head, &e, std::memory_order_seq_cst, std::memory_order_relaxed));
    }
    // Calls visit(entry) for each entry, in order of arrival. From its visit on, an entry may arrive again.
    template <class F>
    void take(F&& visit) noexcept {
        if (head_.load(std::memory_order_seq_cst) == nullptr) return;
        taking_.store(true, std::memory_order_seq_cst);
        EpollEntry *list = head_.exchange(nullptr, std::memory_order_seq_cst), *ordered = nullptr;
        while (list != nullptr) {
            EpollEntry* next = std::exchange(list->incoming_next, ordered);
            ordered = std::exchange(list, next);
        }
        while (ordered != nullptr) {
            EpollEntry* next = ordered->incoming_next;
            // Cleared before visit() reads the state: a later change makes the entry arrive again.
            ordered->incoming.exchange(false, std::memory_order_acq_rel);
            visit(*std::exchange(ordered, next));
        }
        taking_.store(false, std::memory_order_seq_cst);
    }

  private:
    std::atomic<EpollEntry*> head_{nullptr};
    std::atomic<bool> taking_{false};
};

// A queue that gives up any member.
class ActiveEntries {
  public:
    // Callers without the lock may use it as a hint.
    bool empty() const noexcept { return size_.load(std::memory_order_acquire) == 0; }
    std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
    EpollEntry* first() const noexcept { return first_; }
    static EpollEntry* after(const EpollEntry& e) noexcept { return e.active_next; }
    void add(EpollEntry& e) noexcept {
        if (e.active) return;
        e.active = true;
        e.active_prev = last_;
        e.active_next = nullptr;
        (last_ != nullptr ? last_->active_next : first_) = &e;
        last_ = &e;
        size_.store(size_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    void remove(EpollEntry& e) noexcept {
        if (!e.active) return;
        e.active = false;
        (e.active_prev != nullptr ? e.active_prev->active_next : first_) = e.active_next;
        (e.active_next != nullptr ? e.active_next->active_prev : last_) = e.active_prev;
        size_.store(size_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    }

    // Moves the entry to the end of the queue. The entry always counts for empty() meanwhile.
    void rotate(EpollEntry& e) noexcept {
        if (!e.active || last_ == &e) return;
        (e.active_prev != nullptr ? e.active_prev->active_next : first_) = e.active_next;
        e.active_next->active_prev = e.active_prev;
        e.active_prev = last_;
        e.active_next = nullptr;
        last_->active_next = &e;
        last_ = &e;
    }

  private:
    EpollEntry *first_ = nullptr, *last_ = nullptr;
    std::atomic<std::size_t> size_{0};
};

}  // namespace vma::iomux
