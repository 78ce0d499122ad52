// SPDX-License-Identifier: BSD-2-Clause
// recvmmsg(2) and sendmmsg(2) as loops over one message, with the kernel's rules about timeouts and errors in
// between.
#pragma once

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/region.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

// Bytes that one call moves at most: the kernel's MAX_RW_COUNT.
inline constexpr std::size_t kMaxTransfer = 0x7ffff000;

// What the kernel says of a message whose vectors it cannot use: -errno; 0: it can.
inline int vectors_error(const msghdr& message) noexcept {
    if (message.msg_iovlen > IOV_MAX) return -EMSGSIZE;
    if (!UserMemory::readable(message.msg_iov, message.msg_iovlen * sizeof(iovec))) return -EFAULT;
    for (std::size_t i = 0; i < message.msg_iovlen; i++)
        if (static_cast<ssize_t>(message.msg_iov[i].iov_len) < 0) return -EINVAL;
    return 0;
}

// `one(msghdr*, flags)` receives a message; `keep(error)` has an error reported by the next call.
template <class One, class Keep>
int receive_many(mmsghdr* msgs, unsigned count, int flags, timespec* timeout, One&& one, Keep&& keep) {
    clock::Time end;
    if (timeout != nullptr) {
        if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
            errno = EINVAL;
            return -1;
        }
        end = clock::monotonic() + clock::from_timespec(*timeout);
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
            // Reported by the next call, as in the kernel.
            if (errno == runtime::kAskKernel) {
                if (const int error = vectors_error(msgs[got].msg_hdr); error != 0) keep(-error);
            } else if (errno != EAGAIN && errno != runtime::kRestart && errno != runtime::kAskVerdict) {
                keep(errno);
            }
            break;
        }
        msgs[got++].msg_len = static_cast<unsigned>(n);
        if (flags & MSG_WAITFORONE) flags |= MSG_DONTWAIT;
        if (timeout != nullptr) {
            // As in the kernel: looked at after each datagram only (see BUGS in recvmmsg(2)).
            const clock::Time now = clock::monotonic();
            const clock::Nsec left = now < end ? end - now : clock::Nsec::zero();
            *timeout = clock::to_timespec(left);
            if (left == clock::Nsec::zero()) break;
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
