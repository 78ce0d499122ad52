// SPDX-License-Identifier: BSD-2-Clause
// One offloaded member of an epoll set, and the two lists a set keeps its active members on.
//
// A member whose socket reports a change is pushed on the *incoming* stack, without a lock, in whatever
// thread that happens. Who looks at the set moves it from there to the *active* list, under the set's lock,
// where it stays as long as it may have something to report. So a look costs what is active, not what is
// there.
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

// The kernel reports these whether asked to or not.
inline constexpr std::uint32_t kImpliedEvents = EPOLLERR | EPOLLHUP;
// What a member's `events` ask for: EPOLLET and the like are modes.
constexpr std::uint32_t wanted_events(std::uint32_t events) noexcept {
    constexpr std::uint32_t kPollBits = 0xffff;
    return (events & kPollBits) | kImpliedEvents;
}

struct EpollEntry final : sockets::ReadyHook {
    explicit EpollEntry(EpollSet& owner) noexcept : set(owner) {}
    void wake(std::uint32_t what) noexcept override;

    EpollSet& set;
    int fd = -1;  // the number it was added under, which with the file is its identity
    sockets::Ref<sockets::FdObject> object;
    std::uint32_t events = 0;  // the program's
    std::uint64_t data = 0;
    sockets::Readiness mode = sockets::Readiness::kernel;  // as last seen
    bool fired = false;                                    // one-shot and reported: silent until MOD
    bool removed = false;                                  // not in the kernel's set: `ours`, or fired by us
    bool fresh = true;          // added or modified: an edge even if nothing new came
    bool walked = false;        // cannot tell of changes: always on the active list
    bool own_rings = true;      // its rings are not known: it is polled itself
    bool asking = false;        // counted in EpollSet::asking_
    bool room_watched = false;  // its socket knows, see Socket::watch_room()
    bool dead = false;          // left the set, but its hook could not be taken down yet
    std::uint32_t reported_edges = 0;
    std::uint32_t seen_edges = 0, pending = 0;  // within one collect()
    std::unique_ptr<EpollEntry> next;           // in a Dropped list

    // What a wake-up must be for to matter: the events asked for and the implied ones; 0 while silent.
    std::atomic<std::uint32_t> interest{0};
    std::atomic<bool> moved{false};  // readiness() or rings() changed

    // Lists. Incoming: any thread; the rest: under the set's lock.
    std::atomic<bool> incoming{false};
    EpollEntry* incoming_next = nullptr;
    EpollEntry *active_prev = nullptr, *active_next = nullptr;
    bool active = false;
};

// Pushed by any thread, taken as a whole.
class IncomingEntries {
  public:
    // Also false while take() runs: what it has taken may not be on the active list yet.
    bool empty() const noexcept {
        return head_.load(std::memory_order_seq_cst) == nullptr && !taking_.load(std::memory_order_seq_cst);
    }
    // Does nothing if it is there already. Whoever changed the member's state did so before.
    void push(EpollEntry& e) noexcept {
        if (e.incoming.exchange(true, std::memory_order_acq_rel)) return;
        EpollEntry* head = head_.load(std::memory_order_relaxed);
        do e.incoming_next = head;
        while (!head_.compare_exchange_weak(head, &e, std::memory_order_seq_cst, std::memory_order_relaxed));
    }
    // Calls visit(entry) for each, in order of arrival. A member may come in again from the moment it is
    // visited.
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
            // Before its state is read: what changes after that makes it come in again.
            ordered->incoming.exchange(false, std::memory_order_acq_rel);
            visit(*std::exchange(ordered, next));
        }
        taking_.store(false, std::memory_order_seq_cst);
    }

  private:
    std::atomic<EpollEntry*> head_{nullptr};
    std::atomic<bool> taking_{false};
};

// A queue from which any member can be taken out.
class ActiveEntries {
  public:
    // May be asked without the lock, as a hint.
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

    // To the end of the queue; never missing from it meanwhile for who asks empty().
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
