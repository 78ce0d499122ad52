// SPDX-License-Identifier: BSD-2-Clause
// recvmmsg(2) and sendmmsg(2) as loops over one message, with the kernel's rules about timeouts and errors in between.
#pragma once

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

// `one(msghdr*, flags)` receives a message; `keep(error)` has an error reported by the next call.
template <class One, class Keep>
int receive_many(mmsghdr* msgs, unsigned count, int flags, timespec* timeout, One&& one, Keep&& keep) {
    std::uint64_t end = 0;
    if (timeout != nullptr) {
        if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
            errno = EINVAL;
            return -1;
        }
        end = clock::monotonic_ns() + static_cast<std::uint64_t>(timeout->tv_sec) * 1'000'000'000u +
              static_cast<std::uint64_t>(timeout->tv_nsec);
    }
    count = std::min<unsigned>(count, IOV_MAX);
    unsigned got = 0;
    int saved = errno;
    while (got < count) {
        if (!UserMemory::writable(&msgs[got], sizeof *msgs)) {
            if (got == 0) {
                errno = EFAULT;
                return -1;
            }
            keep(EFAULT);
            break;
        }
        ssize_t n = one(&msgs[got].msg_hdr, flags & ~MSG_WAITFORONE);
        if (n < 0) {
            if (got == 0) return -1;
            if (errno != EAGAIN) keep(errno);  // reported by the next call, as in the kernel
            break;
        }
        msgs[got++].msg_len = static_cast<unsigned>(n);
        if (flags & MSG_WAITFORONE) flags |= MSG_DONTWAIT;
        if (timeout != nullptr) {
            // As in the kernel: looked at after each datagram only (see BUGS in recvmmsg(2)).
            std::uint64_t now = clock::monotonic_ns();
            std::uint64_t left = now < end ? end - now : 0;
            timeout->tv_sec = static_cast<time_t>(left / 1'000'000'000);
            timeout->tv_nsec = static_cast<long>(left % 1'000'000'000);
            if (left == 0) break;
        }
        if (msgs[got - 1].msg_hdr.msg_flags & MSG_OOB) break;
    }
    errno = saved;
    return static_cast<int>(got);
}

// `one(const msghdr*)` sends a message; `whole(const msghdr&, sent)` tells whether all of it went.
template <class One, class Whole>
int send_many(mmsghdr* msgs, unsigned count, One&& one, Whole&& whole) {
    count = std::min<unsigned>(count, IOV_MAX);
    unsigned sent = 0;
    int saved = errno;
    while (sent < count) {
        if (!UserMemory::writable(&msgs[sent], sizeof *msgs)) {
            errno = EFAULT;
            break;
        }
        ssize_t n = one(&msgs[sent].msg_hdr);
        if (n < 0) break;
        msgs[sent++].msg_len = static_cast<unsigned>(n);
        if (!whole(msgs[sent - 1].msg_hdr, static_cast<std::size_t>(n))) break;
    }
    if (sent == 0 && count != 0) return -1;
    errno = saved;
    return static_cast<int>(sent);
}

}  // namespace vma::sockets
