// SPDX-License-Identifier: BSD-2-Clause
// What the descriptor table points to: a socket or an epoll set.
//
// Lifetime. Calls on other threads may hold an object while close() removes it from the table, so objects are
// counted: the table holds one reference for each descriptor number, each running call one more. The count is
// taken without a lock: an object's memory is never given back to the allocator while the process lives (each
// class keeps its own free list), so a reader that lost the race finds a count of zero there and no object.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "libvma/sockets/leave_cause.h"
#include "libvma/stats/socket_counters.h"

namespace vma::ring {
class Ring;
}

namespace vma::sockets {

class ReadyHook;

enum class Kind : std::uint8_t {
    socket,
    epoll,
    // What has its state in the memory of the process that forked us; see handover/shared_sockets.h.
    foreign,
    foreign_datagrams,  // a UDP socket: the kernel's socket sends for both
};

// Who knows when a descriptor is ready.
enum class Readiness : std::uint8_t {
    kernel,  // the kernel's answer is complete
    both,    // the kernel's answer, and what Socket::ready_events() adds (UDP, a listening TCP socket)
    ours,    // ready_events() alone, complete with OUT, HUP, RDHUP and ERR (a TCP connection: its shadow is
             // unconnected)
};

class FdObject {
  public:
    explicit FdObject(Kind kind) noexcept : kind_(kind) {}
    virtual ~FdObject() = default;
    FdObject(const FdObject&) = delete;
    FdObject& operator=(const FdObject&) = delete;

    Kind kind() const noexcept { return kind_; }
    bool is_foreign() const noexcept { return kind_ >= Kind::foreign; }

    // Takes a reference unless the object is already dead.
    bool try_ref() noexcept {
        std::uint32_t n = refs_.load(std::memory_order_relaxed);
        while (n != 0)
            if (refs_.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed))
                return true;
        return false;
    }
    void unref() noexcept {
        if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) recycle();
    }

    // One more, one fewer descriptor number refers to this object (socket(), dup(), close()). When the last
    // one goes, last_fd_closed() runs: steering ends, sleepers wake up. Calls still running keep the object
    // itself.
    void fd_added() noexcept { fds_.fetch_add(1, std::memory_order_relaxed); }
    // `fd` is the number that goes; it may mean something else already (see FdTable::remove).
    void fd_removed(int fd) noexcept {
        if (fds_.fetch_sub(1, std::memory_order_acq_rel) == 1) last_number_closed(fd);
    }
    // Does any descriptor number still refer to it? An epoll set drops members for which none does, as the
    // kernel does.
    bool has_fds() const noexcept { return fds_.load(std::memory_order_acquire) != 0; }
    bool has_one_fd() const noexcept { return fds_.load(std::memory_order_acquire) == 1; }

    // Puts what only this process knows of it into the kernel, for good, before something we cannot follow
    // (SCM_RIGHTS, a forked child that uses it...). `why` goes to the log.
    virtual void leave_to_kernel(int fd, LeaveCause why) noexcept;
    // An epoll set: members that have become the kernel's are to be in the kernel's set from here on, before
    // its owner looks.
    virtual void sync_with_kernel() noexcept {}

  protected:
    virtual void last_fd_closed() noexcept = 0;
    virtual void last_number_closed(int fd) noexcept {
        (void)fd;
        last_fd_closed();
    }
    // The count reached zero: destroy the object and put its memory on the class's free list.
    virtual void recycle() noexcept = 0;

    std::atomic<std::uint32_t> refs_{1};

  private:
    std::atomic<std::uint32_t> fds_{0};
    const Kind kind_;
};

// A socket that the library may serve. Every call gets the descriptor number the program used, because the
// object can be known under several (dup), and the kernel's side (the shadow socket) is reached through it.
// Return values and errno are the system call's. What a socket does not handle itself it passes to os::, so
// the defaults here do that.
class Socket : public FdObject {
  public:
    Socket() noexcept : FdObject(Kind::socket) {}

    virtual int bind(int fd, const sockaddr* addr, socklen_t len);
    virtual int connect(int fd, const sockaddr* addr, socklen_t len);
    virtual int listen(int fd, int backlog);
    virtual int accept4(int fd, sockaddr* addr, socklen_t* len, int flags);
    virtual int shutdown(int fd, int how);
    virtual int setsockopt(int fd, int level, int name, const void* value, socklen_t len);
    virtual int getsockopt(int fd, int level, int name, void* value, socklen_t* len);
    virtual int getsockname(int fd, sockaddr* addr, socklen_t* len);
    virtual int getpeername(int fd, sockaddr* addr, socklen_t* len);
    // F_DUPFD and F_DUPFD_CLOEXEC are the preload layer's business and do not arrive here.
    virtual int fcntl(int fd, int cmd, unsigned long arg);
    virtual int ioctl(int fd, unsigned long request, void* arg);

    // recv, recvfrom, read come as recvfrom; readv, recvmsg as recvmsg. Same for sending.
    virtual ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen);
    virtual ssize_t recvmsg(int fd, msghdr* msg, int flags);
    virtual int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout);
    virtual ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                           socklen_t alen);
    virtual ssize_t sendmsg(int fd, const msghdr* msg, int flags);
    virtual int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags);

    // sendfile(2) into this socket, and splice(2) from a pipe into it and from it into a pipe. `in` and `out`
    // as there.
    virtual ssize_t sendfile(int out, int in, off_t* offset, size_t count);
    virtual ssize_t splice_in(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                              unsigned flags);
    virtual ssize_t splice_out(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                               unsigned flags);

    // What may wait in the kernel is not called inside a region (runtime/region.h): these calls fail there
    // with kAskKernel, the caller makes the call itself, and tells the socket what came of it. In errno: the
    // error of a result below 0.
    virtual void kernel_answered(int fd, stats::TrafficPath way, ssize_t result, int flags) noexcept {
        (void)fd;
        (void)way;
        (void)result;
        (void)flags;
    }
    virtual void kernel_connected(int result) noexcept { (void)result; }

    // Has something come that only the kernel can serve? Why, or null. Then leave_to_kernel() is due, as soon
    // as somebody calls who knows the number (see urgent.h).
    virtual const LeaveCause* leaving() const noexcept { return nullptr; }

    // ---- other processes (see handover/shared_sockets.h) ----
    // Is there state here that the kernel's socket lacks, so that another process which holds it could do
    // nothing with it: a connection or a listener of ours, rules that take a UDP socket's datagrams? Asked in
    // a forked child, too, so atomic reads and no more.
    virtual bool carries_state() const noexcept { return false; }
    // May calls that send pass by that state? (UDP: the kernel's socket has the same name.)
    virtual bool kernel_may_send() const noexcept { return false; }
    // The program closes `fd`, the last number of this socket; the kernel's socket is still open. What is
    // shared with another process (sharing::shared_since) has to leave to the kernel now.
    virtual void before_last_close(int fd) noexcept { (void)fd; }
    // May another process have it, so that it lives on when its last number here is closed?
    virtual bool lives_elsewhere() const noexcept { return false; }
    // The process is about to fork, and this socket carries state.
    virtual void before_fork(int fd) noexcept { (void)fd; }
    // The process ends, and with it what is in its memory; the descriptor is still open. Nobody in this
    // process uses the socket any more.
    virtual void before_process_end(int fd) noexcept { leave_to_kernel(fd, leave::end); }

    // The program calls exec(), and `fd` stays open or the socket would end with it. Should exec fail, the
    // program goes on.
    virtual void before_exec(int fd) noexcept { leave_to_kernel(fd, leave::exec); }

    // ---- readiness, for iomux ----
    // These are asked while an epoll set's lock is held, in any thread: they neither wait nor poll.
    // Does the object queue data the kernel does not know of? False: the kernel's answer for the fd is
    // complete.
    virtual bool offloaded() const noexcept { return false; }
    // May change at any time (connect(), a fall back to the kernel); the socket's waiters are signalled when
    // it does.
    virtual Readiness readiness() const noexcept { return offloaded() ? Readiness::both : Readiness::kernel; }
    // EPOLL* bits that are true now on our side (EPOLLIN | EPOLLRDNORM when a datagram is queued). No
    // polling.
    virtual std::uint32_t ready_events() const noexcept { return 0; }
    // Counts arrivals; edge-triggered epoll reports EPOLLIN again when it moved.
    virtual std::uint32_t arrivals() const noexcept { return 0; }
    // Counts what would wake a waiter for `events` (EPOLLIN side, EPOLLOUT side; errors and hang-ups count
    // for all): an edge-triggered member whose count moved reports all its true events again, as the kernel's
    // wake-ups do.
    virtual std::uint32_t edges(std::uint32_t events) const noexcept {
        (void)events;
        return arrivals();
    }
    // Takes completions from the socket's rings and delivers them (to any socket). Returns frames handled.
    virtual unsigned progress() noexcept { return 0; }
    // Sends what lazy transmission holds back on the socket's rings.
    virtual void flush() noexcept {}
    // Before sleeping: asks the rings for a notification, then appends to `fds` what poll() must watch beside
    // the kernel's own fd. Returns the number appended (at most `room`). The caller must call progress() once
    // more and look at ready_events() after add_waiter and arm, before it sleeps.
    virtual unsigned arm(int* fds, unsigned room) noexcept {
        (void)fds;
        (void)room;
        return 0;
    }
    virtual void disarm() noexcept {}
    // The program was told of an error on the kernel's side (POLLERR): the next call has to report it.
    virtual void kernel_error_seen() noexcept {}
    // A sleeping thread's eventfd, written when something is queued on this socket by any thread (see
    // runtime/waiter.h). False: no room on the list, so the thread may sleep only for a moment.
    virtual bool add_waiter(class Waiter* waiter) noexcept {
        (void)waiter;
        return true;
    }
    virtual void remove_waiter(class Waiter* waiter) noexcept { (void)waiter; }
    // From now on `hook` is called after each change (see ready_hook.h), in addition to the waiters being
    // signalled. False: this socket cannot tell, so it is asked in each look. The hook lives until
    // unsubscribe().
    virtual bool subscribe(ReadyHook* hook) noexcept {
        (void)hook;
        return false;
    }
    // After this no call of `hook` is running or will come. False: not now (a signal handler interrupted the
    // socket's own code): the hook is still there, and this is to be tried again.
    virtual bool unsubscribe(ReadyHook* hook) noexcept {
        (void)hook;
        return true;
    }
    // So many edge-triggered members more, or fewer, ask for room.
    virtual void watch_room(int members) noexcept { (void)members; }
    // The rings whose polling makes this socket progress: iomux polls, flushes and arms each ring once for
    // all sockets, and calls none of progress(), flush(), arm(), disarm() on a socket that knows its rings.
    // Puts at most `room` of them at `out`; returns how many there are. After a change: wake(0).
    // kRingsUnknown: use the socket's own functions.
    static constexpr unsigned kRingsUnknown = ~0u;
    virtual unsigned rings(ring::Ring** out, unsigned room) const noexcept {
        (void)out;
        (void)room;
        return kRingsUnknown;
    }

    // The device of `ring` works no more (Stack::ring_failed): what this socket has there becomes the
    // kernel's, or ends with an error. Internal thread, no lock held.
    virtual void ring_failed(int fd, ring::Ring& ring) noexcept {
        (void)fd;
        (void)ring;
    }

    // What the extra API may ask of it; null: nothing.
    virtual class ExtraSocket* extra() noexcept { return nullptr; }

    // ---- statistics ----
    stats::SocketCounters& socket_counters() noexcept { return socket_counters_; }
    // Copies gauges and names into the block. Not in a signal handler.
    virtual void publish() noexcept {}
    // Counters in the block that are written under a lock of the socket's begin at 0 again. The same.
    virtual void zero_counters() noexcept {}

  protected:
    void last_fd_closed() noexcept override {}

    stats::SocketCounters socket_counters_;
};

}  // namespace vma::sockets
