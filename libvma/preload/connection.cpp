// SPDX-License-Identifier: BSD-2-Clause
// Names and peers: bind, connect, listen, accept, getsockname, getpeername.
#include "libvma/preload/guard.h"

using namespace vma;
using namespace vma::preload;

VMA_EXPORT int bind(int fd, const sockaddr* addr, socklen_t len) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel([&] { return s->bind(fd, addr, len); });
    return os::bind(fd, addr, len);
}

VMA_EXPORT int connect(int fd, const sockaddr* addr, socklen_t len) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->connect(fd, addr, len); });
    return os::connect(fd, addr, len);
}
VMA_ALIAS(__connect, connect);

VMA_EXPORT int listen(int fd, int backlog) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel([&] { return s->listen(fd, backlog); });
    return os::listen(fd, backlog);
}

// A socket that accepts registers what it hands out itself; only what comes from the kernel is checked for a stale object.
VMA_EXPORT int accept(int fd, sockaddr* addr, socklen_t* len) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->accept4(fd, addr, len, 0); });
    return fresh(os::accept(fd, addr, len));
}

VMA_EXPORT int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->accept4(fd, addr, len, flags); });
    return fresh(os::accept4(fd, addr, len, flags));
}

VMA_EXPORT int getsockname(int fd, sockaddr* addr, socklen_t* len) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel([&] { return s->getsockname(fd, addr, len); });
    return os::getsockname(fd, addr, len);
}

VMA_EXPORT int getpeername(int fd, sockaddr* addr, socklen_t* len) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel([&] { return s->getpeername(fd, addr, len); });
    return os::getpeername(fd, addr, len);
}
