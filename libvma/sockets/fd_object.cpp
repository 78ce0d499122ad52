// SPDX-License-Identifier: BSD-2-Clause
// What a socket does where its class has nothing better: it asks the kernel, on the shadow socket.
#include "libvma/sockets/fd_object.h"

#include <errno.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/region.h"

namespace vma::sockets {
namespace {

// See kernel_answered().
bool left_to_caller() noexcept {
    if (!runtime::in_region()) return false;
    errno = runtime::kAskKernel;
    return true;
}

}  // namespace

int Socket::bind(int fd, const sockaddr* addr, socklen_t len) { return os::bind(fd, addr, len); }
int Socket::connect(int fd, const sockaddr* addr, socklen_t len) {
    return left_to_caller() ? -1 : os::connect(fd, addr, len);
}
int Socket::listen(int fd, int backlog) { return os::listen(fd, backlog); }
int Socket::accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    return left_to_caller() ? -1 : os::accept4(fd, addr, len, flags);
}
int Socket::shutdown(int fd, int how) { return os::shutdown(fd, how); }

int Socket::setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    return os::setsockopt(fd, level, name, value, len);
}
int Socket::getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    return os::getsockopt(fd, level, name, value, len);
}
int Socket::getsockname(int fd, sockaddr* addr, socklen_t* len) { return os::getsockname(fd, addr, len); }
int Socket::getpeername(int fd, sockaddr* addr, socklen_t* len) { return os::getpeername(fd, addr, len); }
int Socket::fcntl(int fd, int cmd, unsigned long arg) { return os::fcntl(fd, cmd, arg); }
int Socket::ioctl(int fd, unsigned long request, void* arg) { return os::ioctl(fd, request, arg); }

ssize_t Socket::recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    return left_to_caller() ? -1 : os::recvfrom(fd, buf, len, flags, addr, alen);
}
ssize_t Socket::recvmsg(int fd, msghdr* msg, int flags) {
    return left_to_caller() ? -1 : os::recvmsg(fd, msg, flags);
}
int Socket::recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
    return left_to_caller() ? -1 : os::recvmmsg(fd, msgs, count, flags, timeout);
}
ssize_t Socket::sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr, socklen_t alen) {
    return left_to_caller() ? -1 : os::sendto(fd, buf, len, flags, addr, alen);
}
ssize_t Socket::sendmsg(int fd, const msghdr* msg, int flags) {
    return left_to_caller() ? -1 : os::sendmsg(fd, msg, flags);
}
int Socket::sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
    return left_to_caller() ? -1 : os::sendmmsg(fd, msgs, count, flags);
}

// The kernel moves the bytes. Into an offloaded socket they go through the shadow socket, which has the same
// addresses; what the library still holds back goes out first, so the order stays. Out of one they can only
// come from the shadow socket.
ssize_t Socket::sendfile(int out, int in, off_t* offset, size_t count) {
    flush();
    return left_to_caller() ? -1 : os::sendfile(out, in, offset, count);
}
ssize_t Socket::splice_in(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                          unsigned flags) {
    flush();
    return left_to_caller() ? -1 : os::splice(in, in_offset, out, out_offset, len, flags);
}
ssize_t Socket::splice_out(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                           unsigned flags) {
    leave_to_kernel(in, leave::splice_source);
    return left_to_caller() ? -1 : os::splice(in, in_offset, out, out_offset, len, flags);
}

void FdObject::leave_to_kernel(int, LeaveCause) noexcept {}

}  // namespace vma::sockets
