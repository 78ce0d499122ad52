// SPDX-License-Identifier: BSD-2-Clause
// Calls that give out a descriptor number and do not concern the library otherwise.
//
// The kernel may give a number out again while the table still holds an object for it. That happens when the
// program closed the descriptor past the library (a system call in assembler). The kernel's descriptor is
// new, so fresh() removes the stale object.
#include <stdarg.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "libvma/preload/guard.h"

using namespace vma;
using namespace vma::preload;

namespace {

// open()'s third argument exists only with these flags.
#define VMA_OPEN_MODE(flags, mode)                                    \
    mode_t mode = 0;                                                  \
    if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) { \
        va_list more;                                                 \
        va_start(more, flags);                                        \
        mode = va_arg(more, mode_t);                                  \
        va_end(more);                                                 \
    }

}  // namespace

VMA_EXPORT int open(const char* path, int flags, ...) {
    VMA_OPEN_MODE(flags, mode)
    return fresh(os::open(path, flags, mode));
}
VMA_ALIAS(__open, open);

VMA_EXPORT int open64(const char* path, int flags, ...) {
    VMA_OPEN_MODE(flags, mode)
    return fresh(os::open64(path, flags, mode));
}
VMA_ALIAS(__open64, open64);

VMA_EXPORT int openat(int dirfd, const char* path, int flags, ...) {
    VMA_OPEN_MODE(flags, mode)
    return fresh(os::openat(dirfd, path, flags, mode));
}

VMA_EXPORT int openat64(int dirfd, const char* path, int flags, ...) {
    VMA_OPEN_MODE(flags, mode)
    return fresh(os::openat64(dirfd, path, flags, mode));
}

// The forms of _FORTIFY_SOURCE, which programs call where the compiler could not see the flags. They abort
// when a mode is missing.
VMA_EXPORT int __open_2(const char* path, int flags) { return fresh(os::__open_2(path, flags)); }
VMA_EXPORT int __open64_2(const char* path, int flags) { return fresh(os::__open64_2(path, flags)); }
VMA_EXPORT int __openat_2(int dirfd, const char* path, int flags) {
    return fresh(os::__openat_2(dirfd, path, flags));
}
VMA_EXPORT int __openat64_2(int dirfd, const char* path, int flags) {
    return fresh(os::__openat64_2(dirfd, path, flags));
}

VMA_EXPORT int creat(const char* path, mode_t mode) { return fresh(os::creat(path, mode)); }
VMA_EXPORT int creat64(const char* path, mode_t mode) { return fresh(os::creat64(path, mode)); }

VMA_EXPORT int open_by_handle_at(int mount_fd, struct file_handle* handle, int flags) {
    return fresh(os::open_by_handle_at(mount_fd, handle, flags));
}

namespace {

// Threads may watch the set before it becomes an EpollSet.
int new_set(int fd) noexcept {
    if (fd >= 0 && !in_vfork_child() && !runtime::inert()) iomux::set_numbers::note(fd);
    return fresh(fd);
}

}  // namespace

VMA_EXPORT int epoll_create(int size) noexcept { return new_set(os::epoll_create(size)); }
VMA_EXPORT int epoll_create1(int flags) noexcept { return new_set(os::epoll_create1(flags)); }
VMA_EXPORT int eventfd(unsigned value, int flags) noexcept { return fresh(os::eventfd(value, flags)); }
VMA_EXPORT int timerfd_create(clockid_t clock, int flags) noexcept {
    return fresh(os::timerfd_create(clock, flags));
}
VMA_EXPORT int inotify_init() noexcept { return fresh(os::inotify_init()); }
VMA_EXPORT int inotify_init1(int flags) noexcept { return fresh(os::inotify_init1(flags)); }
VMA_EXPORT int fanotify_init(unsigned flags, unsigned event_flags) noexcept {
    return fresh(os::fanotify_init(flags, event_flags));
}
VMA_EXPORT int memfd_create(const char* name, unsigned flags) noexcept {
    return fresh(os::memfd_create(name, flags));
}
VMA_EXPORT int pidfd_open(pid_t pid, unsigned flags) noexcept { return fresh(os::pidfd_open(pid, flags)); }
VMA_EXPORT int pidfd_getfd(int pidfd, int target, unsigned flags) noexcept {
    return fresh(os::pidfd_getfd(pidfd, target, flags));
}
VMA_EXPORT int posix_openpt(int flags) { return fresh(os::posix_openpt(flags)); }

// With a number given, an existing signalfd gets a new mask: the call gives out no new number.
VMA_EXPORT int signalfd(int fd, const sigset_t* mask, int flags) noexcept {
    int result = os::signalfd(fd, mask, flags);
    return fd == -1 ? fresh(result) : result;
}
