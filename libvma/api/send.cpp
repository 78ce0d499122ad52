// SPDX-License-Identifier: BSD-2-Clause
// sendmany, and the table that has it.
#include "libvma/api/calls.h"
#include "libvma/preload/extra_api.h"
#include "libvma/ring/ring.h"
#include "libvma/sockets/names.h"
#include "mellanox/vma_extra2.h"

namespace vma::api {
namespace {

using sockets::Socket;
using stats::TrafficPath;

// Datagrams of one call between two looks at signals.
constexpr unsigned kAtOnce = 1024;

// How many were sent, or -1 with errno.
int send_all(Socket& s, int fd, const iovec* datagrams, unsigned count, int flags, const sockaddr* to,
             socklen_t tolen) {
    sockets::ExtraSocket* const socket = s.extra();
    if (socket == nullptr || socket->stream()) return sockets::failed(EOPNOTSUPP);
    ring::Ring* ring = nullptr;
    if (count > 1) (void)socket->send_ring(fd, to, tolen, ring);
    const ring::Ring::Gather gather(ring);
    unsigned sent = 0;
    const int before = errno;
    while (sent < count) {
        const iovec& datagram = datagrams[sent];
        if (s.sendto(fd, datagram.iov_base, datagram.iov_len, flags, to, tolen) < 0) break;
        sent++;
    }
    if (sent == 0 && count != 0) return -1;
    errno = before;
    return static_cast<int>(sent);
}

int sendmany(int fd, const iovec* datagrams, unsigned count, int flags, const sockaddr* to, socklen_t tolen) {
    if (count > kAtOnce) count = kAtOnce;
    if (!sockets::UserMemory::readable(datagrams, count * sizeof *datagrams)) return sockets::failed(EFAULT);
    if (to != nullptr && !sockets::UserMemory::readable(to, tolen)) return sockets::failed(EFAULT);
    return preload::waiting<preload::OursToSend>(
        fd, [&](Socket& s) { return send_all(s, fd, datagrams, count, flags, to, tolen); },
        [&] {  // the kernel's socket: the first one, which may wait
            if (count == 0) return 0;
            return os::sendto(fd, datagrams->iov_base, datagrams->iov_len, flags, to, tolen) < 0 ? -1 : 1;
        },
        [&](Socket& s, int n) {
            const auto bytes = n > 0 ? static_cast<ssize_t>(datagrams->iov_len) : -1;
            s.kernel_answered(fd, TrafficPath::tx_os, bytes, flags);
        });
}

constinit vma_api2_t g_api2 = {
    .size = sizeof(vma_api2_t),
    .version = VMA_API2_VERSION,
    .sendmany = &sendmany,
};

}  // namespace
}  // namespace vma::api

namespace vma::preload {

vma_api2_t* extra_api2() noexcept { return &api::g_api2; }

}  // namespace vma::preload
