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
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/orphans.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/tcp/migrate/handover.h"

namespace vma::sockets::sharing {
namespace {

// Each direction has a bound: descriptors are not plenty.
constexpr std::size_t kMaxChildren =
    64;  // channels to children; more share the last one, whose end is then not seen
constexpr std::size_t kMaxAncestors = 8;  // channels to processes whose sockets we inherited
constinit std::atomic<clock::Msec> g_answer_limit{
    clock::Msec(10'000)};  // the parent's internal thread answers in microseconds, unless it is stopped
constexpr std::size_t kRequests = 128;  // in one message

// What a child asks: "put this into the kernel". The object's address and the number are the owner's at the
// time of the fork; the cookie (the kernel's own number of a socket, 0 for an epoll set) says whether they
// still mean the same. A message is an array of requests. When all of them are done the owner answers with a
// byte: on the channel if the first says so, else on the socket that the message brought. Without an object
// it asks for a connection instead: the cookie is its placeholder's port, and the answer brings a descriptor.
struct Request {
    std::uint64_t cookie;
    const FdObject* object;  // only to compare: the child may be hostile
    int fd;
    std::uint8_t answer_on_channel = 0;
};

// A socket or an epoll set whose state is in the memory of an ancestor. Never freed: there are as many as the
// fork found.
class Foreign final : public FdObject {
  public:
    Foreign(Kind kind, const FdObject* object, int fd, std::size_t ancestor) noexcept
        : FdObject(kind), object_(object), fd_(fd), ancestor_(ancestor) {}
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

// May who asks next have the answer on the channel itself? Only one at a time can, and only the child that
// the channel was made for: its own children and those that share the last channel read from it, too.
using Turn = std::atomic<bool>;

constinit NeverDestroyed<std::array<InternalFd, kMaxAncestors>> g_ancestors;
constinit std::array<Turn, kMaxAncestors> g_turns{};
std::size_t g_ancestor_count = 0;

// ---- a child in our memory (vfork, clone with CLONE_VM) asks by this one ----

constinit NeverDestroyed<InternalFd> g_own_channel;
constinit NeverDestroyed<InternalFd>
    g_own_channels_owner;  // the other end, watched as long as the process lives
constinit Turn g_own_turn{false};

// Descriptors on their way over a fork(). They are outside the registry of internal descriptors, because that
// closes all its own in the child.
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

void find_newest(Owner& owner) noexcept {
    std::uint32_t newest = 0;
    for (const Child& child : owner.children)
        if (child.ours) newest = std::max(newest, child.generation);
    g_newest_alive.store(newest, std::memory_order_release);
}

// What a request means, and the number under which we know it; nothing when we have closed it, and so put it
// into the kernel. Another thread may close it meanwhile, so it is held before it is looked at.
std::pair<Ref<FdObject>, int> meant_by(const Request& request) noexcept {
    auto under = [&](int fd) {
        Ref<FdObject> held = g_fds.hold(fd);
        const bool it_is =
            held.get() == request.object && !held->is_foreign() && shadow::cookie_of(fd) == request.cookie;
        return it_is ? std::move(held) : Ref<FdObject>();
    };
    std::pair<Ref<FdObject>, int> found{under(request.fd), request.fd};
    if (found.first) return found;
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject* object) {
        if (!found.first && object == request.object) found = {under(fd), fd};
    });
    return found;
}

// One byte or more, and a descriptor unless it is -1. As sendmsg(2), -errno.
long send_with(int to, iovec data, int fd) noexcept {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return os::raw_syscall(SYS_sendmsg, to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// As recvmsg(2), -errno, without waiting. `fd` becomes the descriptor that came along, if one did.
long receive_with(int from, iovec data, int& fd) noexcept {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    // Not CMSG_SPACE, whose padding is room for a second descriptor. The kernel closes what has no room.
    message.msg_controllen = CMSG_LEN(sizeof(int));
    const long n = os::raw_syscall(SYS_recvmsg, from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A message of no bytes may bring one, too.
    if (n >= 0)
        if (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_level == SOL_SOCKET &&
                                                        c->cmsg_type == SCM_RIGHTS &&
                                                        c->cmsg_len == CMSG_LEN(sizeof fd))
            std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return n;
}

// Is it a socket as Question makes them? Another might make us wait, or act in our name.
bool may_carry_answer(int fd) noexcept {
    int domain = 0, type = 0;
    socklen_t length = sizeof domain;
    return os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
           domain == AF_UNIX &&
           os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
           type == SOCK_STREAM;
}

// Can nothing come any more? A message of no bytes looks like the end, and many children may share a channel.
bool ended(int fd) noexcept {
    pollfd p{fd, POLLRDHUP, 0};
    const timespec now{};
    return os::raw_syscall(SYS_ppoll, &p, 1, &now, nullptr, 0) > 0;
}

// One message from the channel `fd`; false when nobody is left at its other end. Internal thread.
//
// Who sends may be hostile: a forked child that has given up our privileges, and has been taken over. It can
// have sockets put into the kernel, which costs speed, and gets connections that are offered; nothing else
// may come of a message.
//
// The program's threads may look for the lowest free number meanwhile. The kernel puts a descriptor that a
// message brings there, so it moves away before anything else happens, and no number is taken when the child
// goes on.
bool serve(int fd) noexcept {
    std::array<Request, kRequests> requests;
    int brought = -1;
    const long n = receive_with(fd, {requests.data(), sizeof requests}, brought);
    const InternalFd answer(brought);
    if (n == 0) return !ended(fd);
    const std::size_t count = n > 0 ? static_cast<std::size_t>(n) / sizeof(Request) : 0;
    InternalFd connection;
    for (const Request& request : std::span(requests).first(count)) {
        if (request.object == nullptr) {
            connection = placeholders::take(static_cast<in_port_t>(request.cookie));
            continue;
        }
        if (auto [object, number] = meant_by(request); object)
            object->leave_to_kernel(number, leave::used_by_child);
    }
    char done = 1;
    if (count != 0 && requests[0].answer_on_channel != 0)
        send_with(fd, {&done, 1}, connection.get());
    else if (answer && may_carry_answer(answer.get()))
        send_with(answer.get(), {&done, 1}, connection.get());
    // ECONNRESET: a child has ended without reading its answer. What it has asked for comes before the end.
    return n > 0 || n == -EAGAIN || n == -EINTR || n == -ECONNRESET;
}

void watch(std::size_t place, int fd) {
    runtime::watch(fd, [place] {
        g_owner->lock.lock();
        const int now = g_owner->children[place].ours.get();
        g_owner->lock.unlock();
        if (serve(now)) return;
        runtime::unwatch_this();
        const std::lock_guard guard(g_owner->lock);
        g_owner->children[place].ours.reset();
        find_newest(*g_owner);
    });
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
    // The child is born with the next generation, and until it is known to be gone everything older is
    // shared.
    if (c.theirs >= 0) {
        child.generation = g_generation.fetch_add(1, std::memory_order_relaxed) + 1;
        g_newest_alive.store(child.generation, std::memory_order_release);
    }
    owner.lock.unlock();
    if (c.theirs < 0) give_up_sharing();
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
            const std::lock_guard guard(owner.lock);
            child.ours.reset();
            find_newest(owner);
        }
    }
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
    g_owner = new (g_owner_memory) Owner;
    for (Turn& turn : g_turns) turn.store(false, std::memory_order_relaxed);
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
        if (parent < kMaxAncestors) {
            (*g_ancestors)[parent] = InternalFd(c.theirs);
            g_turns[parent].store(c.place + 1 < kMaxChildren, std::memory_order_relaxed);
        } else {
            close_raw(c.theirs);
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

// One time limit for all that is asked at once, however many owners there are.
class Deadline {
  public:
    // Waits until `fd` is ready for `events`. False: too late.
    bool wait(int fd, short events) noexcept {
        pollfd p{fd, events, 0};
        long ready;
        do
            ready = os::raw_syscall(SYS_ppoll, &p, 1, &left_, nullptr,
                                    0);  // the kernel counts down, over interruptions too
        while (ready == -EINTR);
        return ready > 0;
    }

  private:
    timespec left_ = clock::to_timespec(g_answer_limit.load());
};

// Requests to the owner at the other end of a channel. Uses neither malloc nor a lock.
class Question {
  public:
    // Both must outlive it. A question that gets no answer, or is jumped out of, keeps the turn.
    Question(const InternalFd& channel, Turn& turn) noexcept
        : channel_(channel),
          turn_(turn),
          direct_(turn.load(std::memory_order_relaxed) && turn.exchange(false)) {}
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    ~Question() {
        if (direct_ && messages_ == 0) turn_.store(true);
        close_raw(ours_);
        close_raw(theirs_);
    }

    void add(const Request& request, Deadline& deadline) noexcept {
        requests_[count_++] = request;
        if (count_ == kRequests) send(deadline);
    }
    // Waits until the owner has done everything, or is no more.
    void finish(Deadline& deadline) noexcept {
        if (count_ != 0) send(deadline);
        close_raw(std::exchange(theirs_, -1));
        while (!late_ && messages_ != 0) {
            std::array<char, 64> answers;
            const int from = direct_ ? channel_.get() : ours_;
            late_ = !deadline.wait(from, POLLIN);
            const long n =
                receive_with(from, {answers.data(), std::min(messages_, answers.size())}, connection_);
            if (n == 0 || (n < 0 && n != -EINTR && n != -EAGAIN)) break;  // the owner is no more
            if (n > 0) messages_ -= static_cast<std::size_t>(n);
        }
        if (late_) log::error("the parent process does not answer: inherited sockets are lost");
    }
    // What the answer brought, or -1.
    int connection() const noexcept { return connection_; }

  private:
    void send(Deadline& deadline) noexcept {
        const std::size_t count = std::exchange(count_, 0);
        int ends[2];
        if (!direct_ && ours_ < 0 &&
            os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
            ours_ = ends[0];
            theirs_ = ends[1];
        }
        if ((!direct_ && ours_ < 0) || late_) return;
        requests_[0].answer_on_channel = direct_;
        long sent;
        do {
            sent = send_with(channel_.get(), {requests_.data(), count * sizeof(Request)}, theirs_);
            if (sent == -EAGAIN && !deadline.wait(channel_.get(), POLLOUT)) late_ = true;
        } while ((sent == -EAGAIN && !late_) || sent == -EINTR);
        if (sent > 0) messages_++;
    }

    const InternalFd& channel_;
    Turn& turn_;
    const bool direct_;  // the answer comes on the channel
    int ours_ = -1, theirs_ = -1, connection_ = -1;
    bool late_ = false;
    std::size_t messages_ = 0;  // sent, not answered
    std::size_t count_ = 0;
    std::array<Request, kRequests> requests_;
};

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
    g_owner = new (g_owner_memory) Owner;
    runtime::at_fork({&before_fork, &in_parent, &in_child});
}

std::uint32_t generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

bool shared_since(std::uint32_t born) noexcept {
    return g_newest_alive.load(std::memory_order_acquire) > born;
}

void set_answer_limit(clock::Msec limit) noexcept { g_answer_limit = limit; }

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
