// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/kernel_tcp.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"

namespace vma::net {

bool KernelTcp::has(const Endpoints& ends, int ifindex) noexcept {
    if (!socket_) {
        const long fd = os::raw_syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        if (fd < 0) return false;
        const ErrnoKept kept;
        socket_ = InternalFd(static_cast<int>(fd));
    }
    const int fd = socket_.get();
    struct {
        nlmsghdr header;
        inet_diag_req_v2 query;
    } request{};
    request.header.nlmsg_len = sizeof request;
    request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    request.header.nlmsg_flags = NLM_F_REQUEST;
    request.header.nlmsg_seq = ++sequence_;
    request.query.sdiag_family = AF_INET;
    request.query.sdiag_protocol = IPPROTO_TCP;
    request.query.idiag_states = ~0u;
    inet_diag_sockid& id = request.query.id;
    id.idiag_src[0] = ends.local.address.v4();
    id.idiag_sport = ends.local.port;
    id.idiag_dst[0] = ends.remote.address.v4();
    id.idiag_dport = ends.remote.port;
    id.idiag_if = static_cast<__u32>(ifindex);
    id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    if (os::raw_syscall(SYS_sendto, fd, &request, sizeof request, 0, &kernel, sizeof kernel) <= 0)
        return false;
    for (;;) {
        // The answer is in the queue when sendto() returns. Attributes that do not fit are cut off.
        alignas(nlmsghdr) std::array<char, 1024> answer;
        const long n =
            os::raw_syscall(SYS_recvfrom, fd, answer.data(), answer.size(), MSG_DONTWAIT, nullptr, nullptr);
        nlmsghdr header{};
        inet_diag_msg message{};
        if (n < static_cast<long>(sizeof header)) return false;
        std::memcpy(&header, answer.data(), sizeof header);
        if (header.nlmsg_seq != sequence_) continue;  // answers a request that was interrupted
        if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < static_cast<long>(NLMSG_HDRLEN + sizeof message))
            return false;
        std::memcpy(&message, answer.data() + NLMSG_HDRLEN, sizeof message);
        return message.idiag_state != TCP_LISTEN;  // without a connection the kernel finds the listener
    }
}

}  // namespace vma::net
