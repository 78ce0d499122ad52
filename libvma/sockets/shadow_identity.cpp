// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/shadow_identity.h"

#include <errno.h>
#include <sys/socket.h>

#include "libvma/os/calls.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets {
namespace {

// 0: the kernel does not tell.
std::uint64_t cookie_of(int fd) noexcept {
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int saved = errno;
    if (fd < 0 || os::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) != 0) cookie = 0;
    errno = saved;
    return cookie;
}

}  // namespace

void ShadowIdentity::learn(int fd) noexcept {
    if (cookie_.load(std::memory_order_relaxed) == 0) cookie_.store(cookie_of(fd), std::memory_order_relaxed);
}

bool ShadowIdentity::is(int fd) const noexcept {
    const std::uint64_t known = cookie_.load(std::memory_order_relaxed);
    return known != 0 && cookie_of(fd) == known;
}

}  // namespace vma::sockets
