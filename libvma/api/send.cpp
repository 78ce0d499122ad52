// SPDX-License-Identifier: BSD-2-Clause
// sendmany, and the table that has it.
#include <algorithm>

#include "libvma/api/calls.h"
#include "libvma/preload/extra_api.h"
#include "libvma/sockets/names.h"
#include "mellanox/vma_extra2.h"

namespace vma::api {
namespace {

using sockets::Socket;
using stats::TrafficPath;

// Pieces of one call: the kernel's UIO_MAXIOV, and what lies between two looks at signals.
constexpr unsigned kAtOnce = 1024;

bool is_stream(int fd) noexcept {
    int type = 0;
    socklen_t length = sizeof type;
    return os::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

// The same by the kernel, which may wait.
int send_by_kernel(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                   socklen_t tolen) {
    msghdr message{};
    message.msg_name = const_cast<sockaddr*>(to);
    message.msg_namelen = tolen;
    message.msg_iov = const_cast<iovec*>(data);
    if (is_stream(fd)) {
        message.msg_iovlen = count;
        return static_cast<int>(os::sendmsg(fd, &message, flags));
    }
    constexpr unsigned kRoom = 64;
    mmsghdr messages[kRoom];
    message.msg_iovlen = 1;
    for (unsigned sent = 0;;) {
        const unsigned run = std::min(count - sent, kRoom);
        for (unsigned i = 0; i < run; i++) {
            messages[i].msg_hdr = message;
            messages[i].msg_hdr.msg_iov = const_cast<iovec*>(data + sent + i);
        }
        const int went = os::sendmmsg(fd, messages, run, flags);
        if (went < 0) return sent != 0 ? static_cast<int>(sent) : -1;
        sent += static_cast<unsigned>(went);
        if (static_cast<unsigned>(went) < run || sent == count) return static_cast<int>(sent);
    }
}

// What send_by_kernel() did, for the socket's counters.
void count_kernel(Socket& s, int fd, const iovec* data, int result, int flags) noexcept {
    sockets::ExtraSocket* const socket = s.extra();
    if (result < 0 || socket == nullptr || socket->stream())
        return s.kernel_answered(fd, TrafficPath::tx_os, result, flags);
    for (int i = 0; i < result; i++)
        s.kernel_answered(fd, TrafficPath::tx_os, static_cast<ssize_t>(data[i].iov_len), flags);
}

int sendmany(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to, socklen_t tolen) {
    if (count > kAtOnce) count = kAtOnce;
    if (!sockets::UserMemory::readable(data, count * sizeof *data)) return sockets::failed(EFAULT);
    if (to != nullptr && !sockets::UserMemory::readable(to, tolen)) return sockets::failed(EFAULT);
    return preload::waiting<preload::OursToSend>(
        fd,
        [&](Socket& s) -> int {
            sockets::ExtraSocket* const socket = s.extra();
            if (socket == nullptr) return sockets::failed(runtime::kAskKernel);
            return socket->send_pieces(fd, data, count, flags, to, tolen);
        },
        [&] { return send_by_kernel(fd, data, count, flags, to, tolen); },
        [&](Socket& s, int n) { count_kernel(s, fd, data, n, flags); });
}

constinit vma_api2_t g_api2 = {
    .size = sizeof(vma_api2_t),
    .version = VMA_API2_VERSION,
    .sendmany = &sendmany,
    .get_send_buffers = &get_send_buffers,
    .send_zcopy = &send_zcopy,
    .free_send_buffer = &free_send_buffer,
    .register_memory = &register_memory,
};

}  // namespace
}  // namespace vma::api

namespace vma::preload {

vma_api2_t* extra_api2() noexcept { return &api::g_api2; }

}  // namespace vma::preload
