// SPDX-License-Identifier: BSD-2-Clause
// What every wrapper of this folder needs. The shape of a wrapper is
//
//     if (auto s = ours(fd)) return guarded([&] { return s->call(fd, ...); });
//     return os::call(fd, ...);
//
// so a descriptor that is not ours costs one look into the table. The wrapper of a cancellation point is never noexcept
// (pthread_cancel unwinds through it); libc's headers declare the others noexcept, and they hold cancellation off while
// the library works, because the library's own system calls are cancellation points.
#pragma once

#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <exception>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"

#define VMA_EXPORT extern "C" __attribute__((visibility("default")))
// A second public name of a wrapper: VMA_ALIAS(__read, read);
#define VMA_ALIAS(name, target) \
    extern "C" __attribute__((visibility("default"), alias(#target), copy(target))) decltype(target) name

namespace vma::preload {

using sockets::g_fds;

// Threads of this process that have a vforked child at the moment. In such a child numbers mean other things than in the
// table, which is the parent's.
inline constinit std::atomic<int> g_vforks{0};

inline bool in_vfork_child() noexcept {
    return __builtin_expect(g_vforks.load(std::memory_order_relaxed) != 0, 0) && runtime::in_vfork_child();
}

// True where the table must not be touched: it belongs to another process whose memory this one shares.
inline bool table_is_foreign() noexcept { return in_vfork_child() || runtime::in_foreign_process(); }

inline bool maybe_ours(int fd) noexcept { return __builtin_expect(g_fds.peek(fd) != nullptr, 0); }

// The socket behind `fd`, or nothing where the kernel alone serves it.
inline sockets::Ref<sockets::Socket> ours(int fd) noexcept {
    if (__builtin_expect(g_fds.peek(fd) == nullptr, 1) || in_vfork_child()) return {};
    return g_fds.socket(fd);
}

// The kernel has just handed out `fd`: what we had under that number was closed behind our back.
inline int fresh(int fd) noexcept {
    if (maybe_ours(fd) && !table_is_foreign()) g_fds.remove(fd);
    return fd;
}

// Runs library code: std::bad_alloc ends here, as ENOMEM. Everything the library throws is a std::exception; what is not
// passes through, above all the unwinding of pthread_cancel.
template <class F>
inline auto guarded(F&& call) -> decltype(call()) {
    try {
        return call();
    } catch (const std::exception&) {
        errno = ENOMEM;
        return -1;
    }
}

// Holds cancellation off in calls that are no cancellation points in libc.
class NoCancel {
  public:
    NoCancel() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_); }
    ~NoCancel() { pthread_setcancelstate(old_, nullptr); }
    NoCancel(const NoCancel&) = delete;
    NoCancel& operator=(const NoCancel&) = delete;

  private:
    int old_ = 0;
};

template <class F>
inline auto guarded_nocancel(F&& call) noexcept -> decltype(call()) {
    NoCancel hold;
    return guarded(std::forward<F>(call));
}

// libc acts on a pending pthread_cancel when such a call begins, even if the call would not block. So must ours.
template <class F>
inline auto cancellation_point(F&& call) -> decltype(call()) {
    pthread_testcancel();
    return guarded(std::forward<F>(call));
}

// dup() and its relatives beside F_DUPFD: `make` asks the kernel for a copy of `fd`.
template <class F>
inline int duplicate(int fd, F&& make) noexcept {
    int copy = make();
    if (copy < 0 || in_vfork_child()) return copy;
    fresh(copy);
    if (maybe_ours(fd) && !runtime::in_foreign_process()) {
        int saved = errno;
        NoCancel hold;
        sockets::on_dup(fd, copy);
        errno = saved;
    }
    return copy;
}

// Sends what lazy transmission holds back on any socket: what follows ends this program without coming back.
void flush_all() noexcept;
// Before the process ends: the same, and connections go to the kernel, which closes them in its own time.
void before_end() noexcept;

}  // namespace vma::preload
