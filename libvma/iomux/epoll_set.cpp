// SPDX-License-Identifier: BSD-2-Clause
// Membership of an EpollSet, in the library's set and the kernel's. epoll_events.cpp handles events,
// epoll_set_life.cpp makes and ends sets.
#include "libvma/iomux/epoll_set.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"

namespace vma::iomux {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Readiness;
using sockets::Ref;
using sockets::Socket;

namespace {

Socket* as_socket(FdObject* object) noexcept {
    return object->kind() == Kind::socket ? static_cast<Socket*>(object) : nullptr;
}

Readiness readiness_of(FdObject* object) noexcept {
    Socket* socket = as_socket(object);
    return socket != nullptr ? socket->readiness() : Readiness::both;
}

epoll_event event_of(const EpollEntry& e) noexcept {
    epoll_event event{};
    event.events = e.events;
    event.data.u64 = e.data;
    return event;
}

}  // namespace

// ---- members ----

EpollSet::Entry* EpollSet::entry(int fd, const FdObject* object) noexcept {
    auto [it, end] = entries_.equal_range(fd);
    for (; it != end; ++it)
        if (it->second->object.get() == object) return it->second.get();
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
        for (auto& [fd, e] : entries_)
            if (e.get() != ours && e->data == data) it->second.ours = e.get();
    }
}

EpollSet::Entry& EpollSet::put(int fd, Ref<FdObject>&& object, std::uint32_t events, std::uint64_t data,
                               bool in_kernel) {
    auto made = std::make_unique<Entry>(*this);
    Entry& e = *made;
    e.fd = fd;
    e.object = std::move(object);
    e.events = events;
    e.data = data;
    e.interest.store(wanted_events(events), std::memory_order_relaxed);
    use_data(data, &e);
    try {
        entries_.emplace(fd, std::move(made));
    } catch (...) {
        unuse_data(data, &e);
        throw;
    }
    e.removed = !in_kernel;
    if (in_kernel) census_.in_kernel++;
    // From here on the socket reports changes; the first look finds earlier ones.
    Socket* socket = as_socket(e.object.get());
    e.walked = socket == nullptr || !socket->subscribe(&e);
    if (e.walked) census_.walked++;
    count_asking(e, true);
    resync(e);
    activate(e);
    if (e.walked || e.own_rings) changed();
    return e;
}

void EpollSet::count_asking(Entry& e, bool member) noexcept {
    const bool asking =
        member && (!only_reads(e.events) || e.object->kind() != Kind::socket || e.mode == Readiness::kernel);
    if (asking != e.asking) asking ? census_.asking++ : census_.asking--;
    e.asking = asking;
    const bool room = member && (e.events & EPOLLET) != 0 && (e.events & sockets::kWakeOut) != 0 &&
                      as_socket(e.object.get()) != nullptr;
    if (room != e.room_watched) as_socket(e.object.get())->watch_room(room ? 1 : -1);
    e.room_watched = room;
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

void EpollSet::drop(Entry& e, Dropped& dropped) noexcept {
    detach(e);
    discard(e, dropped);
}

// After this the entry is on no list but the active one, and no hook puts it on another. settle() may move
// other entries to the end of the active list.
void EpollSet::detach(Entry& e) noexcept {
    e.interest.store(0, std::memory_order_relaxed);
    if (!e.walked) e.dead = !as_socket(e.object.get())->unsubscribe(&e);
    settle();
}

void EpollSet::discard(Entry& e, Dropped& dropped) noexcept {
    auto [it, end] = entries_.equal_range(e.fd);
    it = std::find_if(it, end, [&](auto& p) { return p.second.get() == &e; });
    if (it == end) return;
    std::unique_ptr<Entry> gone = std::move(it->second);
    entries_.erase(it);
    // A member that this process has closed stays in the kernel's set as long as another process has the
    // socket.
    const Socket* socket = as_socket(gone->object.get());
    if (!gone->removed && !gone->object->has_fds() && socket != nullptr && socket->lives_elsewhere()) {
        try {
            put_other(gone->fd, gone->data);
        } catch (const std::bad_alloc&) {
            // The library then asks the kernel only once in kMaxNotAsked looks.
        }
    }
    unuse_data(gone->data, gone.get());
    active_.remove(*gone);
    if (!gone->removed) census_.in_kernel--;
    set_mode(*gone, Readiness::kernel);
    if (gone->walked) census_.walked--;
    count_asking(*gone, false);
    if (gone->walked || gone->own_rings) changed();
    if (gone->dead) {
        gone->next = std::move(dead_);
        dead_ = std::move(gone);
    } else {
        dropped.add(std::move(gone));
    }
    // Finding the unused rings costs a visit to each member, so it happens only after many members have left.
    constexpr std::size_t kMinLeft = 64;
    if (++census_.left > std::max(kMinLeft, entries_.size()) || entries_.empty()) {
        census_.left = 0;
        if (rings_.empty()) return;
        rings_.clear();
        changed();
        for (auto& [fd, rest] : entries_) find_rings(*rest);
    }
}

// Frees members whose hook was still in place when they left, because a signal handler had interrupted their
// socket.
void EpollSet::bury_dead(Dropped& dropped) noexcept {
    std::unique_ptr<Entry> still;
    while (dead_) {
        std::unique_ptr<Entry> e = std::move(dead_);
        dead_ = std::move(e->next);
        if (as_socket(e->object.get())->unsubscribe(e.get())) {
            settle();
            dropped.add(std::move(e));
        } else {
            e->next = std::move(still);
            still = std::move(e);
        }
    }
    dead_ = std::move(still);
}

// The kernel has accepted `fd`, so closed members under that number are stale and go. A member with another
// live file stays: a socket that was added, duplicated and closed under this number is still a member.
void EpollSet::drop_stale(int fd, const FdObject* object, Dropped& dropped) noexcept {
    auto stale = [&]() -> Entry* {
        auto [it, end] = entries_.equal_range(fd);
        for (; it != end; ++it)
            if (Entry& e = *it->second; e.object.get() == object || !e.object->has_fds()) return &e;
        return nullptr;
    };
    while (Entry* e = stale()) drop(*e, dropped);
    forget_other(fd);
}

void EpollSet::clear(Dropped& dropped) noexcept {
    if (dead_) bury_dead(dropped);
    while (!entries_.empty()) drop(*entries_.begin()->second, dropped);
    others_.clear();
    data_.clear();
    changed();
}

void EpollSet::changed() noexcept {
    members_.reset();
    generation_.fetch_add(1, std::memory_order_acq_rel);
    wake_waiters();
}

std::shared_ptr<const EpollSet::Members> EpollSet::members() {
    Dropped dropped;
    std::lock_guard guard(lock_);
    settle();
    if (members_) return members_;
    auto made = std::make_shared<Members>();
    for (auto& [fd, e] : entries_) {
        FdObject* object = e->object.get();
        if (!e->walked && !e->own_rings) continue;
        if (!object->has_fds() || !object->try_ref()) continue;
        if (object->kind() == Kind::socket) {
            Ref<Socket> socket(static_cast<Socket*>(object));
            made->sockets.push_back(std::move(socket));
        } else {
            Ref<EpollSet> set(static_cast<EpollSet*>(object));
            made->sets.push_back(std::move(set));
        }
    }
    made->rings = rings_;
    made->generation = generation();
    members_ = std::move(made);
    return members_;
}

// ---- the kernel's set ----

int EpollSet::any_kernel_fd() const noexcept {
    if (own_fd_) return own_fd_.get();
    return g_fds.peek(last_epfd_) == this ? last_epfd_ : -1;
}

void EpollSet::set_mode(Entry& e, Readiness mode) noexcept {
    if ((e.mode == Readiness::kernel) != (mode == Readiness::kernel))
        offloaded_.fetch_add(mode == Readiness::kernel ? ~0u : 1u, std::memory_order_relaxed);
    e.mode = mode;
    count_asking(e, true);
}

void EpollSet::set_fired(Entry& e) noexcept {
    e.fired = true;
    e.pending = 0;
    e.interest.store(0, std::memory_order_relaxed);
}

void EpollSet::set_removed(Entry& e, bool removed) noexcept {
    if (e.removed == removed) return;
    e.removed = removed;
    removed ? census_.in_kernel-- : census_.in_kernel++;
}

// Updates an entry after its hook reported 0 (EpollEntry::wake).
void EpollSet::resync(Entry& e) noexcept {
    Socket* socket = as_socket(e.object.get());
    if (socket == nullptr) return;
    e.moved.exchange(false, std::memory_order_acq_rel);
    Readiness mode = socket->readiness();
    set_mode(e, mode);
    if (mode == Readiness::ours && !e.removed) leave_kernel(e);
    if (mode != Readiness::ours && e.removed && !e.fired) enter_kernel(e);
    find_rings(e);
}

// The kernel identifies a member by the number at EPOLL_CTL_ADD. If that number means another file now (the
// socket lives on in a duplicate), the member stays in the kernel's set. join() then leaves out the kernel's
// events of the member.
void EpollSet::leave_kernel(Entry& e) noexcept {
    if (g_fds.peek(e.fd) != e.object.get()) return;
    long rc = os::raw_syscall(SYS_epoll_ctl, any_kernel_fd(), EPOLL_CTL_DEL, e.fd, nullptr);
    if (rc == 0 || rc == -ENOENT) set_removed(e, true);
}

// A present number of the member's object; -1 without one.
int EpollSet::number_of(const Entry& e) noexcept {
    if (g_fds.peek(e.fd) == e.object.get()) return e.fd;
    int number = -1;
    constexpr unsigned kLast = sockets::FdTable::kTop * sockets::FdTable::kLeaf - 1;
    g_fds.for_each(0, kLast, [&](int fd, FdObject* object) {
        if (object == e.object.get()) number = fd;
    });
    return number;
}

void EpollSet::enter_kernel(Entry& e) noexcept {
    const int number = number_of(e);
    if (number < 0) return;
    epoll_event event = event_of(e);
    if (e.fired)
        event.events =
            EPOLLONESHOT;  // no events until MOD, except errors and hang-ups, which the kernel adds
    long rc = os::raw_syscall(SYS_epoll_ctl, any_kernel_fd(), EPOLL_CTL_ADD, number, &event);
    if (rc == 0 || rc == -EEXIST) set_removed(e, false);
}

void EpollSet::find_rings(Entry& e) noexcept {
    Socket* socket = as_socket(e.object.get());
    if (socket == nullptr) return;
    constexpr unsigned kRoom = 16;
    ring::Ring* rings[kRoom];
    unsigned n = socket->rings(rings, kRoom);
    bool own = n > kRoom, news = own != e.own_rings;  // n may be kRingsUnknown
    for (unsigned i = 0; !own && i < n; i++) {
        if (std::find(rings_.begin(), rings_.end(), rings[i]) != rings_.end()) continue;
        try {
            rings_.push_back(rings[i]);
        } catch (const std::bad_alloc&) {
            own = true;
        }
        news = true;
    }
    e.own_rings = own;
    if (news) changed();
}

// ---- epoll_ctl ----

int EpollSet::control(int epfd, int op, int fd, epoll_event* event) {
    if (busy_in_this_thread()) return os::epoll_ctl(epfd, op, fd, event) == 0 ? 0 : -errno;
    Ref<FdObject> object = g_fds.find(fd);
    Dropped dropped;
    std::lock_guard guard(lock_);
    return control_locked(epfd, op, fd, event, std::move(object), dropped);
}

// The kernel's set changes first, because the kernel knows every reason to refuse. The lock covers both
// sides, so no other thread sees them differ.
int EpollSet::control_locked(int epfd, int op, int fd, epoll_event* event, Ref<FdObject>&& object,
                             Dropped& dropped) {
    last_epfd_ = epfd;
    Entry* e = object ? entry(fd, object.get()) : nullptr;
    if (e != nullptr && e->removed) return control_removed(epfd, op, fd, event, *e, dropped);
    bool in_kernel = true;
    if (op == EPOLL_CTL_ADD && e == nullptr && object && readiness_of(object.get()) == Readiness::ours) {
        // The library would remove the member at once, after the shadow's events had woken every waiter. So a
        // MOD of a member that does not exist makes the kernel check the arguments.
        in_kernel = !(os::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, event) != 0 && errno == ENOENT);
    }
    if (in_kernel && os::epoll_ctl(epfd, op, fd, event) != 0) return -errno;
    switch (op) {
        case EPOLL_CTL_ADD:
            try {
                drop_stale(fd, object.get(), dropped);
                if (object)
                    announce(put(fd, std::move(object), event->events, event->data.u64, in_kernel), false);
                else
                    put_other(fd, event->data.u64);
            } catch (const std::bad_alloc&) {
                if (in_kernel) os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
                return -ENOMEM;
            }
            break;
        case EPOLL_CTL_MOD:
            if (e != nullptr)
                modify(*e, *event);
            else
                put_other(fd, event->data.u64);
            break;
        case EPOLL_CTL_DEL:
            if (e != nullptr)
                drop(*e, dropped);
            else
                forget_other(fd);
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
    count_asking(e, true);
    e.fired = false;
    e.fresh = true;
    // Stored before the look at the member's state that follows, see EpollEntry::wake.
    e.interest.store(wanted_events(e.events), std::memory_order_seq_cst);
    bool listed = e.active;
    activate(e);
    announce(e, listed);
}

// A member that was added or changed comes on the active list if it is ready, as in the kernel. Otherwise its
// next change brings it there, so members are reported in the order in which they become ready.
void EpollSet::activate(Entry& e) noexcept {
    if (e.walked || edge(e) != 0)
        active_.add(e);
    else if ((e.events & EPOLLET) != 0 && !e.active)
        looked_at(e);
}

// After a member was added or changed: wakes the waiters if the member is ready, as the kernel does. For a
// set around this one the change is an edge, unless the member was on the active list already.
void EpollSet::announce(Entry& e, bool listed) noexcept {
    if (level(e) == 0) return;
    if (!listed) edges_.fetch_add(1, std::memory_order_relaxed);
    wake_waiters();
}

// Controls a member that is not in the kernel's set, because it is Readiness::ours or has fired. The program
// must not notice the difference. The library still calls the kernel, for the errors that do not depend on
// membership.
int EpollSet::control_removed(int epfd, int op, int fd, epoll_event* event, Entry& e, Dropped& dropped) {
    bool accepted = os::epoll_ctl(epfd, op, fd, event) == 0;
    if (!accepted && errno != ENOENT) return -errno;
    switch (op) {
        case EPOLL_CTL_ADD:
            if (!accepted) return -errno;
            os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
            return -EEXIST;
        case EPOLL_CTL_MOD:
            if ((e.events & EPOLLEXCLUSIVE) != 0) return -EINVAL;
            if (readiness_of(e.object.get()) != Readiness::ours) {
                if (!accepted && os::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, event) != 0) return -errno;
                set_removed(e, false);
            } else if (accepted) {
                os::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
            }
            modify(e, *event);
            return 0;
        default:
            drop(e, dropped);
            return 0;
    }
}

void EpollSet::added(int fd, const epoll_event& event) {
    Ref<FdObject> object = g_fds.find(fd);
    if (!object) return;
    Dropped dropped;
    std::lock_guard guard(lock_);
    if (entry(fd, object.get()) != nullptr) return;  // adopt() has found it in the kernel's set
    drop_stale(fd, object.get(), dropped);
    announce(put(fd, std::move(object), event.events, event.data.u64), false);
}

}  // namespace vma::iomux
