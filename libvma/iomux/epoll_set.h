// SPDX-License-Identifier: BSD-2-Clause
// An epoll set with offloaded members.
//
// The kernel's set stays complete as far as the kernel's knowledge goes: every member is in it with the
// program's own events and data. So the kernel's part works by itself: writability, errors, data on the
// shadows, a forked child that inherits the set. This object adds the events that the kernel cannot see, with
// the kernel's rules for level, edge and one-shot triggering.
//
// A member leaves the kernel's set while it has Readiness::ours. ADD, MOD and DEL of it answer as if it were
// in the set. (A TCP connection's shadow is unconnected, and the kernel would report EPOLLHUP for it.) The
// member goes back when the library hands the connection over to the kernel.
//
// Members report changes (sockets/ready_hook.h, epoll_entry.h), so the cost of a look depends on the active
// members. A thread that sleeps here is on this set's list of waiters and on no member's list. Each look asks
// the members that cannot report, and the inner sets.
//
// A call reports one event for each member. When both sides report the same member, join() merges the two.
// The kernel returns only the program's data, so that data identifies the member. The set keeps the data of
// all its members, offloaded or not, to know whether a value is unique. Where several members share one
// value, the program itself cannot tell their events apart. The two sides' events are then reported one after
// the other. (The alternative would be to register members with data of the library. Forked children, and
// calls past the library, would see that data.)
//
// One-shot: when the library reports a one-shot member, the kernel must not report it either until
// EPOLL_CTL_MOD. The kernel has no call for "disarm": MOD always adds EPOLLERR and EPOLLHUP. So the member
// leaves the kernel's set, and ADD, MOD and DEL of it answer as if it were in the set.
//
// A forked child shares the kernel's set. On the child's first use of the set, the library leaves all members
// to the kernel, and they enter that set (sockets/handover/shared_sockets.h, leave_to_kernel() here). The
// same happens before daemon() and exec. The child does not see members added later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libvma/iomux/epoll_entry.h"
#include "libvma/os/libc_types.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/waiter.h"
#include "libvma/stats/mux.h"

namespace vma::iomux {

class EpollSet final : public sockets::FdObject {
  public:
    // The kernel allows a set in a set up to four times (EP_MAX_NESTS).
    static constexpr unsigned kMaxDepth = 4;

    // The members that a waiting call has to visit itself. An immutable copy: a change makes a new one.
    struct Members {
        // Sockets that do not report changes, or not their rings.
        std::vector<sockets::Ref<sockets::Socket>> sockets;
        std::vector<sockets::Ref<EpollSet>> sets;
        std::vector<ring::Ring*> rings;  // rings of all other members; perhaps of some that have left
        std::uint64_t generation = 0;
    };

    static sockets::Ref<EpollSet> find(int epfd) noexcept;
    // The set under `epfd`, made if there is none yet, with all members of the kernel's set. Empty without
    // memory.
    static sockets::Ref<EpollSet> find_or_make(int epfd);
    // True in a signal handler that interrupted a function of this set: the kernel alone must answer.
    bool busy_in_this_thread() const noexcept { return lock_.owned_by_me(); }

    // epoll_ctl(2), first in the kernel, then here. 0 or -errno.
    int control(int epfd, int op, int fd, epoll_event* event);
    // Records a member that the kernel has accepted already.
    void added(int fd, const epoll_event& event);

    // epoll_wait(2) with a zero timeout: count or -errno. kernel_ready: the kernel has an event, so the call
    // asks the kernel even if all members have Readiness::ours. `offloaded` becomes the number of events that
    // the library found.
    int collect(int epfd, epoll_event* events, int maxevents, bool kernel_ready, unsigned& offloaded);
    // Filters `n` events that a sleeper got from the kernel's set before this object existed. Removes those
    // of inner sets that are not ready; they were ready while kick() woke their sleepers. Returns how many
    // events are left.
    int without_kicked(epoll_event* events, int n) noexcept;
    // The block in which waiting calls count; null without statistics.
    stats::MuxBlock* counters() const noexcept { return counters_; }
    // Are all members offloaded sockets, watched for reading only?
    bool only_shadows() noexcept;
    // Has the library an event to report? Marks no event as reported. Takes no lock while no member is
    // active.
    bool ready(unsigned depth = 0) noexcept;
    // Counts the changes that may have made the set ready; for a set that is an edge-triggered member of
    // another.
    std::uint32_t arrivals(unsigned depth = 0) noexcept;
    // Has any member events that the kernel does not see?
    bool offloaded() const noexcept { return offloaded_members() != 0; }
    unsigned offloaded_members() const noexcept { return offloaded_.load(std::memory_order_relaxed); }
    // Called by a member's hook.
    void woken(EpollEntry& e) noexcept;

    std::shared_ptr<const Members> members();
    std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
    // The set signals the waiter when members or their events change. False: the list is full.
    bool add_waiter(sockets::Waiter* waiter) noexcept;
    void remove_waiter(sockets::Waiter* waiter) noexcept;

    // A call that waits on this set. The kernel's set lives on while a thread is inside epoll_wait, even if
    // the program closes every descriptor of the set meanwhile. So while such a call runs, a descriptor of
    // the library keeps the kernel's set.
    class Call {
      public:
        Call(EpollSet& set, int epfd) noexcept;
        ~Call();
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;
        int fd() const noexcept { return set_.kernel_fd(epfd_); }

      private:
        EpollSet& set_;
        int epfd_;
    };

    void leave_to_kernel(int epfd, sockets::LeaveCause why) noexcept override;
    void sync_with_kernel() noexcept override;

    // Has this process ever had a set?
    static bool any() noexcept;

    EpollSet() noexcept : FdObject(sockets::Kind::epoll) {}

  protected:
    void last_fd_closed() noexcept override;
    void recycle() noexcept override;

  private:
    using Entry = EpollEntry;
    struct DataUse {
        unsigned count = 0;     // members with this data, in entries_ or others_
        Entry* ours = nullptr;  // one of them in entries_
    };
    // The order of adding does not matter; a number can mean several files.
    using Entries = std::unordered_multimap<int, std::unique_ptr<Entry>>;
    // Entries that have left the set. They are destroyed after lock_ is released, because a socket may end
    // with its last reference.
    class Dropped {
      public:
        Dropped() = default;
        ~Dropped() {
            while (first_) first_ = std::move(first_->next);
        }
        void add(std::unique_ptr<Entry> entry) noexcept {
            entry->next = std::move(first_);
            first_ = std::move(entry);
        }

      private:
        std::unique_ptr<Entry> first_;
    };

    static sockets::Ref<EpollSet> make(int epfd);
    static sockets::Ref<EpollSet> find_or_make_locked(int epfd, std::vector<int>& made);
    void adopt(int epfd);
    void adopt_member(int epfd, int fd);
    int kernel_fd(int epfd) const noexcept { return own_fd_ ? own_fd_.get() : epfd; }

    // The caller of all functions below holds lock_.

    // Membership.
    int control_locked(int epfd, int op, int fd, epoll_event* event, sockets::Ref<sockets::FdObject>&& object,
                       Dropped& dropped);
    int control_removed(int epfd, int op, int fd, epoll_event* event, Entry& e, Dropped& dropped);
    Entry* entry(int fd, const sockets::FdObject* object) noexcept;
    Entry& put(int fd, sockets::Ref<sockets::FdObject>&& object, std::uint32_t events, std::uint64_t data,
               bool in_kernel = true);
    void modify(Entry& e, const epoll_event& event);
    void drop_stale(int fd, const sockets::FdObject* object, Dropped& dropped) noexcept;
    void drop(Entry& e, Dropped& dropped) noexcept;
    void detach(Entry& e) noexcept;
    void discard(Entry& e, Dropped& dropped) noexcept;
    void bury_dead(Dropped& dropped) noexcept;
    void clear(Dropped& dropped) noexcept;
    void count_asking(Entry& e, bool member) noexcept;
    void put_other(int fd, std::uint64_t data);
    void forget_other(int fd) noexcept;
    void use_data(std::uint64_t data, Entry* ours);
    void unuse_data(std::uint64_t data, Entry* ours) noexcept;
    void changed() noexcept;       // waiting calls have to visit other members now
    void wake_waiters() noexcept;  // also without lock_
    void activate(Entry& e) noexcept;
    void announce(Entry& e, bool listed) noexcept;

    // The members' state in the kernel's set, and their rings.
    void resync(Entry& e) noexcept;
    void set_mode(Entry& e, sockets::Readiness mode) noexcept;
    void set_fired(Entry& e) noexcept;
    void set_removed(Entry& e, bool removed) noexcept;
    void leave_kernel(Entry& e) noexcept;
    void enter_kernel(Entry& e) noexcept;
    static int number_of(const Entry& e) noexcept;
    void find_rings(Entry& e) noexcept;
    int any_kernel_fd() const noexcept;

    // Events.
    void settle() noexcept;
    Entry* find_ready(Entry* from, unsigned depth, Dropped& dropped) noexcept;
    std::uint32_t level(const Entry& e, unsigned depth = 0) noexcept;
    static std::uint32_t kernel_level(const Entry& e) noexcept;
    std::uint32_t edge(Entry& e, unsigned depth = 0) noexcept;
    std::uint32_t edges_of(const Entry& e, unsigned depth) noexcept;
    static void looked_at(Entry& e) noexcept;
    void reported(Entry& e) noexcept;
    void kernel_had_turn(bool reported, std::uint64_t data) noexcept;
    int join(int kernel, epoll_event* events, int n) noexcept;
    int fill(int kernel, epoll_event* events, int n, int max, bool kernel_told_all) noexcept;
    void find_fired(int kernel, std::uint64_t data) noexcept;
    void kernel_error(std::uint64_t data) noexcept;

    mutable Lock lock_;
    Entries entries_;
    std::unordered_map<int, std::uint64_t> others_;  // members only the kernel serves: fd -> data
    std::unordered_map<std::uint64_t, DataUse> data_;
    IncomingEntries incoming_;  // without lock_
    ActiveEntries active_;
    std::vector<Entry*> found_;       // the members that one collect() works on
    std::unique_ptr<Entry> dead_;     // a list over `next`
    std::vector<ring::Ring*> rings_;  // grows with the members, made anew when many have left
    struct Census {
        std::size_t left = 0;       // members that left since rings_ was made
        std::size_t in_kernel = 0;  // of entries_
        std::size_t walked = 0;     // of entries_
        std::size_t asking = 0;     // members of entries_ that ask the kernel for more than reading
    } census_;
    struct Looks {
        unsigned not_asked = 0;  // in a row that did not ask the kernel
        unsigned skipped = 0;    // the same, counting looks that found an event of the library
    } looks_;
    std::atomic<unsigned> offloaded_{0};      // of entries_
    std::atomic<std::uint32_t> edges_{0};     // wake-ups of members, additions
    std::shared_ptr<const Members> members_;  // null: outdated
    std::atomic<std::uint64_t> generation_{1};
    // A leaf lock for the waiters, because members signal them while they hold their own locks.
    Lock waiters_lock_;
    sockets::WaiterList waiters_;
    std::atomic<unsigned> waiting_{0};
    InternalFd own_fd_;
    stats::MuxBlock* counters_ = nullptr;
    int last_epfd_ = -1;  // a number of this set, if own_fd_ could not be made
    unsigned calls_ = 0;
    bool closed_ = false;
    // With room for one event, the library's side and the kernel's take turns.
    struct Turns {
        std::size_t ours = 0, kernels = 0;  // in a row
        std::uint64_t kernel_first = 0;     // the first data that the kernel reported
    } turns_;
    EpollSet* next_free_ = nullptr;
};

}  // namespace vma::iomux
