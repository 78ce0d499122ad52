// SPDX-License-Identifier: BSD-2-Clause
// What the wrappers of this folder have in common. A wrapper has this shape:
//
//     if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->call(fd, ...); });
//     return os::call(fd, ...);
//
// So a descriptor of the kernel costs one look into the table. A call that may wait has this shape:
//
//     return waiting(fd, [&](sockets::Socket& s) { return s.call(fd, ...); }, [&] { return os::call(fd, ...);
//     }, ...);
//
// Both write calls on offloaded sockets to the log, under the wrapper's name.
//
// Code that touches the library's state runs in a runtime::Region, from before it takes a reference until it
// has released the reference. The wrapper of a cancellation point is never noexcept, because pthread_cancel
// unwinds through it. libc's headers declare the other calls noexcept. Their wrappers hold cancellation off,
// because the library's own system calls are cancellation points.
#pragma once

#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <exception>
#include <utility>

#include "libvma/iomux/set_numbers.h"
#include "libvma/os/calls.h"
#include "libvma/preload/call_log.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/verdicts.h"

#define VMA_EXPORT extern "C" __attribute__((visibility("default")))
// A second public name of a wrapper: VMA_ALIAS(__read, read);
#define VMA_ALIAS(name, target) \
    extern "C" __attribute__((visibility("default"), alias(#target), copy(target))) decltype(target) name

namespace vma::preload {

using sockets::g_fds;

// Threads of this process that have a vforked child at the moment. In the child, descriptor numbers may mean
// other files than in the table, which is the parent's.
inline constinit std::atomic<int> g_vforks{0};

inline bool in_vfork_child() noexcept {
    return __builtin_expect(g_vforks.load(std::memory_order_relaxed) != 0, 0) && runtime::in_vfork_child();
}

// True where this process must not touch the table: it belongs to another process whose memory this one
// shares.
inline bool table_is_foreign() noexcept { return in_vfork_child() || runtime::in_foreign_process(); }

inline bool maybe_ours(int fd) noexcept { return __builtin_expect(g_fds.peek(fd) != nullptr, 0); }

// The library's socket behind `fd`, or empty where the kernel alone serves `fd`. While it holds a socket, it
// is a Region.
class Ours {
  public:
    [[gnu::always_inline]] explicit Ours(int fd, bool sends = false) noexcept(false) {
        sockets::FdObject* const seen = g_fds.peek(fd);
        if (__builtin_expect(seen == nullptr, 1) || in_vfork_child()) return;
        runtime::enter_region();
        socket_ = g_fds.socket_of(fd, seen);
        if (__builtin_expect(socket_ == nullptr, 0)) find(fd, sends);
    }
    [[gnu::always_inline]] ~Ours() noexcept(false) {
        if (socket_ == nullptr) return;
        socket_->unref();
        runtime::leave_region();
    }
    Ours(const Ours&) = delete;
    Ours& operator=(const Ours&) = delete;

    explicit operator bool() const noexcept { return socket_ != nullptr; }
    sockets::Socket* operator->() const noexcept { return socket_; }
    sockets::Socket& operator*() const noexcept { return *socket_; }

  private:
    [[gnu::noinline]] void find(int fd, bool sends) noexcept(false) {
        socket_ = g_fds.socket(fd, sends).release();
        if (socket_ == nullptr) runtime::leave_region();
    }

    sockets::Socket* socket_ = nullptr;  // with a reference
};
inline Ours ours(int fd) { return Ours(fd); }

// The same for calls that only send, or ask for a name or an option. They do not take a UDP socket that a
// forked child inherited away from the parent, because the kernel's socket can do the same.
class OursToSend : public Ours {
  public:
    explicit OursToSend(int fd) noexcept(false) : Ours(fd, true) {}
};

// The kernel has just given out `fd`: an object under that number is stale, because the program closed the
// number past the library.
inline int fresh(int fd) noexcept {
    if (maybe_ours(fd) && !table_is_foreign()) {
        runtime::Region region;
        g_fds.remove(fd);
    }
    return fd;
}

// Of a call that ends with kAskVerdict: has the callbacks of the program called, which may throw or jump.
class Asking {
  public:
    Asking() = default;
    ~Asking() {
        if (asked_) sockets::Verdicts::call_over();
    }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    // `before`: errno of the call. False: not here, in the middle of the library.
    bool run(int before) {
        if (runtime::in_region()) {
            errno = EAGAIN;
            return false;
        }
        asked_ = true;
        sockets::Verdicts::run();
        errno = before;
        return true;
    }

  private:
    bool asked_ = false;
};

// Runs library code: std::bad_alloc ends here, as ENOMEM. The library throws only std::exception; other
// exceptions pass through, above all the unwinding of pthread_cancel.
template <class F>
inline auto guarded(F&& call) -> decltype(call()) {
    try {
        return call();
    } catch (const std::exception&) {
        errno = ENOMEM;
        return -1;
    }
}

using runtime::NoCancel;

// Runs the library's work in a call that is no cancellation point. It is a Region, too.
class NotCancelled {
    runtime::Region region_;
    NoCancel hold_;
};

// `fd`: for the log.
template <class F>
inline auto guarded_nocancel(int fd, F&& call, const char* name = __builtin_FUNCTION()) noexcept
    -> decltype(call()) {
    NotCancelled inside;
    const auto result = guarded(std::forward<F>(call));
    log_call(name, fd, result);
    return result;
}

// libc acts on a pending pthread_cancel when a cancellation point begins, even if the call would not block.
// So does this function. `first`: for the log.
template <class F>
inline auto cancellation_point(long first, F&& call, const char* name = __builtin_FUNCTION())
    -> decltype(call()) {
    pthread_testcancel();
    const int before = errno;
    for (Asking asking;;) {
        {
            runtime::Region region;
            const auto result = guarded(call);
            if (__builtin_expect(result >= 0 || errno != runtime::kAskVerdict, 1)) {
                log_call<log::Level::fine>(name, first, result);
                return result;
            }
        }
        if (!asking.run(before)) return -1;
    }
}

// `answered` of waiting() for one transfer: counts what the kernel did.
inline auto counted(int fd, stats::TrafficPath path, int flags) noexcept {
    return [=](sockets::Socket& s, ssize_t n) { s.kernel_answered(fd, path, n, flags); };
}

// Default for `answered` of waiting(), without an effect.
struct NotCounted {
    template <class Result>
    void operator()(sockets::Socket&, Result) const noexcept {}
};

// Makes a call on a socket that may wait. `call` runs inside the region. When it ends early for a handler,
// the handlers run; then the call ends with EINTR or begins anew, as in the kernel. `kernel` is the program's
// own call, for descriptors of the kernel and for a socket that asks for it (kAskKernel). `answered` gets the
// result of `kernel` in the latter case.
template <class Socket = Ours, log::Level level = log::Level::fine, class F, class K, class A = NotCounted>
inline auto waiting_nocancel(int fd, F&& call, K&& kernel, A&& answered = {},
                             const char* name = __builtin_FUNCTION()) -> decltype(kernel()) {
    const int before = errno;
    for (Asking asking;;) {
        int error;
        std::uint32_t interruptions;
        {
            Socket socket(fd);
            if (!socket) return kernel();
            const auto result = guarded([&] { return call(*socket); });
            if (__builtin_expect(result >= 0, 1)) {
                log_call<level>(name, fd, result);
                return result;
            }
            error = errno;
            interruptions = runtime::interruptions();
        }
        if (error == runtime::kRestart) {
            errno = before;
            if (runtime::interruptions() == interruptions && !runtime::in_region()) continue;
            error = EINTR;
        } else if (error == runtime::kAskVerdict) {
            if (asking.run(before)) continue;
            error = EAGAIN;
        } else if (error == runtime::kAskKernel) {
            errno = before;
            const auto result = kernel();
            const int saved = errno;
            log_call<level>(name, fd, result);
            if (Socket socket(fd); socket) {
                errno = saved;
                answered(*socket, result);
            }
            errno = saved;
            return result;
        }
        errno = error;
        log_call<level>(name, fd, -1);
        return -1;
    }
}
template <class Socket = Ours, log::Level level = log::Level::fine, class F, class K, class A = NotCounted>
inline auto waiting(int fd, F&& call, K&& kernel, A&& answered = {}, const char* name = __builtin_FUNCTION())
    -> decltype(kernel()) {
    if (__builtin_expect(g_fds.peek(fd) == nullptr, 1)) return kernel();
    pthread_testcancel();
    return waiting_nocancel<Socket, level>(fd, std::forward<F>(call), std::forward<K>(kernel),
                                           std::forward<A>(answered), name);
}

// dup() and similar calls, except F_DUPFD: `make` asks the kernel for a copy of `fd`.
template <class F>
inline int duplicate(int fd, F&& make, const char* name = __builtin_FUNCTION()) noexcept {
    int copy = make();
    if (copy < 0) return copy;
    if (in_vfork_child()) {
        // The copy is for a program that the child is about to execute.
        if (maybe_ours(fd)) sockets::sharing::hand_one(fd, sockets::leave::given_to_program);
        return copy;
    }
    iomux::set_numbers::may_be_set(fd) ? iomux::set_numbers::note(copy) : iomux::set_numbers::forget(copy);
    if (maybe_ours(fd) && !runtime::in_foreign_process()) {
        const ErrnoKept kept;
        NotCancelled hold;
        sockets::on_dup(fd, copy);
        log_call(name, fd, copy);
    } else {
        fresh(copy);
    }
    return copy;
}

// io_uring reaches sockets past all wrappers: event loops that use it for epoll_ctl() would wait in vain. So
// the library refuses io_uring, as a kernel without it does (io_uring.cpp).
bool refuses_io_uring() noexcept;

// Sends the frames that lazy transmission holds back on any socket, before a call that ends this program and
// does not return.
void flush_all() noexcept;
// Before the process ends: flushes as above, and hands connections over to the kernel, which closes them in
// its own time.
void before_end() noexcept;

}  // namespace vma::preload
