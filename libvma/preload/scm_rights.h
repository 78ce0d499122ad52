// SPDX-License-Identifier: BSD-2-Clause
// Descriptors that travel in control messages of AF_UNIX sockets (SCM_RIGHTS).
#pragma once

#include <string.h>
#include <sys/socket.h>

#include "libvma/iomux/iomux.h"
#include "libvma/preload/guard.h"
#include "libvma/sockets/user_memory.h"

namespace vma::preload {

template <class F>
inline void for_each_passed_fd(const msghdr& msg, F&& visit) {
    // The kernel refuses unreadable control messages.
    if (msg.msg_control == nullptr || !sockets::UserMemory::readable(msg.msg_control, msg.msg_controllen))
        return;
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(&msg), c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) continue;
        const unsigned char* data = CMSG_DATA(c);
        const auto* end = static_cast<const unsigned char*>(msg.msg_control) + msg.msg_controllen;
        size_t bytes = c->cmsg_len - CMSG_LEN(0);
        if (bytes > static_cast<size_t>(end - data)) bytes = static_cast<size_t>(end - data);
        for (; bytes >= sizeof(int); bytes -= sizeof(int), data += sizeof(int)) {
            int fd;
            memcpy(&fd, data, sizeof fd);
            visit(fd);
        }
    }
}

// The other process will use the kernel's socket, so the packets must arrive there. Called before the
// program's call, so its arguments may be invalid.
inline void release_passed_fds(const msghdr* given) noexcept {
    if (!sockets::UserMemory::readable(given, sizeof *given)) return;
    const msghdr& msg = *given;
    for_each_passed_fd(msg, [](int fd) {
        if (auto s = ours(fd)) {
            NoCancel hold;
            s->leave_to_kernel(fd, sockets::leave::passed_to_process);
        }
    });
}

inline void check_received_fds(const msghdr& msg) noexcept {
    for_each_passed_fd(msg, [](int fd) {
        fresh(fd);
        iomux::received(fd);
    });
}

}  // namespace vma::preload
