// SPDX-License-Identifier: BSD-2-Clause
// Connections that this process has accepted for whoever accepts next, in any of the processes that have the
// listener.
//
// What waits in the queue of an offloaded listener is in the memory of one process. When a child comes for
// the listener, or is about to be forked for it, each such connection becomes the kernel's, and a placeholder
// takes its place in the kernel's queue: a connection over loopback, from an address that nobody else uses.
// So poll() and its kin wake up and accept() has its order, in every process. Who accepts a placeholder gets
// the connection itself under its number: from the table here, or from an ancestor that has it there
// (handover/shared_sockets.h).
//
// A placeholder whose other end is closed was not accepted, or in vain: its connection is closed, too.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include "libvma/net/address.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/tcp/handshake/listener.h"

namespace vma::sockets::placeholders {

// Not accepted yet, before anything is given up for it. Empty when loopback does not lead to the listener.
class Placeholder {
  public:
    explicit Placeholder(const net::Endpoint& listener) noexcept;
    explicit operator bool() const noexcept { return static_cast<bool>(ours_); }
    // `connection` is a kernel socket to which nobody else refers. Closed where there is no memory.
    void stands_for(InternalFd connection) noexcept;

  private:
    InternalFd ours_;
    in_port_t port_ = 0;
};

// The connection of the placeholder that comes from this port; empty if it is none of this process's.
InternalFd take(in_port_t port) noexcept;

// Around accept() or accept4() of the kernel with these arguments: what it gives may be a placeholder.
class Accepting {
  public:
    Accepting(sockaddr* addr, socklen_t* len, int flags) noexcept;
    // `fd`: what accept() gave, or -1. Returns it; it is the connection itself now if it was a placeholder.
    // -1 and EAGAIN: it was one, but the connection is gone; *len is as before, accept again.
    int resolve(int fd) noexcept;

  private:
    sockaddr* const addr_;
    socklen_t* const len_;
    const int flags_;
    socklen_t room_ = 0;  // what *len_ was
};

// Before the rules of `listener` go: the kernel refuses the last segment of a handshake that is under way
// here. So this waits for those to end, 50 ms at most; what comes meanwhile is the kernel's from its SYN on.
// `progress()` receives.
template <class Progress>
void let_handshakes_end(tcp::Listener& listener, Progress&& progress) noexcept {
    listener.leave_new_to_kernel(true);
    for (int i = 0; i < 1000; i++) {
        progress();
        if (listener.half_open() == 0) return;
        timespec pause{0, 50'000};
        os::raw_syscall(SYS_nanosleep, &pause, nullptr);
    }
}

// May accept() give one? Has this process, or an ancestor, a library that offers: some loads.
bool possible() noexcept;

}  // namespace vma::sockets::placeholders
