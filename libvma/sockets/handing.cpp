// SPDX-License-Identifier: BSD-2-Clause
// See handing.h.
//
// What runs in the child before it returns from fork() uses neither malloc nor a lock of the parent: _Fork() and
// clone() promise nothing, and any thread of the parent may have held anything. Foreign sockets therefore lie in pages
// mapped for them, and the channels of a process in an array.
#include "libvma/sockets/handing.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/tcp_socket.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets::handing {
namespace {

// Each direction has a bound: descriptors are not plenty.
constexpr std::size_t kMaxChildren = 64;  // channels to children; more share the last one, whose end is then not seen
constexpr std::size_t kMaxAncestors = 8;  // channels to processes whose sockets we inherited
constexpr int kAnswerMsec = 10'000;       // the parent's internal thread answers in microseconds, unless it is stopped

// What a child asks: "put this socket into the kernel". The object's address and the number are the owner's at the time
// of the fork; the cookie (the kernel's own number of the socket) says whether they still mean the same.
struct Request {
    std::uint64_t cookie;
    const FdObject* object;
    int fd;
};

// A socket whose state is in the memory of an ancestor. Never freed: there are as many as the fork found.
class ForeignSocket final : public FdObject {
  public:
    ForeignSocket(const FdObject* object, int fd, std::size_t ancestor) noexcept
        : FdObject(Kind::foreign), object_(object), fd_(fd), ancestor_(ancestor) {}
    const FdObject* object() const noexcept { return object_; }
    int owners_fd() const noexcept { return fd_; }
    std::size_t ancestor() const noexcept { return ancestor_; }

  private:
    void last_fd_closed() noexcept override {}
    void recycle() noexcept override {}
    const FdObject* object_;
    int fd_;
    std::size_t ancestor_;
};

// ---- the owner's side ----

struct Child {
    std::uint32_t generation = 0;
    InternalFd ours;
    InternalFd theirs;  // kept only by the last place, which many children share
};

struct Owner {
    Lock lock;
    std::array<Child, kMaxChildren> children;
};
// Made anew in a child, without destructors: its descriptors are closed already.
alignas(Owner) std::byte g_owner_memory[sizeof(Owner)];
Owner* g_owner = nullptr;
std::atomic<std::uint32_t> g_generation{0};
std::atomic<std::uint32_t> g_newest_alive{0};

// ---- the child's side ----

constinit NeverDestroyed<std::array<InternalFd, kMaxAncestors>> g_ancestors;
std::size_t g_ancestor_count = 0;

// Descriptors on their way over a fork(). They are outside the registry of internal descriptors, because that closes
// all its own in the child.
struct Crossing {
    bool held = false;      // from before_fork() to in_parent()
    int nested = 0;         // fork() in a signal handler meanwhile
    std::size_t place = 0;  // of the child's channel
    int ours = -1, theirs = -1;
    std::array<int, kMaxAncestors> ancestors{};
};
Crossing g_crossing;
constinit Lock g_fork_lock;  // from before fork() until after it: one at a time

long close_raw(int fd) noexcept { return fd >= 0 ? os::raw_syscall(SYS_close, fd) : 0; }

// At a number the program does not expect.
int duplicate_high(int fd) noexcept {
    for (long from : {1100L, 200L, 3L}) {
        long copy = os::raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from);
        if (copy >= 0) return static_cast<int>(copy);
    }
    return -1;
}

std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    return os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

bool carries_state(const FdObject* object) noexcept {
    return object->kind() == Kind::socket && static_cast<const Socket*>(object)->carries_state();
}

// The socket under `fd`, if it carries state; nothing for a foreign one. While other threads run, an object may be
// looked into only with a reference.
Ref<Socket> with_state(int fd, const FdObject* object) noexcept {
    if (object->kind() != Kind::socket) return {};
    Ref<Socket> socket = g_fds.socket(fd);
    return socket && socket->carries_state() ? std::move(socket) : Ref<Socket>();
}

// Does a child inherit what it cannot use? Lets go of the ancestors from whom nothing is left.
bool anything_to_share() noexcept {
    if (!g_fds.any()) return false;
    bool found = false;
    std::array<bool, kMaxAncestors> needed{};
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        if (object->kind() == Kind::foreign)
            found = needed[static_cast<const ForeignSocket*>(object)->ancestor()] = true;
        else
            found = found || with_state(fd, object);
    });
    for (std::size_t i = 0; i < g_ancestor_count; i++)
        if (!needed[i]) (*g_ancestors)[i].reset();
    return found;
}

void find_newest(Owner& owner) noexcept {
    std::uint32_t newest = 0;
    for (const Child& child : owner.children)
        if (child.ours) newest = std::max(newest, child.generation);
    g_newest_alive.store(newest, std::memory_order_release);
}

// The number under which we know the socket of a request; -1 when we have closed it, and so put it into the kernel.
int number_of(const Request& request) noexcept {
    int found = -1;
    auto is_it = [&](int fd) { return g_fds.peek(fd) == request.object && cookie_of(fd) == request.cookie; };
    if (is_it(request.fd)) return request.fd;
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        if (found < 0 && object == request.object && is_it(fd)) found = fd;
    });
    return found;
}

// One request from the channel `fd`; false when nobody is left at its other end. Internal thread.
bool serve(int fd) noexcept {
    Request request{};
    iovec data{&request, sizeof request};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    long n = os::raw_syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0) return false;
    int answer = -1;
    if (n > 0)
        if (const cmsghdr* c = CMSG_FIRSTHDR(&message);
            c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            std::memcpy(&answer, CMSG_DATA(c), sizeof answer);
    if (n == sizeof request) {
        if (int number = number_of(request); number >= 0)
            if (Ref<Socket> socket = g_fds.socket(number)) socket->leave_to_kernel(number, "used by a forked child");
    }
    close_raw(answer);  // the end of the channel is the answer
    return n > 0 || n == -EAGAIN || n == -EINTR;
}

void watch(std::size_t place, int fd) {
    runtime::watch(fd, [place, fd] {
        if (serve(fd)) return;
        runtime::unwatch(fd);
        g_owner->lock.lock();
        g_owner->children[place].ours.reset();
        find_newest(*g_owner);
        g_owner->lock.unlock();
    });
}

// Without a channel the child could not ask: everything goes to the kernel before the fork.
void give_up_sharing() noexcept {
    log::once(log::Level::warn,
              "no channel to a forked child: its TCP connections are served by the kernel from now on");
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (auto socket = with_state(fd, object)) socket->leave_to_kernel(fd, "inherited by a forked child");
    });
}

// ---- fork ----

void before_fork() noexcept {
    Crossing& c = g_crossing;
    if (g_fork_lock.owned_by_me()) {
        c.nested++;
        return;
    }
    if (runtime::in_foreign_process() || !g_fds.any()) return;
    int saved = errno;
    g_fds.for_each(0, INT_MAX, [](int fd, const FdObject* object) {
        if (auto socket = with_state(fd, object)) socket->before_fork(fd);
    });
    g_fork_lock.lock();
    if (!anything_to_share()) {
        g_fork_lock.unlock();
        errno = saved;
        return;
    }
    c = {};
    c.held = true;
    c.ancestors.fill(-1);
    for (std::size_t i = 0; i < g_ancestor_count; i++)
        if ((*g_ancestors)[i]) c.ancestors[i] = duplicate_high((*g_ancestors)[i].get());

    Owner& owner = *g_owner;
    owner.lock.lock();
    c.place = 0;
    while (c.place + 1 < kMaxChildren && owner.children[c.place].ours) c.place++;
    Child& child = owner.children[c.place];
    if (child.ours) {
        c.theirs = duplicate_high(child.theirs.get());
    } else {
        int ends[2];
        if (os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
            c.ours = duplicate_high(ends[0]);
            c.theirs = duplicate_high(ends[1]);
            close_raw(ends[0]);
            close_raw(ends[1]);
        }
        if (c.ours < 0 || c.theirs < 0) {
            close_raw(std::exchange(c.ours, -1));
            close_raw(std::exchange(c.theirs, -1));
        }
    }
    // The child is born with the next generation, and until it is known to be gone everything older is shared.
    if (c.theirs >= 0) {
        child.generation = g_generation.fetch_add(1, std::memory_order_relaxed) + 1;
        g_newest_alive.store(child.generation, std::memory_order_release);
    }
    owner.lock.unlock();
    if (c.theirs < 0) give_up_sharing();
    errno = saved;
}

void in_parent() noexcept {
    Crossing& c = g_crossing;
    if (!g_fork_lock.owned_by_me() || !c.held) return;
    if (c.nested > 0) {
        c.nested--;
        return;
    }
    int saved = errno;
    c.held = false;
    for (int fd : c.ancestors) close_raw(fd);
    Owner& owner = *g_owner;
    Child& child = owner.children[c.place];
    int watched = -1;
    owner.lock.lock();
    if (c.ours >= 0) {
        child.ours = InternalFd(c.ours);
        watched = child.ours.get();
        if (c.place == kMaxChildren - 1) child.theirs = InternalFd(std::exchange(c.theirs, -1));
    }
    find_newest(owner);
    owner.lock.unlock();
    close_raw(c.theirs);
    if (watched >= 0) {
        try {
            watch(c.place, watched);
        } catch (const std::exception&) {
            owner.lock.lock();
            child.ours.reset();
            find_newest(owner);
            owner.lock.unlock();
        }
    }
    g_fork_lock.unlock();
    errno = saved;
}

// The arena of the child's foreign sockets.
struct Pages {
    ForeignSocket* at = nullptr;
    ForeignSocket* end = nullptr;
    explicit Pages(std::size_t count) noexcept {
        if (count == 0) return;
        long memory = os::raw_syscall(SYS_mmap, nullptr, count * sizeof(ForeignSocket), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory < 0 && memory > -4096) return;
        at = reinterpret_cast<ForeignSocket*>(memory);
        end = at + count;
    }
    ForeignSocket* make(const FdObject* object, int fd, std::size_t ancestor) noexcept {
        if (at == end) return nullptr;
        auto* made = new (at++) ForeignSocket(object, fd, ancestor);
        made->fd_added();
        return made;
    }
};

void in_child() noexcept {
    Crossing c = g_crossing;
    const bool mine =
        g_fork_lock.owned_by_me() && c.held && c.nested == 0;  // another thread's fork may be under way as well
    new (&g_fork_lock) Lock;
    g_crossing = {};
    g_owner = new (g_owner_memory) Owner;
    g_generation.store(0, std::memory_order_relaxed);
    g_newest_alive.store(0, std::memory_order_relaxed);
    if (!mine) {
        g_fds.clear_in_child();
        return;
    }
    close_raw(c.ours);
    // What we inherited before keeps its place, since foreign sockets know it.
    for (std::size_t i = 0; i < g_ancestor_count; i++) (*g_ancestors)[i] = InternalFd(c.ancestors[i]);
    std::size_t parent = kMaxAncestors;
    if (c.theirs >= 0) {
        for (std::size_t i = 0; i < g_ancestor_count && parent == kMaxAncestors; i++)
            if (!(*g_ancestors)[i]) parent = i;  // nobody asks there any more, or in vain
        if (parent == kMaxAncestors && g_ancestor_count < kMaxAncestors) parent = g_ancestor_count++;
        if (parent < kMaxAncestors)
            (*g_ancestors)[parent] = InternalFd(c.theirs);
        else
            close_raw(c.theirs);
    }
    std::size_t count = 0;
    if (parent < kMaxAncestors)
        g_fds.for_each(0, INT_MAX, [&](int, const FdObject* object) { count += carries_state(object); });
    Pages pages(count);
    g_fds.replace_in_child([&](int fd, FdObject* object) -> FdObject* {
        if (object->kind() == Kind::foreign) return object;  // lies in our own pages
        return carries_state(object) ? pages.make(object, fd, parent) : nullptr;
    });
}

// Asks the owner and waits. False: nobody there.
bool ask(int channel, const Request& request) noexcept {
    int ends[2];
    if (os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    iovec data{const_cast<Request*>(&request), sizeof request};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &ends[1], sizeof(int));
    long sent;
    do sent = os::raw_syscall(SYS_sendmsg, channel, &message, MSG_NOSIGNAL);
    while (sent == -EINTR);
    close_raw(ends[1]);
    // The end of the other side is the answer, be it that the owner closed it or that the owner is no more.
    long ready = 0;
    if (sent > 0) {
        pollfd p{ends[0], POLLIN, 0};
        timespec limit{kAnswerMsec / 1000, 0};  // the kernel counts it down, over interruptions too
        do ready = os::raw_syscall(SYS_ppoll, &p, 1, &limit, nullptr, 0);
        while (ready == -EINTR);
        if (ready == 0) log::error("the parent process does not answer: an inherited TCP connection is lost");
    }
    close_raw(ends[0]);
    return ready > 0;
}

}  // namespace

void start() {
    static std::atomic<bool> done{false};
    if (done.exchange(true)) return;
    g_owner = new (g_owner_memory) Owner;
    runtime::at_fork({&before_fork, &in_parent, &in_child});
}

std::uint32_t generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

bool shared_since(std::uint32_t born) noexcept { return g_newest_alive.load(std::memory_order_acquire) > born; }

void hand_all(Before what) noexcept {
    if (runtime::in_vfork_child() || runtime::in_foreign_process()) return;
    int saved = errno;
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        if (object->kind() == Kind::epoll) return;
        if (what == Before::exec && (os::raw_syscall(SYS_fcntl, fd, F_GETFD) & FD_CLOEXEC) != 0) return;
        if (object->kind() == Kind::foreign) {
            if (what == Before::exec) g_fds.find(fd);
        } else if (auto socket = with_state(fd, object)) {
            switch (what) {
                case Before::exec: socket->leave_to_kernel(fd, "the program calls exec"); break;
                case Before::exit: socket->before_process_end(fd); break;
                case Before::daemon: socket->leave_to_kernel(fd, "the program becomes a daemon"); break;
            }
        }
    });
    TcpSocket::hand_over_orphans();
    errno = saved;
}

void hand_one(int fd, const char* why) noexcept {
    if (runtime::in_vfork_child() || runtime::in_foreign_process()) return;
    int saved = errno;
    if (auto socket = g_fds.socket(fd); socket && socket->carries_state()) socket->leave_to_kernel(fd, why);
    errno = saved;
}

}  // namespace vma::sockets::handing

namespace vma::sockets {

// Async-signal-safe, errno untouched, no cancellation point. Any thread; twice does no harm.
void settle_foreign(int fd, FdObject* object) noexcept {
    using namespace handing;
    auto* foreign = static_cast<ForeignSocket*>(object);
    if (InternalFd& channel = (*g_ancestors)[foreign->ancestor()])
        ask(channel.get(), {cookie_of(fd), foreign->object(), foreign->owners_fd()});
    g_fds.remove_if(fd, object);
}

}  // namespace vma::sockets
