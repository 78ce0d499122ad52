// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "libvma/os/calls.h"

namespace vma::verbs::xdp {
namespace {

constexpr int kWaiting = 4096;  // processes that wait for the holder's end; further ones look now and then

socklen_t name_of(int ifindex, sockaddr_un& name) noexcept {
    name = {};
    name.sun_family = AF_UNIX;
    const int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "libvma/xdp/%d", ifindex);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
}

// Has the process begun to exit? The kernel closes its sockets last, after freeing its memory, which may take
// a while.
bool ending(pid_t pid) noexcept {
    constexpr unsigned long kExiting = 4;  // PF_EXITING of the kernel
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = os::open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return false;
    const ssize_t n = os::read(fd, text, sizeof text - 1);
    os::close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    // The command's name may hold any character; the fields behind it are: state, ppid, pgrp, session, tty,
    // tpgid, flags.
    const char* at = strrchr(text, ')');
    char state = 0;
    unsigned long flags = 0;
    if (at == nullptr || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %lu", &state, &flags) != 2) return false;
    return state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

}  // namespace

Result<InternalFd> Holder::announce(int ifindex) noexcept {
    const int saved = errno;
    sockaddr_un name;
    const socklen_t length = name_of(ifindex, name);
    const int fd = os::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    InternalFd own;
    if (fd >= 0) own = InternalFd(fd);
    bool taken = false;
    if (own && os::bind(own.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
        taken = errno == EADDRINUSE;
        own.reset();
    }
    if (own && os::listen(own.get(), kWaiting) != 0) own.reset();
    errno = saved;
    if (taken) return fail(EBUSY, "another process has the name");
    return own;
}

Holder::State Holder::ask(int ifindex, InternalFd* connection, pid_t* pid) noexcept {
    const int saved = errno;
    sockaddr_un name;
    const socklen_t length = name_of(ifindex, name);
    State state = State::nobody;
    const int fd = os::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        ucred peer{};
        socklen_t size = sizeof peer;
        if (os::connect(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0) {
            if (os::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer.pid = 0;
            state = peer.pid > 0 && ending(peer.pid) ? State::ending : State::alive;
        } else if (errno == EAGAIN) {
            state = State::alive;  // the queue is full of waiting processes
            connection = nullptr;
        }
        if (pid != nullptr) *pid = peer.pid;
        if (state == State::alive && connection != nullptr)
            *connection = InternalFd(fd);
        else
            os::close(fd);
    }
    errno = saved;
    return state;
}

}  // namespace vma::verbs::xdp
