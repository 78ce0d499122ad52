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
net::Endpoint name_by(int (*ask)(int, sockaddr*, socklen_t*), int fd) noexcept {
    sockaddr_in a{};
    socklen_t len = sizeof a;
    int saved = errno;
    const bool known = ask(fd, reinterpret_cast<sockaddr*>(&a), &len) == 0 && a.sin_family == AF_INET;
    errno = saved;
    return known ? net::Endpoint(a) : net::Endpoint();
}

}  // namespace

net::Endpoint name_of(int fd) noexcept {
    return name_by([](int s, sockaddr* a, socklen_t* len) { return os::getsockname(s, a, len); }, fd);
}

net::Endpoint peer_of(int fd) noexcept {
    return name_by([](int s, sockaddr* a, socklen_t* len) { return os::getpeername(s, a, len); }, fd);
}

std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    return os::raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

int bind_to(int fd, const net::Endpoint& name) noexcept {
    const net::SocketName raw(name);
    return os::bind(fd, raw.get(), raw.size());
}

bool bind_address(int fd, const net::Address& address, bool kept) noexcept {
    const int off = 0, on = 1;
    os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    const bool bound = bind_to(fd, {address, 0}) == 0;
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
