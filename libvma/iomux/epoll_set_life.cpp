// SPDX-License-Identifier: BSD-2-Clause
// Makes and ends EpollSets.
//
// A set is made late, when a kernel set gets its first offloaded member, so that programs which wait only for
// kernel descriptors pay nothing. The library reads the kernel set's earlier state from the kernel: its
// members, its other numbers, the sets around it. Then it wakes the threads that sleep in the kernel set, and
// they come back through this library.
#include <sys/stat.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "libvma/iomux/epoll_set.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/stack.h"

namespace vma::iomux {

using sockets::FdObject;
using sockets::g_fds;
using sockets::Kind;
using sockets::Ref;

namespace {

constinit Lock g_make_lock;  // one set at a time, so that an epoll descriptor gets one object
constinit Lock g_free_lock;
constinit EpollSet* g_free =
    nullptr;  // objects are never given back to the allocator, see sockets/fd_object.h

std::uint64_t inode_of(int fd) noexcept {
    struct stat st {};
    return os::raw_syscall(SYS_fstat, fd, &st) == 0 ? st.st_ino : 0;
}

constinit std::atomic<bool> g_any{false};

void renew_sets() noexcept {
    // The child forgets the sets themselves with the descriptor table.
    new (&g_make_lock) Lock();
    new (&g_free_lock) Lock();
    g_free = nullptr;
}
VMA_RENEW_IN_CHILD(renew_sets);

}  // namespace

bool EpollSet::any() noexcept { return g_any.load(std::memory_order_acquire); }

Ref<EpollSet> EpollSet::find(int epfd) noexcept {
    if (g_fds.peek(epfd) == nullptr) return {};
    Ref<FdObject> object = g_fds.find(epfd);
    if (!object || object->kind() != Kind::epoll || !object->try_ref()) return {};
    return Ref<EpollSet>(static_cast<EpollSet*>(object.get()));
}

Ref<EpollSet> EpollSet::make(int epfd) {
    g_any.store(true);
    runtime::install_fork_hooks();
    EpollSet* set = nullptr;
    {
        std::lock_guard guard(g_free_lock);
        set = g_free;
        if (set != nullptr) g_free = set->next_free_;
    }
    if (set == nullptr) {
        set = new EpollSet;
    } else {
        set->next_free_ = nullptr;
        set->refs_.store(1, std::memory_order_release);
    }
    Ref<EpollSet> ref(set);
    set->own_fd_ = InternalFd(os::dup(epfd));
    set->counters_ = stats::open_epoll(epfd);
    return ref;
}

Ref<EpollSet> EpollSet::find_or_make(int epfd) {
    if (g_make_lock.owned_by_me()) return {};  // in a handler that interrupted this function
    // A child may ask for the set, whatever state its members are in.
    if (sockets::Stack* stack = sockets::Stack::running()) stack->use();
    std::lock_guard guard(g_make_lock);
    std::vector<int> made;
    Ref<EpollSet> set = find_or_make_locked(epfd, made);
    // Kicks when all sets exist: a thread that wakes up for one of them must see the others, too.
    sleepers::kick(made);
    return set;
}

Ref<EpollSet> EpollSet::find_or_make_locked(int epfd, std::vector<int>& made) {
    if (Ref<EpollSet> known = find(epfd)) return known;
    Ref<EpollSet> set = make(epfd);
    set->adopt(epfd);
    if (!g_fds.insert(epfd, set.get())) return {};
    made.push_back(epfd);
    for (int other : epoll_descriptors(epfd)) {
        if (same_file(other, epfd)) {
            if (g_fds.peek(other) == nullptr && g_fds.insert(other, set.get())) made.push_back(other);
        } else if (is_member(other, epfd)) {
            if (Ref<EpollSet> outer = find(other))
                outer->adopt_member(other, epfd);
            else
                find_or_make_locked(other, made);
        }
    }
    return set;
}

int EpollSet::without_kicked(epoll_event* events, int n) noexcept {
    if (busy_in_this_thread()) return n;
    std::lock_guard guard(lock_);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        auto it = data_.find(events[i].data.u64);
        const Entry* e = it != data_.end() && it->second.count == 1 ? it->second.ours : nullptr;
        if (e != nullptr && e->object->kind() == Kind::epoll && kernel_level(*e) == 0) continue;
        events[kept++] = events[i];
    }
    return kept;
}

// No other thread knows this set yet.
void EpollSet::adopt(int epfd) {
    for (const KernelMember& m : kernel_members(epfd)) {
        Ref<FdObject> object = g_fds.find(m.fd);
        if (object && inode_of(m.fd) == m.inode) {
            Entry& e = put(m.fd, std::move(object), m.events, m.data);
            if (kernel_disarmed(m.events)) set_fired(e);
        } else {
            put_other(m.fd, m.data);
        }
    }
}

// `fd`, until now a member that only the kernel served, has become an EpollSet.
void EpollSet::adopt_member(int epfd, int fd) {
    Ref<FdObject> object = g_fds.find(fd);
    if (!object || busy_in_this_thread()) return;
    std::vector<KernelMember> members = kernel_members(epfd);
    Dropped dropped;
    std::lock_guard guard(lock_);
    if (entry(fd, object.get()) != nullptr) return;
    for (const KernelMember& m : members) {
        if (m.fd != fd) continue;
        drop_stale(fd, object.get(), dropped);
        put(fd, std::move(object), m.events, m.data).fired = kernel_disarmed(m.events);
        changed();
        return;
    }
}

// Calls the members without lock_, because a handover takes their locks and wakes this set.
void EpollSet::leave_to_kernel(int, sockets::LeaveCause why) noexcept {
    if (busy_in_this_thread()) return;
    try {
        std::vector<std::pair<int, Ref<FdObject>>> members;
        {
            std::lock_guard guard(lock_);
            members.reserve(entries_.size());
            for (auto& [fd, e] : entries_)
                if (const int number = number_of(*e); number >= 0 && e->object->try_ref())
                    members.emplace_back(number, Ref<FdObject>(e->object.get()));
        }
        for (auto& [fd, object] : members) object->leave_to_kernel(fd, why);
    } catch (const std::bad_alloc&) {
        log::once(log::Level::warn, "members of an epoll set are not left to the kernel ({}): out of memory",
                  why.text);
    }
    sync_with_kernel();
}

void EpollSet::sync_with_kernel() noexcept {
    if (busy_in_this_thread()) return;
    std::lock_guard guard(lock_);
    for (auto& [fd, e] : entries_) {
        resync(*e);
        if (e->fired && e->removed && e->mode != sockets::Readiness::ours) enter_kernel(*e);
    }
}

EpollSet::Call::Call(EpollSet& set, int epfd) noexcept : set_(set), epfd_(epfd) {
    std::lock_guard guard(set_.lock_);
    set_.calls_++;
}

EpollSet::Call::~Call() {
    Dropped dropped;
    std::lock_guard guard(set_.lock_);
    if (--set_.calls_ == 0 && set_.closed_) {
        set_.clear(dropped);
        set_.own_fd_.reset();
    }
}

void EpollSet::last_fd_closed() noexcept {
    Dropped dropped;
    std::lock_guard guard(lock_);
    closed_ = true;
    if (calls_ != 0) return;
    clear(dropped);
    own_fd_.reset();
}

void EpollSet::recycle() noexcept {
    {
        Dropped dropped;
        std::lock_guard guard(lock_);
        clear(dropped);
        own_fd_.reset();
        closed_ = false;
        turns_.ours = turns_.kernels = 0;
        last_epfd_ = -1;
        stats::close_epoll(std::exchange(counters_, nullptr));
    }
    std::lock_guard guard(g_free_lock);
    next_free_ = g_free;
    g_free = this;
}

}  // namespace vma::iomux
