// SPDX-License-Identifier: BSD-2-Clause
// Where descriptors begin and end: socket, close, dup and their relatives, and the stdio calls that close one inside libc.
#include <limits.h>
#include <resolv.h>
#include <stdio.h>
#include <sys/resource.h>

#include <algorithm>

#include "libvma/preload/guard.h"

using namespace vma;
using namespace vma::preload;

VMA_EXPORT int socket(int domain, int type, int protocol) noexcept {
    int fd = os::socket(domain, type, protocol);
    if (fd < 0 || in_vfork_child() || runtime::inert()) return fd;
    fresh(fd);
    NoCancel hold;
    sockets::on_socket_created(fd, domain, type, protocol);
    return fd;
}

VMA_EXPORT int socketpair(int domain, int type, int protocol, int sv[2]) noexcept {
    int rc = os::socketpair(domain, type, protocol, sv);
    if (rc == 0) fresh(sv[0]), fresh(sv[1]);
    return rc;
}

VMA_EXPORT int pipe(int fds[2]) noexcept {
    int rc = os::pipe(fds);
    if (rc == 0) fresh(fds[0]), fresh(fds[1]);
    return rc;
}
VMA_ALIAS(__pipe, pipe);

VMA_EXPORT int pipe2(int fds[2], int flags) noexcept {
    int rc = os::pipe2(fds, flags);
    if (rc == 0) fresh(fds[0]), fresh(fds[1]);
    return rc;
}

namespace {

// Forgets what `fd` means before the kernel closes it: the other way round, another thread could get the number from
// the kernel and have its new object removed. Cancellation first: a close() that is cancelled closes nothing.
[[gnu::noinline]] void forget(int fd) {
    if (table_is_foreign()) return;
    pthread_testcancel();
    NoCancel hold;
    g_fds.close(fd);
}

bool not_open(int fd) noexcept {
    if (__builtin_expect(!InternalFd::is_internal(fd), 1)) return false;
    errno = EBADF;
    return true;
}

}  // namespace

VMA_EXPORT int close(int fd) {
    if (not_open(fd)) return -1;
    if (maybe_ours(fd)) forget(fd);
    return os::close(fd);
}
VMA_ALIAS(__close, close);

// The resolver closes its sockets inside libc. They were made there too, so no object of ours lives under these numbers
// unless it is stale; old libresolv calls this function through the PLT.
VMA_EXPORT void __res_iclose(res_state state, bool free_addr) {
    if (g_fds.any()) {
        fresh(state->_vcsock);
        for (int fd : state->_u._ext.nssocks) fresh(fd);
    }
    if (auto fn = reinterpret_cast<void (*)(res_state, bool)>(os::resolve_optional("__res_iclose"))) fn(state, free_addr);
}

VMA_EXPORT int dup(int fd) noexcept {
    if (not_open(fd)) return -1;
    return duplicate(fd, [&] { return os::dup(fd); });
}

namespace {

// Makes room for dup2/dup3 onto `target`, or returns false with errno. The object under the target must go before the
// kernel replaces the file, but stay if the call is going to fail.
bool prepare_target(int source, int target) noexcept {
    if (source == target || in_vfork_child()) return true;
    if (not_open(source)) return false;
    if (__builtin_expect(InternalFd::is_internal(target), 0) && !InternalFd::relocate(target)) {
        errno = EBUSY;  // what the kernel answers when the number is being given out at this moment
        return false;
    }
    if (maybe_ours(target) && !runtime::in_foreign_process()) {
        if (os::fcntl(source, F_GETFD, 0) < 0) return false;
        NoCancel hold;
        g_fds.close(target);
    }
    return true;
}

}  // namespace

VMA_EXPORT int dup2(int source, int target) noexcept {
    if (source == target) return not_open(source) ? -1 : os::dup2(source, target);
    if (!prepare_target(source, target)) return -1;
    return duplicate(source, [&] { return os::dup2(source, target); });
}
VMA_ALIAS(__dup2, dup2);

VMA_EXPORT int dup3(int source, int target, int flags) noexcept {
    if ((flags & ~O_CLOEXEC) != 0 || source == target) return os::dup3(source, target, flags);  // EINVAL
    if (!prepare_target(source, target)) return -1;
    return duplicate(source, [&] { return os::dup3(source, target, flags); });
}

namespace {

void forget_range(unsigned first, unsigned last) noexcept {
    if (!g_fds.any()) return;
    NoCancel hold;
    g_fds.for_each(first, std::min<unsigned>(last, INT_MAX), [](int fd, sockets::FdObject*) { g_fds.close(fd); });
}

// Calls `close(first, last)` for the parts of the range between the library's own descriptors, while it returns 0.
template <class F>
int for_each_gap(unsigned first, unsigned last, F&& close) noexcept {
    int internal[512];
    std::size_t count = InternalFd::list(internal, std::size(internal));
    for (std::size_t i = 0; i < count; i++) {
        unsigned fd = static_cast<unsigned>(internal[i]);
        if (fd < first) continue;
        if (fd > last) break;
        if (fd > first)
            if (int rc = close(first, fd - 1)) return rc;
        first = fd + 1;
    }
    return first <= last ? close(first, last) : 0;
}

}  // namespace

VMA_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
    // Ours are close-on-exec already, and a vforked child closes only its own copies.
    if ((flags & CLOSE_RANGE_CLOEXEC) != 0 || first > last || table_is_foreign())
        return os::close_range(first, last, flags);
    // Beyond all numbers: closes nothing, but checks the flags and unshares the table.
    if (flags != 0 && os::close_range(UINT_MAX, UINT_MAX, flags) != 0) return -1;
    forget_range(first, last);
    return for_each_gap(first, last, [&](unsigned from, unsigned to) { return os::close_range(from, to, flags); });
}

VMA_EXPORT void closefrom(int low) noexcept {
    unsigned first = static_cast<unsigned>(std::max(low, 0));
    if (table_is_foreign()) return os::closefrom(low);
    forget_range(first, INT_MAX);
    int saved = errno;
    for_each_gap(first, UINT_MAX, [](unsigned from, unsigned to) {
        if (to == UINT_MAX) {  // libc knows what to do on kernels without close_range
            os::closefrom(static_cast<int>(from));
            return 0;
        }
        if (os::close_range(from, to, 0) != 0)
            for (unsigned fd = from; fd <= to; fd++) os::close(static_cast<int>(fd));
        return 0;
    });
    errno = saved;
}

VMA_EXPORT int shutdown(int fd, int how) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel([&] { return s->shutdown(fd, how); });
    return os::shutdown(fd, how);
}

// ---- stdio ----
// Streams read, write and close their descriptor inside libc, past all wrappers. So a socket that becomes a stream goes
// to the kernel for good, and closing a stream forgets what its number meant.

namespace {

void forget_stream(FILE* stream) {
    int fd = fileno_unlocked(stream);
    if (maybe_ours(fd)) forget(fd);
}

}  // namespace

VMA_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
    if (auto s = ours(fd)) {
        NoCancel hold;
        s->leave_to_kernel(fd, "used as a stdio stream");
    }
    return os::fdopen(fd, mode);
}

VMA_EXPORT int fclose(FILE* stream) {
    if (g_fds.any()) forget_stream(stream);
    return os::fclose(stream);
}

VMA_EXPORT FILE* freopen(const char* path, const char* mode, FILE* stream) {
    if (g_fds.any()) forget_stream(stream);
    FILE* result = os::freopen(path, mode, stream);
    if (result != nullptr && g_fds.any()) fresh(fileno_unlocked(result));
    return result;
}

VMA_EXPORT FILE* freopen64(const char* path, const char* mode, FILE* stream) {
    if (g_fds.any()) forget_stream(stream);
    FILE* result = os::freopen64(path, mode, stream);
    if (result != nullptr && g_fds.any()) fresh(fileno_unlocked(result));
    return result;
}
