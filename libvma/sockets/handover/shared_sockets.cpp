// SPDX-License-Identifier: BSD-2-Clause
// See shared_sockets.h.
//
// What runs in the child before it returns from fork() uses neither malloc nor a lock of the parent: _Fork()
// and clone() promise nothing, and any thread of the parent may have held anything. Foreign sockets therefore
// lie in pages mapped for them, and the channels of a process in an array.
#include "libvma/sockets/handover/shared_sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/children.h"
#include "libvma/sockets/handover/foreign.h"
#include "libvma/sockets/handover/orphans.h"
#include "libvma/sockets/handover/question.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/tcp/migrate/handover.h"

namespace vma::sockets::sharing {
namespace {

// Channels to processes whose sockets were inherited. Descriptors are not plenty.
constexpr std::size_t kMaxAncestors = 8;

// ---- the child's side ----

constinit NeverDestroyed<std::array<InternalFd, kMaxAncestors>> g_ancestors;
constinit std::array<Turn, kMaxAncestors> g_turns{};
std::size_t g_ancestor_count = 0;

// ---- a child in our memory (vfork, clone with CLONE_VM) asks by this one ----

constinit NeverDestroyed<InternalFd> g_own_channel;
// The other end, watched as long as the process lives.
constinit NeverDestroyed<InternalFd> g_own_channels_owner;
constinit Turn g_own_turn{false};

// Descriptors on their way over a fork(). They are outside the registry of internal descriptors, because that
// closes all its own in the child.
struct Crossing {
    bool held = false;  // from before_fork() to in_parent()
    int nested = 0;     // fork() in a signal handler meanwhile
    children::Channel channel;
    std::array<int, kMaxAncestors> ancestors{};
};
Crossing g_crossing;
constinit Lock g_fork_lock;  // from before fork() until after it: one at a time

// Over exec.
bool stays_open(int fd) noexcept {
    const long flags = os::raw_syscall(SYS_fcntl, fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// Would a child that holds it need us? An epoll set with an object has members that are not in the kernel's
// set.
bool carries_state(const FdObject* object) noexcept {
    return object->kind() == Kind::epoll ||
           (object->kind() == Kind::socket && static_cast<const Socket*>(object)->carries_state());
}

// The socket under `fd`, if it carries state; nothing for a foreign one. While other threads run, an object
// may be looked into only with a reference.
Ref<Socket> with_state(int fd, const FdObject* object) noexcept {
    if (object->kind() != Kind::socket) return {};
    Ref<Socket> socket = g_fds.socket(fd);
    return socket && socket->carries_state() ? std::move(socket) : Ref<Socket>();
}

// A reference to what is under `fd`, unless it is another's.
Ref<FdObject> own(int fd, const FdObject* object) noexcept {
    return object->is_foreign() ? Ref<FdObject>() : g_fds.find(fd);
}

// After sockets have become the kernel's, for who goes on with the kernel's sets alone.
void complete_sets(bool over_exec) noexcept {
    g_fds.for_each_set([&](int fd, const FdObject* object) {
        if (over_exec && !stays_open(fd)) return;
        if (auto set = own(fd, object)) set->sync_with_kernel();
    });
}

// Does a child inherit what it cannot use, or could not if we went on with it? Lets go of the ancestors from
// whom nothing is left.
bool anything_to_share() noexcept {
    if (!g_fds.any()) return false;
    bool found = false;
    std::array<bool, kMaxAncestors> needed{};
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        (void)fd;
        if (object->is_foreign()) needed[static_cast<const Foreign*>(object)->ancestor()] = true;
        found = true;
    });
    for (std::size_t i = 0; i < g_ancestor_count; i++)
        if (!needed[i]) (*g_ancestors)[i].reset();
    return found;
}

// Without a channel the child could not ask: everything goes to the kernel before the fork.
void give_up_sharing() noexcept {
    log::once(log::Level::warn,
              "no channel to a forked child: the sockets it inherits are served by the kernel from now on");
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (auto socket = with_state(fd, object)) socket->leave_to_kernel(fd, leave::inherited_by_child);
    });
    complete_sets(false);
}

// ---- fork ----

void before_fork() noexcept {
    Crossing& c = g_crossing;
    if (g_fork_lock.owned_by_me()) {
        c.nested++;
        return;
    }
    if (runtime::in_foreign_process() || !g_fds.any()) return;
    const ErrnoKept kept;
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (auto socket = with_state(fd, object)) socket->before_fork(fd);
    });
    g_fork_lock.lock();
    if (!anything_to_share()) {
        g_fork_lock.unlock();
        return;
    }
    c = {};
    c.held = true;
    c.ancestors.fill(-1);
    for (std::size_t i = 0; i < g_ancestor_count; i++)
        if ((*g_ancestors)[i]) c.ancestors[i] = duplicate_high((*g_ancestors)[i].get());

    c.channel = children::open();
    if (c.channel.theirs < 0) give_up_sharing();
}

void in_parent() noexcept {
    Crossing& c = g_crossing;
    if (!g_fork_lock.owned_by_me() || !c.held) return;
    if (c.nested > 0) {
        c.nested--;
        return;
    }
    const ErrnoKept kept;
    c.held = false;
    for (int fd : c.ancestors) close_raw(fd);
    children::keep(c.channel);
    g_fork_lock.unlock();
}

// The arena of the child's foreign sockets.
struct Pages {
    Foreign* at = nullptr;
    Foreign* end = nullptr;
    explicit Pages(std::size_t count) noexcept {
        if (count == 0) return;
        long memory = os::raw_syscall(SYS_mmap, nullptr, count * sizeof(Foreign), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory < 0 && memory > -4096) return;
        at = reinterpret_cast<Foreign*>(memory);
        end = at + count;
    }
    Foreign* make(const FdObject* object, int fd, std::size_t ancestor) noexcept {
        if (at == end) return nullptr;
        const bool sends =
            object->kind() == Kind::socket && static_cast<const Socket*>(object)->kernel_may_send();
        auto* made =
            new (at++) Foreign(sends ? Kind::foreign_datagrams : Kind::foreign, object, fd, ancestor);
        made->fd_added();
        return made;
    }
};

void in_child() noexcept {
    Crossing c = g_crossing;
    const bool mine = g_fork_lock.owned_by_me() && c.held &&
                      c.nested == 0;  // another thread's fork may be under way as well
    new (&g_fork_lock) Lock;
    g_crossing = {};
    children::renew();
    for (Turn& turn : g_turns) turn.store(false, std::memory_order_relaxed);
    if (!mine) {
        g_fds.clear_in_child();
        return;
    }
    close_raw(c.channel.ours);
    // What we inherited before keeps its place, since foreign sockets know it.
    for (std::size_t i = 0; i < g_ancestor_count; i++) (*g_ancestors)[i] = InternalFd(c.ancestors[i]);
    std::size_t parent = kMaxAncestors;
    if (c.channel.theirs >= 0) {
        for (std::size_t i = 0; i < g_ancestor_count && parent == kMaxAncestors; i++)
            if (!(*g_ancestors)[i]) parent = i;  // nobody asks there any more, or in vain
        if (parent == kMaxAncestors && g_ancestor_count < kMaxAncestors) parent = g_ancestor_count++;
        if (parent < kMaxAncestors) {
            (*g_ancestors)[parent] = InternalFd(c.channel.theirs);
            g_turns[parent].store(!c.channel.many, std::memory_order_relaxed);
        } else {
            close_raw(c.channel.theirs);
        }
    }
    std::size_t count = 0;
    if (parent < kMaxAncestors)
        g_fds.for_each(0, INT_MAX, [&](int, const FdObject* object) { count += carries_state(object); });
    Pages pages(count);
    g_fds.replace_in_child([&](int fd, FdObject* object) -> FdObject* {
        if (object->is_foreign()) return object;  // lies in our own pages
        return carries_state(object) ? pages.make(object, fd, parent) : nullptr;
    });
}

Request request_of(int fd, const Foreign& foreign) noexcept {
    return {shadow::cookie_of(fd), foreign.object(), foreign.owners_fd()};
}

// Asks for all foreign objects that `wanted(fd)` selects, each owner once.
template <class F>
void ask_owners(F&& wanted) noexcept {
    Deadline deadline;
    for (std::size_t i = 0; i < g_ancestor_count; i++) {
        if (!(*g_ancestors)[i]) continue;
        Question question((*g_ancestors)[i], g_turns[i]);
        g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
            if (!object->is_foreign()) return;
            const auto& foreign = *static_cast<const Foreign*>(object);
            if (foreign.ancestor() == i && wanted(fd)) question.add(request_of(fd, foreign), deadline);
        });
        question.finish(deadline);
    }
}

// In a child that runs in our memory, with descriptors of its own, `only` (-1: what stays open over exec) is
// to be the kernel's. The table tells what its numbers were in the parent, the cookie whether they still are.
// The owner is this memory's internal thread, which runs in the parent.
void hand_from_shared_memory(int only) noexcept {
    Deadline deadline;
    if (*g_own_channel) {
        Question question(*g_own_channel, g_own_turn);
        g_fds.for_each(only < 0 ? 0u : static_cast<unsigned>(only),
                       only < 0 ? INT_MAX : static_cast<unsigned>(only), [&](int fd, const FdObject* object) {
                           if (!carries_state(object) || (only < 0 && !stays_open(fd))) return;
                           const std::uint64_t cookie = shadow::cookie_of(fd);
                           if (cookie != 0 || object->kind() == Kind::epoll)
                               question.add({cookie, object, fd}, deadline);
                       });
        question.finish(deadline);
    }
    ask_owners([&](int fd) { return only < 0 ? stays_open(fd) : fd == only; });
}

}  // namespace

void start() {
    static std::atomic<bool> done{false};
    if (done.exchange(true)) return;
    children::renew();
    runtime::at_fork({&before_fork, &in_parent, &in_child});
}

void open_own_channel() {
    if (*g_own_channel) return;
    int ends[2];
    if (os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    *g_own_channel = InternalFd(ends[0]);
    *g_own_channels_owner = InternalFd(ends[1]);
    runtime::watch(g_own_channels_owner->get(), [] { serve(g_own_channels_owner->get()); });
    g_own_turn.store(true);
}

bool has_ancestors() noexcept { return g_ancestor_count != 0; }

int ask_for_connection(in_port_t port) noexcept {
    const ErrnoKept kept;
    int found = -1;
    Deadline deadline;
    for (std::size_t i = 0; i < g_ancestor_count && found < 0; i++) {
        if (!(*g_ancestors)[i]) continue;
        Question question((*g_ancestors)[i], g_turns[i]);
        question.add({port, nullptr, -1}, deadline);
        question.finish(deadline);
        found = question.connection();
    }
    return found;
}

void hand_all(Before what) noexcept {
    int saved = errno;
    const bool exec = what == Before::exec || what == Before::spawn;
    if (runtime::in_vfork_child() || runtime::in_foreign_process()) {
        if (exec) hand_from_shared_memory(-1);
        errno = saved;
        return;
    }
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        auto socket = with_state(fd, object);
        if (!socket) return;
        switch (what) {
            case Before::exec:
                // The kernel ends a connection that is closed by exec, so it has to have it.
                if (stays_open(fd) || socket->readiness() == Readiness::ours) socket->before_exec(fd);
                break;
            case Before::spawn:
                if (stays_open(fd)) socket->leave_to_kernel(fd, leave::inherited_by_program);
                break;
            case Before::exit:
                socket->before_process_end(fd);
                break;
            case Before::daemon:
                socket->leave_to_kernel(fd, leave::daemon);
                break;
            case Before::drop:
                if (!socket->kernel_may_send()) socket->leave_to_kernel(fd, leave::privileges);
                break;
        }
    });
    if (exec) {
        ask_owners(stays_open);
        g_fds.for_each(0, INT_MAX, [](int fd, FdObject* object) {
            if (object->is_foreign() && stays_open(fd)) g_fds.remove_if(fd, object);
        });
    }
    if (what != Before::exit || shared_since(0)) complete_sets(exec);
    orphans::hand_over();
    errno = saved;
}

void complete_sets() noexcept { complete_sets(false); }

void hand_one(int fd, LeaveCause why) noexcept {
    const ErrnoKept kept;
    if (runtime::in_vfork_child() || runtime::in_foreign_process())
        hand_from_shared_memory(fd);
    else if (auto object = g_fds.find(fd))
        object->leave_to_kernel(fd, why);
}

}  // namespace vma::sockets::sharing

namespace vma::sockets {

// Async-signal-safe, errno untouched, no cancellation point. Any thread; twice does no harm.
void settle_foreign(int fd, FdObject* object) noexcept {
    using namespace sharing;
    const auto& foreign = *static_cast<Foreign*>(object);
    if (InternalFd& channel = (*g_ancestors)[foreign.ancestor()]) {
        Deadline deadline;
        Question question(channel, g_turns[foreign.ancestor()]);
        question.add(request_of(fd, foreign), deadline);
        question.finish(deadline);
    }
    g_fds.remove_if(fd, object);
}

}  // namespace vma::sockets
