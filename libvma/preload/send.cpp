// SPDX-License-Identifier: BSD-2-Clause
// The sending calls.
#include <limits.h>

#include "libvma/preload/guard.h"
#include "libvma/preload/scm_rights.h"
#include "libvma/preload/vectors.h"

using namespace vma;
using namespace vma::preload;

using sockets::Socket;
using stats::TrafficPath;

// A write() of 0 bytes reaches the socket: a datagram socket sends an empty datagram, a stream that is shut
// down answers EPIPE. A writev() of 0 bytes does not.
VMA_EXPORT ssize_t write(int fd, const void* buf, size_t len) {
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendto(fd, buf, len, 0, nullptr, 0); },
        [&] { return os::write(fd, buf, len); }, counted(fd, TrafficPath::tx_os, 0));
}
VMA_ALIAS(__write, write);

VMA_EXPORT ssize_t writev(int fd, const iovec* iov, int count) {
    auto kernel = [&] { return os::writev(fd, iov, count); };
    if (!maybe_ours(fd) || file_layer_answers(iov, count)) return kernel();
    msghdr msg = as_message(iov, count);
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendmsg(fd, &msg, 0); }, kernel, counted(fd, TrafficPath::tx_os, 0));
}

VMA_EXPORT ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    auto kernel = [&] { return os::pwritev2(fd, iov, count, offset, flags); };
    if (!maybe_ours(fd) || !positioned_call_is_plain(offset, flags) || file_layer_answers(iov, count))
        return kernel();
    msghdr msg = as_message(iov, count);
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendmsg(fd, &msg, message_flags(flags)); }, kernel,
        counted(fd, TrafficPath::tx_os, 0));
}
VMA_ALIAS(pwritev64v2, pwritev2);

VMA_EXPORT ssize_t send(int fd, const void* buf, size_t len, int flags) {
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendto(fd, buf, len, flags, nullptr, 0); },
        [&] { return os::send(fd, buf, len, flags); }, counted(fd, TrafficPath::tx_os, flags));
}
VMA_ALIAS(__send, send);

VMA_EXPORT ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                          socklen_t alen) {
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendto(fd, buf, len, flags, addr, alen); },
        [&] { return os::sendto(fd, buf, len, flags, addr, alen); }, counted(fd, TrafficPath::tx_os, flags));
}

VMA_EXPORT ssize_t sendmsg(int fd, const msghdr* msg, int flags) {
    auto kernel = [&] {
        if (g_fds.any() && msg != nullptr) release_passed_fds(msg);
        return os::sendmsg(fd, msg, flags);
    };
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendmsg(fd, msg, flags); }, kernel,
        counted(fd, TrafficPath::tx_os, flags));
}

VMA_EXPORT int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
    auto kernel = [&] {
        if (g_fds.any() && msgs != nullptr)
            for (unsigned i = 0; i < count && i < IOV_MAX; i++) release_passed_fds(&msgs[i].msg_hdr);
        return os::sendmmsg(fd, msgs, count, flags);
    };
    return waiting<OursToSend>(
        fd, [&](Socket& s) { return s.sendmmsg(fd, msgs, count, flags); }, kernel,
        [&](Socket& s, int n) {
            if (n < 0) s.kernel_answered(fd, TrafficPath::tx_os, n, flags);
            for (int i = 0; i < n; i++) s.kernel_answered(fd, TrafficPath::tx_os, msgs[i].msg_len, flags);
        });
}
VMA_ALIAS(__sendmmsg, sendmmsg);

// ---- bytes that do not pass through the program ----

VMA_EXPORT ssize_t sendfile(int out, int in, off_t* offset, size_t count) noexcept {
    auto kernel = [&] { return os::sendfile(out, in, offset, count); };
    if (!maybe_ours(out)) return kernel();
    NoCancel hold;
    return waiting_nocancel<OursToSend>(
        out, [&](Socket& s) { return s.sendfile(out, in, offset, count); }, kernel,
        counted(out, TrafficPath::tx_os, 0));
}
VMA_EXPORT ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) noexcept
    __attribute__((alias("sendfile")));

VMA_EXPORT ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                          unsigned flags) {
    auto kernel = [&] { return os::splice(in, in_offset, out, out_offset, len, flags); };
    auto into = [&] {
        return waiting<OursToSend>(
            out, [&](Socket& s) { return s.splice_in(in, in_offset, out, out_offset, len, flags); }, kernel,
            counted(out, TrafficPath::tx_os, 0), "splice");
    };
    return waiting(
        in, [&](Socket& s) { return s.splice_out(in, in_offset, out, out_offset, len, flags); }, into,
        [in](Socket& s, ssize_t n) { s.kernel_answered(in, TrafficPath::rx_os, n, 0); });
}
