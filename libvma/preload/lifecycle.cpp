// SPDX-License-Identifier: BSD-2-Clause
// Begin and end of descriptors: socket, close, dup and similar calls, and the stdio calls that close a
// descriptor inside libc.
#include <limits.h>
#include <resolv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>

#include "libvma/preload/guard.h"
#include "libvma/sockets/tcp/late_linger.h"

using namespace vma;
using namespace vma::preload;

VMA_EXPORT int socket(int domain, int type, int protocol) noexcept {
    int fd = os::socket(domain, type, protocol);
    if (fd < 0 || in_vfork_child() || runtime::inert()) return fd;
    fresh(fd);
    NotCancelled hold;
    sockets::on_socket_created(fd, domain, type, protocol);
    if (maybe_ours(fd)) log_call("socket", domain, fd);
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

// Removes the object of `fd`, the descriptor of a stream that libc is about to close. Tests for cancellation
// first, because a cancelled close closes nothing.
void forget(int fd, const char* call = __builtin_FUNCTION()) {
    if (table_is_foreign()) return;
    pthread_testcancel();
    NotCancelled hold;
    if (g_fds.close(fd)) g_fds.closed(fd);
    log_call(call, fd, 0);
}

// Removes the object of `fd` before the kernel closes `fd`. In the other order, another thread could get the
// number from the kernel and lose its new object. True: the kernel has closed `fd`, too, with `result`.
[[gnu::noinline]] bool close_ours(int fd, int& result) {
    if (table_is_foreign()) return false;
    pthread_testcancel();
    NotCancelled hold;
    sockets::LateLinger linger;
    const bool placed = g_fds.close(fd);
    if (placed) {
        result = os::close(fd);
        g_fds.closed(fd);
    }
    log_call("close", fd, 0);
    return placed;
}

bool not_open(int fd) noexcept {
    if (__builtin_expect(!InternalFd::is_internal(fd), 1)) return false;
    errno = EBADF;
    return true;
}

}  // namespace

VMA_EXPORT int close(int fd) {
    if (not_open(fd)) return -1;
    if (iomux::set_numbers::may_be_set(fd) && !table_is_foreign()) iomux::set_numbers::forget(fd);
    int result;
    if (maybe_ours(fd) && close_ours(fd, result)) return result;
    return os::close(fd);
}
VMA_ALIAS(__close, close);

// The resolver makes and closes its sockets inside libc, so an object under these numbers is stale. Old
// libresolv calls this function through the PLT.
VMA_EXPORT void __res_iclose(res_state state, bool free_addr) {
    if (g_fds.any()) {
        fresh(state->_vcsock);
        for (int fd : state->_u._ext.nssocks) fresh(fd);
    }
    if (auto fn = reinterpret_cast<void (*)(res_state, bool)>(os::resolve_optional("__res_iclose")))
        fn(state, free_addr);
}

VMA_EXPORT int dup(int fd) noexcept {
    if (not_open(fd)) return -1;
    return duplicate(fd, [&] { return os::dup(fd); });
}

namespace {

// Makes room for dup2/dup3 onto `target`, or returns false with errno. The object of `target` must go before
// the kernel replaces the file, but stay if the call will fail.
bool prepare_target(int source, int target) noexcept {
    if (source == target || in_vfork_child()) return true;
    if (not_open(source)) return false;
    if (__builtin_expect(InternalFd::is_internal(target), 0)) {
        runtime::Region region;
        if (!InternalFd::relocate(target)) {
            errno = EBUSY;  // the kernel's answer while another call is taking the number
            return false;
        }
    }
    if (maybe_ours(target) && !runtime::in_foreign_process()) {
        if (os::fcntl(source, F_GETFD, 0) < 0) return false;
        g_fds.close(target);
    }
    return true;
}

// `make` is the kernel's dup2() or dup3().
template <class F>
int duplicate_onto(int source, int target, F&& make, const char* name = __builtin_FUNCTION()) noexcept {
    NotCancelled hold;
    sockets::LateLinger linger;
    if (!prepare_target(source, target)) return -1;
    const int copy = duplicate(source, make, name);
    if (copy < 0 && !in_vfork_child()) g_fds.closed(target);
    return copy;
}

}  // namespace

VMA_EXPORT int dup2(int source, int target) noexcept {
    if (source == target) return not_open(source) ? -1 : os::dup2(source, target);
    return duplicate_onto(source, target, [&] { return os::dup2(source, target); });
}
VMA_ALIAS(__dup2, dup2);

VMA_EXPORT int dup3(int source, int target, int flags) noexcept {
    if ((flags & ~O_CLOEXEC) != 0 || source == target) return os::dup3(source, target, flags);  // EINVAL
    return duplicate_onto(source, target, [&] { return os::dup3(source, target, flags); });
}

namespace {

// While it lives, the numbers of a range have no objects, and the caller closes them in the kernel.
class ForgottenRange {
  public:
    ForgottenRange(unsigned first, unsigned last) noexcept
        : first_(first), last_(std::min<unsigned>(last, INT_MAX)) {
        if (!g_fds.any()) return;
        g_fds.for_each(first_, last_, [&](int fd, sockets::FdObject*) { any_ |= g_fds.close(fd); });
    }
    ~ForgottenRange() {
        if (!any_) return;
        g_fds.for_each(first_, last_, [](int fd, sockets::FdObject* object) {
            if (sockets::FdTable::is_closing(object)) g_fds.closed(fd);
        });
    }
    ForgottenRange(const ForgottenRange&) = delete;
    ForgottenRange& operator=(const ForgottenRange&) = delete;

  private:
    NotCancelled hold_;
    sockets::LateLinger linger_;
    unsigned first_, last_;
    bool any_ = false;
};

// Calls `close(first, last)` for the parts of the range between the library's own descriptors, until a call
// fails.
template <class F>
int for_each_gap(unsigned first, unsigned last, F&& close) noexcept {
    int internal[InternalFd::kMost];
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
    // The library's descriptors are close-on-exec already.
    const bool vforked = in_vfork_child();
    if ((flags & CLOSE_RANGE_CLOEXEC) != 0 || first > last || (!vforked && runtime::in_foreign_process()))
        return os::close_range(first, last, flags);
    // A range beyond all numbers closes nothing, but checks the flags and unshares the table.
    if (flags != 0 && os::close_range(UINT_MAX, UINT_MAX, flags) != 0) return -1;
    // A vforked child closes only its own copies. The parent's objects stay, because the child needs them
    // when it executes a program (sockets/handover/shared_sockets.h).
    std::optional<ForgottenRange> forgotten;
    if (!vforked) forgotten.emplace(first, last);
    return for_each_gap(first, last,
                        [&](unsigned from, unsigned to) { return os::close_range(from, to, flags); });
}

VMA_EXPORT void closefrom(int low) noexcept {
    unsigned first = static_cast<unsigned>(std::max(low, 0));
    const bool vforked = in_vfork_child();
    if (!vforked && runtime::in_foreign_process()) return os::closefrom(low);
    std::optional<ForgottenRange> forgotten;
    if (!vforked) forgotten.emplace(first, INT_MAX);
    int saved = errno;
    for_each_gap(first, UINT_MAX, [](unsigned from, unsigned to) {
        if (to == UINT_MAX) {  // libc handles kernels without close_range
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
    if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->shutdown(fd, how); });
    return os::shutdown(fd, how);
}

// ---- stdio ----
// Streams read, write and close their descriptor inside libc, past all wrappers. So fdopen() leaves the
// socket to the kernel for good, and closing a stream removes the object under its number.

namespace {

void forget_stream(FILE* stream, const char* call = __builtin_FUNCTION()) {
    int fd = fileno_unlocked(stream);
    if (maybe_ours(fd)) forget(fd, call);
}

}  // namespace

VMA_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
    if (auto s = ours(fd)) {
        NoCancel hold;
        s->leave_to_kernel(fd, sockets::leave::stdio_stream);
    }
    return os::fdopen(fd, mode);
}
VMA_ALIAS(_IO_fdopen, fdopen);

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

// ---- formatted text to a descriptor ----
// libc writes the text past all wrappers. For a connection this code formats the text and calls write(). A
// UDP socket's text goes through the kernel's socket, which has the same name.

namespace {

extern "C" int __vsnprintf_chk(char* text, size_t size, int flag, size_t room, const char* format,
                               va_list args) noexcept;
extern "C" int __vasprintf_chk(char** text, int flag, const char* format, va_list args) noexcept;

int write_all(int fd, const char* text, int length) {
    for (int done = 0; done < length;) {
        const ssize_t n = write(fd, text + done, static_cast<size_t>(length - done));
        if (n < 0) return -1;
        done += static_cast<int>(n);
    }
    return length;
}

// `flag`: as in __vdprintf_chk; 0 for vdprintf.
int print(int fd, int flag, const char* format, va_list args) {
    char text[1024];
    va_list again;
    va_copy(again, args);
    const int length = __vsnprintf_chk(text, sizeof text, flag, sizeof text, format, args);
    char* longer = nullptr;
    int result = length;
    if (length >= static_cast<int>(sizeof text)) {
        result = __vasprintf_chk(&longer, flag, format, again);
        if (result >= 0) result = write_all(fd, longer, result);
        free(longer);
    } else if (length >= 0) {
        result = write_all(fd, text, length);
    }
    va_end(again);
    return result;
}

bool prints_itself(int fd) {
    OursToSend s(fd);
    if (!s) return false;
    if (s->readiness() == sockets::Readiness::ours) return true;
    s->flush();  // keeps the order of the frames
    return false;
}

}  // namespace

VMA_EXPORT int vdprintf(int fd, const char* format, va_list args) {
    return prints_itself(fd) ? print(fd, 0, format, args) : os::vdprintf(fd, format, args);
}
VMA_EXPORT int __vdprintf_chk(int fd, int flag, const char* format, va_list args) {
    return prints_itself(fd) ? print(fd, flag, format, args) : os::__vdprintf_chk(fd, flag, format, args);
}
VMA_EXPORT int dprintf(int fd, const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int result = vdprintf(fd, format, args);
    va_end(args);
    return result;
}
VMA_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int result = __vdprintf_chk(fd, flag, format, args);
    va_end(args);
    return result;
}
