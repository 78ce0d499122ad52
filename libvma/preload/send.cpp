// SPDX-License-Identifier: BSD-2-Clause
// The sending calls.
#include <limits.h>

#include "libvma/preload/control.h"
#include "libvma/preload/guard.h"
#include "libvma/preload/vectors.h"

using namespace vma;
using namespace vma::preload;

// write() of nothing reaches the socket: a datagram socket sends an empty datagram, a stream that is shut down says EPIPE.
// writev() of nothing does not.
VMA_EXPORT ssize_t write(int fd, const void* buf, size_t len) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->sendto(fd, buf, len, 0, nullptr, 0); });
    return os::write(fd, buf, len);
}
VMA_ALIAS(__write, write);

VMA_EXPORT ssize_t writev(int fd, const iovec* iov, int count) {
    if (auto s = ours(fd); s && !file_layer_answers(iov, count)) {
        msghdr msg = as_message(iov, count);
        return cancellation_point([&] { return s->sendmsg(fd, &msg, 0); });
    }
    return os::writev(fd, iov, count);
}

VMA_EXPORT ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (auto s = ours(fd); s && positioned_call_is_plain(offset, flags) && !file_layer_answers(iov, count)) {
        msghdr msg = as_message(iov, count);
        return cancellation_point([&] { return s->sendmsg(fd, &msg, message_flags(flags)); });
    }
    return os::pwritev2(fd, iov, count, offset, flags);
}
VMA_ALIAS(pwritev64v2, pwritev2);

VMA_EXPORT ssize_t send(int fd, const void* buf, size_t len, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->sendto(fd, buf, len, flags, nullptr, 0); });
    return os::send(fd, buf, len, flags);
}
VMA_ALIAS(__send, send);

VMA_EXPORT ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr, socklen_t alen) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->sendto(fd, buf, len, flags, addr, alen); });
    return os::sendto(fd, buf, len, flags, addr, alen);
}

VMA_EXPORT ssize_t sendmsg(int fd, const msghdr* msg, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->sendmsg(fd, msg, flags); });
    if (g_fds.any() && msg != nullptr) release_passed_fds(*msg);
    return os::sendmsg(fd, msg, flags);
}

VMA_EXPORT int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->sendmmsg(fd, msgs, count, flags); });
    if (g_fds.any() && msgs != nullptr)
        for (unsigned i = 0; i < count && i < IOV_MAX; i++) release_passed_fds(msgs[i].msg_hdr);
    return os::sendmmsg(fd, msgs, count, flags);
}
VMA_ALIAS(__sendmmsg, sendmmsg);

// ---- bytes that do not pass through the program ----

VMA_EXPORT ssize_t sendfile(int out, int in, off_t* offset, size_t count) noexcept {
    if (auto s = ours(out)) return guarded_nocancel([&] { return s->sendfile(out, in, offset, count); });
    return os::sendfile(out, in, offset, count);
}
VMA_EXPORT ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) noexcept
    __attribute__((alias("sendfile")));

VMA_EXPORT ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len, unsigned flags) {
    if (auto s = ours(in))
        return cancellation_point([&] { return s->splice_out(in, in_offset, out, out_offset, len, flags); });
    if (auto s = ours(out))
        return cancellation_point([&] { return s->splice_in(in, in_offset, out, out_offset, len, flags); });
    return os::splice(in, in_offset, out, out_offset, len, flags);
}
