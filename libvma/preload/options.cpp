// SPDX-License-Identifier: BSD-2-Clause
// Socket options, fcntl and ioctl.
#include <stdarg.h>
#include <string.h>

#include "libvma/preload/extra_api.h"
#include "libvma/preload/guard.h"
#include "libvma/sockets/host_memberships.h"
#include "libvma/sockets/membership_options.h"
#include "libvma/sockets/stack.h"

using namespace vma;
using namespace vma::preload;

namespace {

// -1 with errno for a -errno.
int answer(int result) noexcept {
    if (result < 0) errno = -result;
    return result < 0 ? -1 : 0;
}

}  // namespace

VMA_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
    int result;
    if (is_extra_option(level, name) && maybe_ours(fd) && !in_vfork_child()) {
        return answer(extra_option(fd, name, value, len));
    }
    bool known = false;
    if (auto s = ours(fd)) {
        known = true;
        result = guarded_nocancel(fd, [&] { return s->setsockopt(fd, level, name, value, len); });
    } else {
        result = os::setsockopt(fd, level, name, value, len);
    }
    if (result != 0 || level != IPPROTO_IP) return result;
    if (const sockets::MembershipOption* option = sockets::find_membership_option(name)) {
        // Whatever socket it was: senders to groups have to know.
        if (sockets::Stack* stack = sockets::Stack::running()) stack->memberships().changed();
        if (known && option->change == sockets::MembershipOption::Change::join) sockets::wait_after_join();
    }
    return result;
}

namespace {

// vma_get_api() and vma_get_api2() of the extra API's headers ask so. Everything else about descriptor -1 is
// the kernel's.
void* table_asked_for(int level, int name, const void* value, const socklen_t* len) noexcept {
    if (level != SOL_SOCKET || value == nullptr || len == nullptr || *len < sizeof(void*)) return nullptr;
    return name == SO_VMA_GET_API    ? static_cast<void*>(extra_api())
           : name == SO_VMA_GET_API2 ? static_cast<void*>(extra_api2())
                                     : nullptr;
}

}  // namespace

VMA_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* len) noexcept {
    if (__builtin_expect(fd == -1, 0)) {
        if (void* const table = table_asked_for(level, name, value, len); table != nullptr) {
            memcpy(value, &table, sizeof table);
            *len = sizeof table;
            return 0;
        }
    }
    if (is_extra_option(level, name) && maybe_ours(fd) && !in_vfork_child())
        return answer(extra_option_value(fd, name, value, len));
    if (OursToSend s(fd); s)
        return guarded_nocancel(fd, [&] { return s->getsockopt(fd, level, name, value, len); });
    return os::getsockopt(fd, level, name, value, len);
}

// Reads the variadic argument as a register's content, whatever its type is: both calling conventions pass
// int, long and pointer in the same place. A call without the argument only passes on a value that the
// command ignores.
VMA_EXPORT int fcntl(int fd, int cmd, ...) {
    va_list more;
    va_start(more, cmd);
    unsigned long arg = va_arg(more, unsigned long);
    va_end(more);
    if (__builtin_expect(InternalFd::is_internal(fd), 0)) {
        errno = EBADF;
        return -1;
    }
    if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
        return duplicate(fd, [&] { return os::fcntl(fd, cmd, arg); });
    if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->fcntl(fd, cmd, arg); });
    return os::fcntl(fd, cmd, arg);
}
VMA_ALIAS(__fcntl, fcntl);

VMA_EXPORT int fcntl64(int fd, int cmd, ...) __attribute__((alias("fcntl")));

VMA_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list more;
    va_start(more, request);
    void* arg = va_arg(more, void*);
    va_end(more);
    if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->ioctl(fd, request, arg); });
    return os::ioctl(fd, request, arg);
}
