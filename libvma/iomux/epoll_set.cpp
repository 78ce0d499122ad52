// SPDX-License-Identifier: BSD-2-Clause
// Membership and events of an EpollSet. How one comes into being is in epoll_set_life.cpp.
#include "libvma/iomux/epoll_set.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "libvma/iomux/kernel_set.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"

namespace vma::iomux {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Ref;
using sockets::Socket;

namespace {

constexpr std::uint32_t kOurs = EPOLLIN | EPOLLRDNORM;
// The kernel reports these whether asked to or not.
constexpr std::uint32_t kImplied = EPOLLERR | EPOLLHUP;
constexpr std::uint32_t kPollBits = 0xffff;  // the rest are modes: EPOLLET and so on

// Events for the library's own wake-up call (see kernel_set.h) are left out.
int ask_kernel(int kernel, epoll_event* events, int max) noexcept {
    for (int attempt = 0;; attempt++) {
        // Not a cancellation point: edges and one-shots taken here would be lost.
        auto got = static_cast<int>(os::raw_syscall(SYS_epoll_pwait, kernel, events, max, 0, nullptr, 8));
        if (got <= 0) return got;
        int n = 0;
        for (int i = 0; i < got; i++)
            if (!sleepers::is_kick(events[i].data.u64)) events[n++] = events[i];
        if (n > 0 || got < max || attempt == 1) return n;
    }
}

}  // namespace

// ---- members ----

EpollSet::Entry* EpollSet::entry(int fd, const FdObject* object) noexcept {
    for (auto& e : entries_)
        if (e->fd == fd && e->object.get() == object) return e.get();
    return nullptr;
}

void EpollSet::use_data(std::uint64_t data, Entry* ours) {
    DataUse& use = data_[data];
    use.count++;
    if (ours != nullptr) use.ours = ours;
}

void EpollSet::unuse_data(std::uint64_t data, Entry* ours) noexcept {
    auto it = data_.find(data);
    if (it == data_.end()) return;
    if (--it->second.count == 0) {
        data_.erase(it);
    } else if (ours != nullptr && it->second.ours == ours) {
        it->second.ours = nullptr;
        for (auto& e : entries_)
            if (e.get() != ours && e->data == data) it->second.ours = e.get();
    }
}

EpollSet::Entry& EpollSet::put(int fd, Ref<FdObject>&& object, std::uint32_t events, std::uint64_t data) {
    auto made = std::make_unique<Entry>();
    Entry& e = *made;
    e.fd = fd;
    e.object = std::move(object);
    e.events = events;
    e.data = data;
    entries_.push_back(std::move(made));
    try {
        use_data(data, &e);
    } catch (...) {
        entries_.pop_back();
        throw;
    }
    return e;
}

void EpollSet::put_other(int fd, std::uint64_t data) {
    forget_other(fd);
    others_[fd] = data;
    use_data(data, nullptr);
}

void EpollSet::forget_other(int fd) noexcept {
    auto it = others_.find(fd);
    if (it == others_.end()) return;
    unuse_data(it->second, nullptr);
    others_.erase(it);
}

void EpollSet::drop(const Entry& e, Dropped& dropped) noexcept {
    auto it = std::find_if(entries_.begin(), entries_.end(), [&](auto& p) { return p.get() == &e; });
    if (it == entries_.end()) return;
    std::unique_ptr<Entry> gone = std::move(*it);
    *it = std::move(entries_.back());
    entries_.pop_back();
    unuse_data(gone->data, gone.get());
    dropped.add(std::move(gone));
}

// What the kernel, by accepting `fd`, says is no longer a member under that number. The same number with another live
// file stays: a socket that was added, duplicated and closed under this number is still a member.
void EpollSet::drop_stale(int fd, const FdObject* object, Dropped& dropped) noexcept {
    for (std::size_t i = entries_.size(); i-- > 0;)
        if (Entry& e = *entries_[i]; e.fd == fd && (e.object.get() == object || !e.object->has_fds()))
            drop(e, dropped);
    forget_other(fd);
}

// A member leaves the set with the last descriptor that refers to it.
void EpollSet::purge(Dropped& dropped) noexcept {
    bool any = false;
    for (std::size_t i = entries_.size(); i-- > 0;)
        if (!entries_[i]->object->has_fds()) {
            drop(*entries_[i], dropped);
            any = true;
        }
    if (any) changed();
}

void EpollSet::clear(Dropped& dropped) noexcept {
    while (!entries_.empty()) drop(*entries_.back(), dropped);
    others_.clear();
    data_.clear();
    changed();
}

void EpollSet::changed() noexcept {
    members_.reset();
    generation_.fetch_add(1, std::memory_order_acq_rel);
    wake_waiters();
}

void EpollSet::wake_waiters() noexcept { waiters_.signal_all(); }

std::shared_ptr<const EpollSet::Members> EpollSet::members() {
    Dropped dropped;
    std::lock_guard guard(lock_);
    purge(dropped);
    if (members_) return members_;
    auto made = std::make_shared<Members>();
    for (auto& e : entries_) {
        FdObject* object = e->object.get();
        if (!object->try_ref()) continue;
        if (object->kind() == Kind::socket) {
            Ref<Socket> socket(static_cast<Socket*>(object));
            made->sockets.push_back(std::move(socket));
        } else {
            Ref<EpollSet> set(static_cast<EpollSet*>(object));
            made->sets.push_back(std::move(set));
        }
    }
    made->generation = generation();
    members_ = std::move(made);
    return members_;
}

bool EpollSet::add_waiter(sockets::Waiter* waiter) noexcept {
    if (busy_in_this_thread()) return false;
    std::lock_guard guard(lock_);
    return waiters_.add(waiter);
}

void EpollSet::remove_waiter(sockets::Waiter* waiter) noexcept {
    if (busy_in_this_thread()) return;
    std::lock_guard guard(lock_);
    waiters_.remove(waiter);
}

// ---- epoll_ctl ----

int EpollSet::control(int epfd, int op, int fd, epoll_event* event) {
    if (busy_in_this_thread()) return os::epoll_ctl(epfd, op, fd, event) == 0 ? 0 : -errno;
    Ref<FdObject> object = g_fds.find(fd);
    Dropped dropped;
    std::lock_guard guard(lock_);
    return control_locked(epfd, op, fd, event, std::move(object), dropped);
}

// The kernel first: it knows every reason to refuse. Held together under the lock, so that no other thread sees the
// two sides apart.
int EpollSet::control_locked(int epfd, int op, int fd, epoll_event* event, Ref<FdObject>&& object, Dropped& dropped) {
    Entry* e = object ? entry(fd, object.get()) : nullptr;
    if (e != nullptr && e->removed) return control_removed(epfd, op, fd, event, *e, dropped);
    if (os::epoll_ctl(epfd, op, fd, event) != 0) return -errno;
    switch (op) {
        case EPOLL_CTL_ADD:
            try {
                drop_stale(fd, object.get(), dropped);
                if (object)
                    put(fd, std::move(object), event->events, event->data.u64);
                else
                    put_other(fd, event->data.u64);
            } catch (const std::bad_alloc&) {
                os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
                return -ENOMEM;
            }
            changed();
            break;
        case EPOLL_CTL_MOD:
            if (e != nullptr)
                modify(*e, *event);
            else
                put_other(fd, event->data.u64);
            wake_waiters();
            break;
        case EPOLL_CTL_DEL:
            if (e != nullptr)
                drop(*e, dropped);
            else
                forget_other(fd);
            changed();
            break;
    }
    return 0;
}

void EpollSet::modify(Entry& e, const epoll_event& event) {
    std::uint64_t data = event.data.u64;
    if (data != e.data) {
        use_data(data, &e);
        std::uint64_t old = e.data;
        e.data = data;
        unuse_data(old, &e);
    }
    e.events = event.events;
    e.fired = e.removed = false;
    e.fresh = true;
}

// A one-shot member that we reported is not in the kernel's set, but the program must not notice. The kernel is asked
// all the same, for the errors that have nothing to do with membership.
int EpollSet::control_removed(int epfd, int op, int fd, epoll_event* event, Entry& e, Dropped& dropped) {
    bool accepted = os::epoll_ctl(epfd, op, fd, event) == 0;
    if (!accepted && errno != ENOENT) return -errno;
    switch (op) {
        case EPOLL_CTL_ADD:
            if (!accepted) return -errno;
            os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
            return -EEXIST;
        case EPOLL_CTL_MOD:
            if (!accepted && os::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, event) != 0) return -errno;
            modify(e, *event);
            wake_waiters();
            return 0;
        default:
            drop(e, dropped);
            changed();
            return 0;
    }
}

void EpollSet::added(int fd, const epoll_event& event) {
    Ref<FdObject> object = g_fds.find(fd);
    if (!object) return;
    Dropped dropped;
    std::lock_guard guard(lock_);
    drop_stale(fd, object.get(), dropped);
    put(fd, std::move(object), event.events, event.data.u64);
    changed();
}

// ---- events ----

std::uint32_t EpollSet::arrivals_of(const Entry& e, unsigned depth) noexcept {
    FdObject* object = e.object.get();
    if (object->kind() == Kind::socket) return static_cast<Socket*>(object)->arrivals();
    return static_cast<EpollSet*>(object)->arrivals(depth + 1);
}

// What our side of the member has, whether reported before or not.
std::uint32_t EpollSet::level(const Entry& e, unsigned depth) noexcept {
    std::uint32_t wanted = e.events & kOurs;
    if (e.fired || wanted == 0 || !e.object->has_fds()) return 0;
    FdObject* object = e.object.get();
    if (object->kind() == Kind::socket) return static_cast<Socket*>(object)->ready_events() & wanted;
    return depth < kMaxDepth && static_cast<EpollSet*>(object)->ready(depth + 1) ? wanted : 0;
}

// What our side has to report now. The arrivals are read before the readiness: a datagram between the two is at worst
// reported once more.
std::uint32_t EpollSet::edge(Entry& e, unsigned depth) noexcept {
    if (e.fired) return 0;
    if ((e.events & EPOLLET) == 0) return level(e, depth);
    e.seen_arrivals = arrivals_of(e, depth);
    if (!e.fresh && e.seen_arrivals == e.reported_arrivals) return 0;
    return level(e, depth);
}

void EpollSet::reported(Entry& e) noexcept {
    e.pending = 0;
    e.fresh = false;
    e.reported_arrivals = e.seen_arrivals;
}

bool EpollSet::ready(unsigned depth) noexcept {
    if (busy_in_this_thread()) return false;
    std::lock_guard guard(lock_);
    for (auto& e : entries_)
        if (edge(*e, depth) != 0) return true;
    return false;
}

std::uint32_t EpollSet::arrivals(unsigned depth) noexcept {
    if (depth > kMaxDepth || busy_in_this_thread()) return 0;
    std::lock_guard guard(lock_);
    // The generation too: a member that is ready when it is added is an edge for the set around.
    auto sum = static_cast<std::uint32_t>(generation());
    for (auto& e : entries_) sum += arrivals_of(*e, depth);
    return sum;
}

int EpollSet::collect(int epfd, epoll_event* events, int maxevents) {
    Dropped dropped;
    std::lock_guard guard(lock_);
    purge(dropped);
    int ours = 0;
    for (auto& e : entries_)
        if ((e->pending = edge(*e)) != 0) ours++;

    // Neither side may starve the other: ours gets half of the room if it needs it, and every second turn if there is
    // room for one event only.
    int room = maxevents;
    if (ours != 0 && maxevents > 1) room = maxevents - std::min(ours, maxevents / 2);
    bool ask = true;
    if (ours != 0 && maxevents == 1) ask = kernel_turn_ = !kernel_turn_;
    int kernel = kernel_fd(epfd), got = 0;
    if (ask) {
        got = ask_kernel(kernel, events, room);
        if (got < 0) return got;
    }
    bool told_all = ask && got < room;
    int n = got > 0 ? join(kernel, events, got) : 0;
    if (ours == 0) return n;
    if (events == nullptr) return -EFAULT;
    return fill(kernel, events, n, maxevents, told_all);
}

// Adds our side to events of the kernel, where the member is recognised.
int EpollSet::join(int kernel, epoll_event* events, int n) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        epoll_event event = events[i];
        auto it = data_.find(event.data.u64);
        if (it != data_.end() && it->second.ours != nullptr) {
            if (it->second.count == 1) {
                Entry& e = *it->second.ours;
                if (e.removed) continue;
                if ((e.events & EPOLLET) != 0) e.seen_arrivals = arrivals_of(e, 0);
                // An edge of the kernel's shows the whole state, as the kernel does it, whatever was reported before.
                if (std::uint32_t more = level(e); more != 0) {
                    event.events |= more;
                    reported(e);
                }
                if ((e.events & EPOLLONESHOT) != 0) {
                    e.fired = true;
                    e.pending = 0;
                }
            } else {
                find_fired(kernel, event.data.u64);
            }
        }
        events[kept++] = event;
    }
    return kept;
}

// The kernel reported one of several members with the same data. If one-shot members of ours are among them, the kernel
// has to be asked which ones have fired.
void EpollSet::find_fired(int kernel, std::uint64_t data) noexcept {
    bool concerned = false;
    for (auto& e : entries_) concerned |= e->data == data && (e->events & EPOLLONESHOT) != 0 && !e->fired;
    if (!concerned) return;
    try {
        for (const KernelMember& m : kernel_members(kernel)) {
            if (m.data != data || !kernel_disarmed(m.events)) continue;
            for (auto& e : entries_)
                if (e->fd == m.fd && e->data == data && (e->events & EPOLLONESHOT) != 0 && !e->removed) {
                    e->fired = true;
                    e->pending = 0;
                }
        }
    } catch (const std::bad_alloc&) {
        // Then one of them may be reported once too often.
    }
}

// Appends events that only our side has. An edge-triggered event shows all that is true of the member at that moment,
// so the kernel is asked for its part (all such members in one call); for a level-triggered one the kernel has
// reported it already, unless it was not asked for everything.
int EpollSet::fill(int kernel, epoll_event* events, int n, int max, bool kernel_told_all) noexcept {
    constexpr int kBatch = 64;
    pollfd asked[kBatch];
    int at[kBatch], count = 0;
    auto complete = [&] {
        timespec now{0, 0};
        if (count > 0 && os::raw_syscall(SYS_ppoll, asked, count, &now, nullptr, 8) > 0)
            for (int i = 0; i < count; i++)
                if ((asked[i].revents & POLLNVAL) == 0)
                    events[at[i]].events |= static_cast<std::uint16_t>(asked[i].revents);
        count = 0;
    };
    std::size_t size = entries_.size(), start = size != 0 ? next_entry_ % size : 0;
    for (std::size_t i = 0; i < size && n < max; i++) {
        std::size_t index = (start + i) % size;
        Entry& e = *entries_[index];
        if (e.pending == 0) continue;
        epoll_event event{};
        event.events = e.pending;
        event.data.u64 = e.data;
        events[n] = event;
        bool modes = (e.events & EPOLLET) != 0 || !kernel_told_all;
        if (modes && (e.events & kPollBits & ~(kOurs | kImplied)) != 0 && g_fds.peek(e.fd) == e.object.get()) {
            asked[count] = {e.fd, static_cast<short>(e.events & kPollBits), 0};
            at[count] = n;
            if (++count == kBatch) complete();
        }
        n++;
        reported(e);
        next_entry_ = index + 1;
        if ((e.events & EPOLLONESHOT) != 0) {
            os::raw_syscall(SYS_epoll_ctl, kernel, EPOLL_CTL_DEL, e.fd, nullptr);
            e.fired = e.removed = true;
        }
    }
    complete();
    for (auto& e : entries_) e->pending = 0;
    return n;
}

}  // namespace vma::iomux
