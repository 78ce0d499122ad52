// SPDX-License-Identifier: BSD-2-Clause
// Events of an EpollSet: collects the library's events of its members, and joins them with the kernel's
// report.
#include <algorithm>
#include <climits>
#include <mutex>
#include <new>

#include "libvma/iomux/epoll_set.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/raw_syscall.h"

namespace vma::iomux {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Readiness;
using sockets::Socket;

namespace {

// The events that an inner set can have.
constexpr std::uint32_t kSetEvents = EPOLLIN | EPOLLRDNORM;
// A set that has only members with Readiness::ours needs no kernel. But children, and calls past the library,
// share the kernel's set. So the library asks the kernel once in so many looks.
constexpr unsigned kMaxNotAsked = 64;
constexpr std::size_t kMaxTurns = 16;

// Takes the kernel's events, without events for the library's own wake-up (see kernel_set.h).
int ask_kernel(int kernel, epoll_event* events, int max) noexcept {
    for (int attempt = 0;; attempt++) {
        // Not a cancellation point, because it would lose the edges and one-shots that the call has taken.
        auto got = static_cast<int>(os::raw_syscall(SYS_epoll_pwait, kernel, events, max, 0, nullptr, 8));
        if (got <= 0) return got;
        int n = 0;
        for (int i = 0; i < got; i++)
            if (!sleepers::is_kick(events[i].data.u64)) events[n++] = events[i];
        if (n > 0 || got < max || attempt == 1) return n;
    }
}

}  // namespace

// ---- wake-ups ----

void EpollEntry::wake(std::uint32_t what) noexcept {
    if (what == 0) {
        moved.store(true, std::memory_order_release);
    } else if ((what & interest.load(std::memory_order_relaxed)) == 0) {
        // Either this thread sees the interest that EPOLL_CTL_MOD has just stored, or EPOLL_CTL_MOD sees the
        // new state.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if ((what & interest.load(std::memory_order_relaxed)) == 0) return;
    }
    set.woken(*this);
}

void EpollSet::woken(Entry& e) noexcept {
    edges_.fetch_add(1, std::memory_order_relaxed);
    incoming_.push(e);
    wake_waiters();
}

// A thread that goes to sleep first adds its waiter and then looks at the lists. This thread has put the
// member on a list first and looks for waiters then. A handler that interrupted this very lock's holder loses
// no wake-up: an arriving waiter holds signals, and a signalled waiter looks at the lists afterwards.
void EpollSet::wake_waiters() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) == 0 || waiters_lock_.owned_by_me()) return;
    std::lock_guard guard(waiters_lock_);
    waiters_.signal_all();
}

bool EpollSet::add_waiter(sockets::Waiter* waiter) noexcept {
    if (waiters_lock_.owned_by_me()) return false;
    std::lock_guard guard(waiters_lock_);
    bool added = waiters_.add(waiter);
    waiting_.store(waiters_.size(), std::memory_order_seq_cst);
    return added;
}

void EpollSet::remove_waiter(sockets::Waiter* waiter) noexcept {
    if (waiters_lock_.owned_by_me()) return;
    std::lock_guard guard(waiters_lock_);
    waiters_.remove(waiter);
    waiting_.store(waiters_.size(), std::memory_order_seq_cst);
}

// ---- events ----

// Moves the members that have reported a change to the active list.
void EpollSet::settle() noexcept {
    incoming_.take([this](Entry& e) {
        if (e.dead) return;
        if (e.moved.load(std::memory_order_acquire)) resync(e);
        active_.add(e);
    });
}

// The first entry from `from` on that has an event to report. Entries without an event leave the active list;
// members whose last descriptor is closed leave the set.
EpollSet::Entry* EpollSet::find_ready(Entry* from, unsigned depth, Dropped& dropped) noexcept {
    for (Entry* e = from; e != nullptr;) {
        bool open = e->object->has_fds();
        if (!open) {
            detach(*e);
        } else {
            if (e->walked) resync(*e);
            e->pending = edge(*e, depth);
            if (e->pending != 0) return e;
            if ((e->events & EPOLLET) != 0) looked_at(*e);
        }
        Entry* next = ActiveEntries::after(*e);
        if (!open)
            discard(*e, dropped);
        else if (!e->walked)
            active_.remove(*e);
        e = next;
    }
    return nullptr;
}

std::uint32_t EpollSet::edges_of(const Entry& e, unsigned depth) noexcept {
    FdObject* object = e.object.get();
    if (object->kind() == Kind::socket) return static_cast<Socket*>(object)->edges(wanted_events(e.events));
    return static_cast<EpollSet*>(object)->arrivals(depth + 1);
}

// The library's events of the member, reported before or not.
std::uint32_t EpollSet::level(const Entry& e, unsigned depth) noexcept {
    if (e.fired || !e.object->has_fds()) return 0;
    std::uint32_t wanted = wanted_events(e.events);
    FdObject* object = e.object.get();
    if (object->kind() == Kind::socket) {
        auto* socket = static_cast<Socket*>(object);
        return socket->readiness() == Readiness::kernel ? 0 : socket->ready_events() & wanted;
    }
    wanted &= kSetEvents;
    return wanted != 0 && depth < kMaxDepth && static_cast<EpollSet*>(object)->ready(depth + 1) ? wanted : 0;
}

// The kernel's events of a member that the kernel serves, too.
std::uint32_t EpollSet::kernel_level(const Entry& e) noexcept {
    const int number = e.removed ? -1 : number_of(e);
    if (number < 0) return 0;
    std::uint32_t wanted = wanted_events(e.events);
    pollfd asked{number, static_cast<short>(wanted), 0};
    timespec now{0, 0};
    if (os::raw_syscall(SYS_ppoll, &asked, 1, &now, nullptr, 8) <= 0 || (asked.revents & POLLNVAL) != 0)
        return 0;
    return static_cast<std::uint16_t>(asked.revents) & wanted;
}

// The library's events to report now. The edges are counted before the readiness is read, so an event between
// the two is at worst reported twice. An edge shows all events that are true at that moment, also those that
// did not cause it. So data that came and was read still makes a member report that it is writable. In the
// same way an inner set reports its other ready members.
std::uint32_t EpollSet::edge(Entry& e, unsigned depth) noexcept {
    if (e.fired) return 0;
    if ((e.events & EPOLLET) == 0) return level(e, depth);
    e.seen_edges = edges_of(e, depth);
    if (!e.fresh && e.seen_edges == e.reported_edges) return 0;
    std::uint32_t now = level(e, depth);
    if (now != 0 || e.fresh || e.mode != Readiness::both) return now;
    bool set = e.object->kind() == Kind::epoll;
    return set || (e.events & (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)) != 0 ? kernel_level(e) : 0;
}

// The reason for the member's activity is handled, with or without an event.
void EpollSet::looked_at(Entry& e) noexcept {
    e.fresh = false;
    e.reported_edges = e.seen_edges;
}

void EpollSet::reported(Entry& e) noexcept {
    e.pending = 0;
    looked_at(e);
    active_.rotate(e);
}

bool EpollSet::ready(unsigned depth) noexcept {
    if ((incoming_.empty() && active_.empty()) || busy_in_this_thread()) return false;
    Dropped dropped;
    std::lock_guard guard(lock_);
    settle();
    return find_ready(active_.first(), depth, dropped) != nullptr;
}

bool EpollSet::only_shadows() noexcept {
    if (busy_in_this_thread()) return false;
    std::lock_guard guard(lock_);
    return others_.empty() && census_.asking == 0 && census_.walked == 0;
}

std::uint32_t EpollSet::arrivals(unsigned depth) noexcept {
    if (depth > kMaxDepth || busy_in_this_thread()) return 0;
    std::lock_guard guard(lock_);
    std::uint32_t sum = edges_.load(std::memory_order_relaxed);
    if (census_.walked == 0) return sum;
    for (Entry* e = active_.first(); e != nullptr; e = ActiveEntries::after(*e))
        if (e->walked) sum += edges_of(*e, depth);
    return sum;
}

int EpollSet::collect(int epfd, epoll_event* events, int maxevents, bool kernel_ready, unsigned& offloaded) {
    offloaded = 0;
    Dropped dropped;
    std::lock_guard guard(lock_);
    last_epfd_ = epfd;
    if (dead_) bury_dead(dropped);
    settle();
    found_.clear();
    const std::size_t limit = static_cast<std::size_t>(std::max(maxevents, 1));
    for (Entry* e = find_ready(active_.first(), 0, dropped); e != nullptr;
         e = found_.size() < limit ? find_ready(ActiveEntries::after(*e), 0, dropped) : nullptr)
        found_.push_back(e);
    const int ours = static_cast<int>(found_.size());

    // Neither side may starve the other: the library's events get half of the room if they need it. With room
    // for one event, each of the library's active members has its turn, then the kernel's.
    int room = maxevents;
    if (ours != 0 && maxevents > 1) room = maxevents - std::min(ours, maxevents / 2);
    bool ask = true, told_all = true;
    bool plausible = maxevents > 0 && maxevents <= INT_MAX / static_cast<int>(sizeof(epoll_event));
    if (!kernel_ready && plausible && census_.in_kernel == 0 && others_.empty() &&
        looks_.not_asked < kMaxNotAsked) {
        looks_.not_asked++;
        ask = false;
    } else if (ours != 0 && plausible && others_.empty() && census_.asking == 0 &&
               skip_kernel(looks_.skipped, false)) {
        ask = false;
    } else if (ours != 0 && maxevents == 1) {
        ask = told_all = turns_.ours >= std::min(active_.size(), kMaxTurns);
        turns_.ours++;
    }
    int kernel = kernel_fd(epfd), got = 0;
    if (ask) {
        looks_.not_asked = 0;
        looks_.skipped = 0;
        got = ask_kernel(kernel, events, room);
        if (got < 0) return got;
        told_all = got < room;
        if (ours != 0 && maxevents == 1) kernel_had_turn(got == 1, got == 1 ? events[0].data.u64 : 0);
    }
    int n = got > 0 ? join(kernel, events, got) : 0;
    if (ours == 0) return n;
    if (events == nullptr) return -EFAULT;
    // join() has cleared `pending` of members that the kernel reported as well.
    const auto joined =
        std::count_if(found_.begin(), found_.end(), [](const Entry* e) { return e->pending == 0; });
    const int total = fill(kernel, events, n, maxevents, told_all);
    if (total > 0) offloaded = static_cast<unsigned>(total - n + static_cast<int>(joined));
    return total;
}

// With room for one event, the kernel keeps its turn until it has no event or reports a member again. Its
// level-triggered members take turns, so at that moment it has reported all of them.
void EpollSet::kernel_had_turn(bool reported, std::uint64_t data) noexcept {
    bool first = turns_.kernels++ == 0;
    if (first) turns_.kernel_first = data;
    if (!reported || (!first && data == turns_.kernel_first) || turns_.kernels >= kMaxTurns)
        turns_.ours = turns_.kernels = 0;
}

// Adds the library's events to events of the kernel, where the data identifies the member.
int EpollSet::join(int kernel, epoll_event* events, int n) noexcept {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        epoll_event event = events[i];
        auto it = data_.find(event.data.u64);
        if (it != data_.end() && it->second.ours != nullptr) {
            if ((event.events & EPOLLERR) != 0) kernel_error(event.data.u64);
            if (it->second.count == 1) {
                Entry& e = *it->second.ours;
                if (e.removed) continue;
                // The socket has become Readiness::ours since settle(), or its removal from the kernel's set
                // failed.
                auto* socket =
                    e.object->kind() == Kind::socket ? static_cast<Socket*>(e.object.get()) : nullptr;
                if (socket != nullptr && socket->readiness() == Readiness::ours) {
                    resync(e);
                    active_.add(e);
                    continue;
                }
                if ((e.events & EPOLLET) != 0) e.seen_edges = edges_of(e, 0);
                // An edge of the kernel shows the whole state, as in the kernel, also events reported before.
                std::uint32_t more = level(e);
                event.events |= more;
                if (more != 0 || e.pending != 0 || (e.events & EPOLLET) != 0) reported(e);
                if ((e.events & EPOLLONESHOT) != 0) set_fired(e);
            } else {
                find_fired(kernel, event.data.u64);
            }
        }
        events[kept++] = event;
    }
    return kept;
}

// The kernel reported one of several members with the same data. If one-shot members of this set are among
// them, the kernel has to tell which ones have fired.
void EpollSet::find_fired(int kernel, std::uint64_t data) noexcept {
    bool concerned = false;
    for (auto& [fd, e] : entries_)
        concerned |= e->data == data && (e->events & EPOLLONESHOT) != 0 && !e->fired;
    if (!concerned) return;
    try {
        for (const KernelMember& m : kernel_members(kernel)) {
            if (m.data != data || !kernel_disarmed(m.events)) continue;
            for (auto [it, end] = entries_.equal_range(m.fd); it != end; ++it)
                if (Entry& e = *it->second; e.data == data && (e.events & EPOLLONESHOT) != 0 && !e.removed)
                    set_fired(e);
        }
    } catch (const std::bad_alloc&) {
        // The kernel may then report one of them once too often.
    }
}

// The kernel's event told the program of an error, so the socket's next call has to report the error.
void EpollSet::kernel_error(std::uint64_t data) noexcept {
    const DataUse& use = data_.find(data)->second;
    auto tell = [](Entry& e) {
        if (e.object->kind() == Kind::socket) static_cast<Socket*>(e.object.get())->kernel_error_seen();
    };
    if (use.count == 1) return tell(*use.ours);
    for (auto& [fd, e] : entries_)
        if (e->data == data) tell(*e);
}

// Appends events that only the library has. An edge-triggered event shows all that is true of the member at
// that moment. So one call asks the kernel for its part of all such members. The kernel has reported a
// level-triggered member's part already, unless the library did not ask for all events.
int EpollSet::fill(int kernel, epoll_event* events, int n, int max, bool kernel_told_all) noexcept {
    constexpr int kBatch = 64;
    pollfd asked[kBatch];
    int at[kBatch], count = 0;
    auto complete = [&] {
        timespec now{0, 0};
        if (count > 0 && os::raw_syscall(SYS_ppoll, asked, count, &now, nullptr, 8) > 0)
            for (int i = 0; i < count; i++)
                if ((asked[i].revents & POLLNVAL) == 0) {
                    events[at[i]].events |= static_cast<std::uint16_t>(asked[i].revents);
                    if ((asked[i].revents & POLLERR) != 0) kernel_error(events[at[i]].data.u64);
                }
        count = 0;
    };
    for (Entry* found : found_) {
        Entry& e = *found;
        if (e.pending == 0) continue;
        if (n == max) break;
        epoll_event event{};
        event.events = e.pending;
        event.data.u64 = e.data;
        events[n] = event;
        bool modes = (e.events & EPOLLET) != 0 || !kernel_told_all;
        const bool incomplete =
            modes && !e.removed && (wanted_events(e.events) & ~e.pending & ~kImpliedEvents) != 0;
        if (const int number = incomplete ? number_of(e) : -1; number >= 0) {
            asked[count] = {number, static_cast<short>(wanted_events(e.events)), 0};
            at[count] = n;
            if (++count == kBatch) complete();
        }
        n++;
        reported(e);
        if ((e.events & EPOLLONESHOT) != 0) {
            if (!e.removed) os::raw_syscall(SYS_epoll_ctl, kernel, EPOLL_CTL_DEL, e.fd, nullptr);
            set_removed(e, true);
            set_fired(e);
        }
        // The next edge puts the member back on the list.
        if ((e.events & (EPOLLET | EPOLLONESHOT)) != 0 && !e.walked) active_.remove(e);
    }
    complete();
    return n;
}

}  // namespace vma::iomux
