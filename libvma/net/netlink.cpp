// SPDX-License-Identifier: BSD-2-Clause
// The kernel answers a route or table request inside the system call that brings the request. So the answer
// exists when send() returns, and no function here waits.
#include "libvma/net/netlink.h"

#include <fmt/format.h>
#include <netlink/msg.h>
#include <string.h>

#include <memory>
#include <vector>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/no_cancel.h"

namespace vma::net {
namespace {

// The kernel fills dumps with datagrams of up to 32 KiB, once it has seen that the reader's buffer is that
// big.
constexpr std::size_t kDumpBuffer = 64 * 1024;
constexpr int kDumpAttempts = 8;

// One pass of a dump: 0 or -errno; -EINTR when the table changed meanwhile.
int read_dump(NetlinkSocket& socket, std::span<std::uint8_t> buffer, std::uint32_t sequence,
              const std::function<void(nlmsghdr*)>& each) {
    bool interrupted = false;
    for (;;) {
        ssize_t got = socket.receive(buffer);
        if (got < 0) return static_cast<int>(got);
        int left = static_cast<int>(got);
        for (auto* message = reinterpret_cast<nlmsghdr*>(buffer.data()); nlmsg_ok(message, left);
             message = nlmsg_next(message, &left)) {
            if (message->nlmsg_seq != sequence) continue;  // the rest of an abandoned dump
            if (message->nlmsg_flags & NLM_F_DUMP_INTR) interrupted = true;
            if (message->nlmsg_type == NLMSG_DONE) {
                int result = 0;  // a dump that failed on the way reports the failure here
                if (nlmsg_datalen(message) >= static_cast<int>(sizeof result))
                    memcpy(&result, nlmsg_data(message), sizeof result);
                if (result < 0) return result;
                return interrupted ? -EINTR : 0;
            }
            if (message->nlmsg_type == NLMSG_ERROR) {
                if (nlmsg_datalen(message) < static_cast<int>(sizeof(nlmsgerr))) return -EBADMSG;
                return static_cast<const nlmsgerr*>(nlmsg_data(message))->error;
            }
            each(message);
        }
    }
}

}  // namespace

Result<NetlinkSocket> NetlinkSocket::open(int protocol) {
    NetlinkSocket socket;
    int fd = os::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    if (fd < 0) return fail(errno, "netlink socket");
    socket.fd_ = InternalFd(fd);
    if (!socket.fd_) return fail(EMFILE, "netlink socket: no descriptor left");
    sockaddr_nl self{};
    self.nl_family = AF_NETLINK;
    if (os::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&self), sizeof self) != 0)
        return fail(errno, "netlink bind");
    return socket;
}

Result<void> NetlinkSocket::join(unsigned group) {
    const ErrnoKept kept;
    if (os::setsockopt(fd(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) != 0)
        return fail(errno, fmt::format("netlink group {}", group));
    return {};
}

void NetlinkSocket::enlarge_receive_buffer(int bytes) noexcept {
    const ErrnoKept kept;
    if (os::setsockopt(fd(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
        os::setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

int NetlinkSocket::send(const nlmsghdr* message) noexcept {
    const ErrnoKept kept;
    const runtime::NoCancel hold;
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    ssize_t sent = os::sendto(fd(), message, message->nlmsg_len, MSG_DONTWAIT | MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel);
    if (sent < 0) return -errno;
    return sent == static_cast<ssize_t>(message->nlmsg_len) ? 0 : -EMSGSIZE;
}

ssize_t NetlinkSocket::receive(std::span<std::uint8_t> buffer) noexcept {
    const runtime::NoCancel hold;
    int saved = errno;
    for (;;) {
        sockaddr_nl from{};
        iovec part{buffer.data(), buffer.size()};
        msghdr message{};
        message.msg_name = &from;
        message.msg_namelen = sizeof from;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        ssize_t got = os::recvmsg(fd(), &message, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EINTR) continue;
            got = -errno;
        } else if (message.msg_namelen != sizeof from || from.nl_pid != 0) {
            continue;  // from another process, not from the kernel
        } else if (message.msg_flags & MSG_TRUNC) {
            got = -EMSGSIZE;
        }
        errno = saved;
        return got;
    }
}

Result<void> NetlinkSocket::dump(const char* what, int type, const void* header, std::size_t header_length,
                                 const std::function<void()>& restart,
                                 const std::function<void(nlmsghdr*)>& each) {
    std::vector<std::uint8_t> buffer(kDumpBuffer);
    std::unique_ptr<nl_msg, void (*)(nl_msg*)> request(nlmsg_alloc_simple(type, NLM_F_REQUEST | NLM_F_DUMP),
                                                       nlmsg_free);
    if (!request || nlmsg_append(request.get(), const_cast<void*>(header), header_length, NLMSG_ALIGNTO) != 0)
        return fail(ENOMEM, what);
    int error = 0;
    for (int attempt = 0; attempt < kDumpAttempts; attempt++) {
        restart();
        nlmsghdr* message = nlmsg_hdr(request.get());
        message->nlmsg_seq = next_sequence();
        if (const int unsent = send(message); unsent != 0) return fail(-unsent, what);
        error = read_dump(*this, buffer, message->nlmsg_seq, each);
        if (error == -EBUSY) {
            // An abandoned dump is still running: read it to its end, then ask again.
            while (receive(buffer) > 0) {
            }
        } else if (error != -EINTR) {
            break;
        }
    }
    // The table changes faster than this function can read it. The last entries are as good as any, and the
    // announcements that follow correct them.
    if (error != 0 && error != -EINTR) return fail(-error, what);
    return {};
}

void for_each_link(const std::function<void(nlmsghdr*)>& each) {
    auto socket = NetlinkSocket::open();
    ifinfomsg which{};
    which.ifi_family = AF_UNSPEC;
    if (socket)
        (void)socket->dump(
            "links", RTM_GETLINK, &which, sizeof which, [] {}, each);
}

}  // namespace vma::net
