// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/shadow.h"

#include <errno.h>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/no_cancel.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets::shadow {

namespace {

// What getsockname() or getpeername() puts there.
sockaddr_in name_by(int (*ask)(int, sockaddr*, socklen_t*), int fd) noexcept {
    sockaddr_in a{};
    socklen_t len = sizeof a;
    int saved = errno;
    if (ask(fd, reinterpret_cast<sockaddr*>(&a), &len) != 0 || a.sin_family != AF_INET) a = {};
    errno = saved;
    return a;
}

}  // namespace

sockaddr_in name_of(int fd) noexcept {
    return name_by([](int s, sockaddr* a, socklen_t* len) { return os::getsockname(s, a, len); }, fd);
}

sockaddr_in peer_of(int fd) noexcept {
    return name_by([](int s, sockaddr* a, socklen_t* len) { return os::getpeername(s, a, len); }, fd);
}

std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    return os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

int bind_to(int fd, in_addr_t addr, in_port_t port) noexcept {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = addr;
    a.sin_port = port;
    return os::bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a);
}

bool bind_address(int fd, in_addr_t addr, bool kept) noexcept {
    const int off = 0, on = 1;
    os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    const bool bound = bind_to(fd, addr, 0) == 0;
    if (!kept) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
    return bound;
}

int dissolve(int fd) noexcept {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    const runtime::NoCancel hold;
    return os::connect(fd, &none, sizeof none);
}

}  // namespace vma::sockets::shadow
