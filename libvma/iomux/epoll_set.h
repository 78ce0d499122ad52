// SPDX-License-Identifier: BSD-2-Clause
// An epoll set with offloaded members.
//
// The kernel's set stays complete: every member is in it with the program's own events and data, so the kernel's part
// (writability, errors, what arrived on the shadow sockets, a forked child that inherits the set) works by itself.
// This object adds what the kernel cannot see, EPOLLIN and EPOLLRDNORM of offloaded members, with the kernel's rules
// for level, edge and one-shot triggering.
//
// One event for each member. When both sides report the same member, the two are joined. The kernel returns only the
// program's data, so the member is recognised by it; the set keeps the data of all its members, ours or not, to know
// whether it is unique. Where several members share one datum the program itself cannot tell their events apart, and
// the two sides' events are reported one after the other. (The alternative, registering members with data of our own,
// would show that data to forked children and to calls we do not intercept.)
//
// One-shot. When our side reports such a member, the kernel must not report it either until EPOLL_CTL_MOD. The kernel
// has no call for "disarm": MOD always adds EPOLLERR and EPOLLHUP. So the member is taken out of the kernel's set, and
// ADD, MOD and DEL of it answer as if it were there. A child forked while a member is in this state does not find it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libvma/os/libc_types.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/waiter.h"

namespace vma::iomux {

class EpollSet final : public sockets::FdObject {
  public:
    // The kernel allows a set in a set in a set ... four times (EP_MAX_NESTS).
    static constexpr unsigned kMaxDepth = 4;

    // What a waiting call works on: it changes as a whole.
    struct Members {
        std::vector<sockets::Ref<sockets::Socket>> sockets;
        std::vector<sockets::Ref<EpollSet>> sets;
        std::uint64_t generation = 0;
    };

    static sockets::Ref<EpollSet> find(int epfd) noexcept;
    // The set under `epfd`, made if there is none yet, with all members that the kernel's set has. Empty without memory.
    static sockets::Ref<EpollSet> find_or_make(int epfd);
    // In a signal handler that interrupted a function of this set: the kernel alone must answer.
    bool busy_in_this_thread() const noexcept { return lock_.owned_by_me(); }

    // epoll_ctl(2), first in the kernel, then here. 0 or -errno.
    int control(int epfd, int op, int fd, epoll_event* event);
    // Records a member that the kernel has accepted already.
    void added(int fd, const epoll_event& event);

    // epoll_wait(2) with a zero timeout: count or -errno.
    int collect(int epfd, epoll_event* events, int maxevents);
    // Would our side report something? Marks nothing as reported.
    bool ready(unsigned depth = 0) noexcept;
    // Arrivals on all members; for a set that is an edge-triggered member of another.
    std::uint32_t arrivals(unsigned depth = 0) noexcept;

    std::shared_ptr<const Members> members();
    std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
    // False: the list is full. Signalled when members or their events change.
    bool add_waiter(sockets::Waiter* waiter) noexcept;
    void remove_waiter(sockets::Waiter* waiter) noexcept;

    // A call that waits on this set. The kernel's set lives on while a thread is inside epoll_wait, even if every
    // descriptor of it is closed meanwhile; so while such a call runs, a descriptor of our own keeps it.
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

    static void reset_in_child() noexcept;

    EpollSet() noexcept : FdObject(sockets::Kind::epoll) {}

  protected:
    void last_fd_closed() noexcept override;
    void recycle() noexcept override;

  private:
    struct Entry {
        int fd = -1;  // the number it was added under, which with the file is its identity
        sockets::Ref<sockets::FdObject> object;
        std::uint32_t events = 0;
        std::uint64_t data = 0;
        bool fired = false;    // one-shot and reported: silent until MOD
        bool removed = false;  // fired by us, so not in the kernel's set
        bool fresh = true;     // added or modified: an edge even without an arrival
        std::uint32_t reported_arrivals = 0;
        std::uint32_t seen_arrivals = 0, pending = 0;  // within one collect()
        std::unique_ptr<Entry> next;                   // in a Dropped list
    };
    struct DataUse {
        unsigned count = 0;     // members with this data, ours or not
        Entry* ours = nullptr;  // one of them that is ours
    };
    // Entries on their way out. They go when lock_ is free again, since a socket may end with its last reference.
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
    static sockets::Ref<EpollSet> find_or_make_locked(int epfd);
    void adopt(int epfd);
    void adopt_member(int epfd, int fd);
    int kernel_fd(int epfd) const noexcept { return own_fd_ ? own_fd_.get() : epfd; }

    // All below: with lock_ held.
    int control_locked(int epfd, int op, int fd, epoll_event* event, sockets::Ref<sockets::FdObject>&& object,
                       Dropped& dropped);
    Entry* entry(int fd, const sockets::FdObject* object) noexcept;
    Entry& put(int fd, sockets::Ref<sockets::FdObject>&& object, std::uint32_t events, std::uint64_t data);
    void drop_stale(int fd, const sockets::FdObject* object, Dropped& dropped) noexcept;
    int control_removed(int epfd, int op, int fd, epoll_event* event, Entry& e, Dropped& dropped);
    void modify(Entry& e, const epoll_event& event);
    void put_other(int fd, std::uint64_t data);
    void forget_other(int fd) noexcept;
    void use_data(std::uint64_t data, Entry* ours);
    void unuse_data(std::uint64_t data, Entry* ours) noexcept;
    void drop(const Entry& e, Dropped& dropped) noexcept;
    void purge(Dropped& dropped) noexcept;
    void changed() noexcept;        // other members
    void wake_waiters() noexcept;   // other events
    std::uint32_t level(const Entry& e, unsigned depth = 0) noexcept;
    std::uint32_t edge(Entry& e, unsigned depth = 0) noexcept;
    std::uint32_t arrivals_of(const Entry& e, unsigned depth) noexcept;
    void reported(Entry& e) noexcept;
    int join(int kernel, epoll_event* events, int n);
    int fill(int kernel, epoll_event* events, int n, int max, bool kernel_told_all) noexcept;
    void find_fired(int kernel, std::uint64_t data) noexcept;
    void clear(Dropped& dropped) noexcept;

    mutable Lock lock_;
    std::vector<std::unique_ptr<Entry>> entries_;
    std::unordered_map<int, std::uint64_t> others_;  // members only the kernel serves: fd -> data
    std::unordered_map<std::uint64_t, DataUse> data_;
    std::shared_ptr<const Members> members_;  // null: to be made again
    std::atomic<std::uint64_t> generation_{1};
    sockets::WaiterList waiters_;
    InternalFd own_fd_;
    unsigned calls_ = 0;
    bool closed_ = false;
    bool kernel_turn_ = false;    // whose event goes first when there is room for one
    std::size_t next_entry_ = 0;  // where our side starts, so that each member gets its turn
    EpollSet* next_free_ = nullptr;
};

}  // namespace vma::iomux
