// SPDX-License-Identifier: BSD-2-Clause
// What the kernel does with an iovec before the socket sees the iovec, for readv, writev, preadv2 and
// pwritev2.
#pragma once

#include <limits.h>
#include <sys/uio.h>

#include "libvma/preload/guard.h"
#include "libvma/sockets/user_memory.h"

namespace vma::preload {

// The kernel's file layer answers these calls itself: a bad count, a length that overflows, or 0 bytes. readv
// and writev of 0 bytes return 0 and touch no datagram, unlike recvmsg and sendmsg. So the kernel gets these
// calls.
inline bool file_layer_answers(const iovec* iov, int count) noexcept {
    if (count <= 0 || count > IOV_MAX) return true;
    if (!sockets::UserMemory::readable(iov, static_cast<size_t>(count) * sizeof *iov)) return true;
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > static_cast<size_t>(SSIZE_MAX) - total) return true;
        total += iov[i].iov_len;
    }
    return total == 0;
}

inline msghdr as_message(const iovec* iov, int count) noexcept {
    msghdr msg{};
    msg.msg_iov = const_cast<iovec*>(iov);
    msg.msg_iovlen = static_cast<size_t>(count);
    return msg;
}

// preadv2 and pwritev2 work on a socket when the offset is -1. Only RWF_NOWAIT of their flags has an effect
// there.
inline bool positioned_call_is_plain(off_t offset, int flags) noexcept {
    return offset == -1 && (flags & ~(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND)) == 0;
}
inline int message_flags(int flags) noexcept { return (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0; }

}  // namespace vma::preload
