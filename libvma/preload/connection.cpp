// SPDX-License-Identifier: BSD-2-Clause
// Names and peers: bind, connect, listen, accept, getsockname, getpeername.
#include "libvma/preload/guard.h"
#include "libvma/sockets/handover/placeholders.h"

using namespace vma;
using namespace vma::preload;

VMA_EXPORT int bind(int fd, const sockaddr* addr, socklen_t len) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->bind(fd, addr, len); });
    return os::bind(fd, addr, len);
}

// libc binds the socket to a reserved port inside libc, past the wrapper of bind().
VMA_EXPORT int bindresvport(int fd, sockaddr_in* addr) noexcept {
    if (maybe_ours(fd)) {
        NotCancelled hold;
        sockets::sharing::hand_one(fd, sockets::leave::bindresvport);
    }
    return os::bindresvport(fd, addr);
}

VMA_EXPORT int connect(int fd, const sockaddr* addr, socklen_t len) {
    return waiting<Ours, log::Level::debug>(
        fd, [&](sockets::Socket& s) { return s.connect(fd, addr, len); },
        [&] { return os::connect(fd, addr, len); },
        [](sockets::Socket& s, int result) { s.kernel_connected(result); });
}
VMA_ALIAS(__connect, connect);

VMA_EXPORT int listen(int fd, int backlog) noexcept {
    if (auto s = ours(fd)) return guarded_nocancel(fd, [&] { return s->listen(fd, backlog); });
    return os::listen(fd, backlog);
}

namespace {

// accept() of the kernel. Its result may be a placeholder for a connection that a parent process has accepted
// already.
template <class Accept>
int accept_from_kernel(sockaddr* addr, socklen_t* len, int flags, Accept&& accept) {
    if (!sockets::placeholders::possible()) return fresh(accept());
    sockets::placeholders::Accepting accepting(addr, len, flags);
    for (;;) {
        const int fd = fresh(accept());
        if (fd < 0) return fd;
        NotCancelled hold;
        if (const int accepted = accepting.resolve(fd); accepted >= 0) return accepted;
    }
}

}  // namespace

// An accepting socket registers its new descriptors itself; only the kernel's new descriptors are checked for
// a stale object.
VMA_EXPORT int accept(int fd, sockaddr* addr, socklen_t* len) {
    return waiting<Ours, log::Level::debug>(
        fd, [&](sockets::Socket& s) { return s.accept4(fd, addr, len, 0); },
        [&] { return accept_from_kernel(addr, len, 0, [&] { return os::accept(fd, addr, len); }); });
}

VMA_EXPORT int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    return waiting<Ours, log::Level::debug>(
        fd, [&](sockets::Socket& s) { return s.accept4(fd, addr, len, flags); },
        [&] {
            return accept_from_kernel(addr, len, flags, [&] { return os::accept4(fd, addr, len, flags); });
        });
}

VMA_EXPORT int getsockname(int fd, sockaddr* addr, socklen_t* len) noexcept {
    if (OursToSend s(fd); s) return guarded_nocancel(fd, [&] { return s->getsockname(fd, addr, len); });
    return os::getsockname(fd, addr, len);
}

VMA_EXPORT int getpeername(int fd, sockaddr* addr, socklen_t* len) noexcept {
    if (OursToSend s(fd); s) return guarded_nocancel(fd, [&] { return s->getpeername(fd, addr, len); });
    return os::getpeername(fd, addr, len);
}
