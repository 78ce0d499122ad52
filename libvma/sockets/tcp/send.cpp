// SPDX-License-Identifier: BSD-2-Clause
// Sending on a TCP socket.
#include <limits.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/sockets/cmsg.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/moved_call.h"
#include "libvma/sockets/tcp/stream.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {
namespace {

constexpr std::size_t kCopyStep = 32768;  // its SKB_FRAG_PAGE_ORDER

// As much of the pieces as can be read: bytes. All of it, as a rule.
std::size_t readable_bytes(const iovec* pieces, std::size_t count) noexcept {
    std::size_t good = 0;
    for (std::size_t i = 0; i < count; i++) {
        const iovec& p = pieces[i];
        if (__builtin_expect(UserMemory::readable(p.iov_base, p.iov_len), 1)) {
            good += p.iov_len;
            continue;
        }
        std::size_t step = 4096 - (reinterpret_cast<std::uintptr_t>(p.iov_base) & 4095), n = 0;
        for (; step < p.iov_len && UserMemory::readable(p.iov_base, step); step += 4096) n = step;
        return good + n;
    }
    return good;
}

// The control messages that a TCP send understands are few; the kernel ignores those of other protocols.
enum class Control { nothing, kernel, invalid };
Control control_of(const msghdr& msg) noexcept {
    if (msg.msg_controllen == 0) return Control::nothing;
    if (!UserMemory::readable(msg.msg_control, msg.msg_controllen)) return Control::kernel;
    switch (classify(msg)) {
        case SendControl::none:
            return Control::nothing;
        case SendControl::invalid:
            return Control::invalid;
        case SendControl::os_needed:
            break;
    }
    for (const cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr;
         c = CMSG_NXTHDR(const_cast<msghdr*>(&msg), const_cast<cmsghdr*>(c)))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type != SCM_RIGHTS && c->cmsg_type != SCM_CREDENTIALS)
            return Control::kernel;
    return Control::nothing;
}

}  // namespace

ssize_t TcpStream::transmit(int fd, IovCursor& at, int flags) {
    return count(stats::TrafficPath::tx_offload, transmit_ours(fd, at, flags));
}

ssize_t TcpStream::transmit_ours(int fd, IovCursor& at, int flags) {
    if (place_.strayed(RingPlace::Way::tx)) move_connection();
    Pin pin(transport_);
    tcp::Connection* const c = pin.connection;
    if (c == nullptr || (__builtin_expect(c->bulk_seen(), 0) && leaving(*c) == &leave::bulk)) return -EREMOTE;
    const bool waits = blocks(flags);
    const unsigned how = (flags & MSG_MORE) ? tcp::Connection::kMore : 0u;
    const unsigned record = (flags & MSG_EOR) ? tcp::Connection::kRecord : 0u;
    const std::size_t length = at.left();
    std::size_t sent = 0;
    alignas(Waiting) std::byte waiting_memory[sizeof(Waiting)];
    Waiting* w = nullptr;
    bool polled = false;
    if (config::get().rx_poll_on_tx_tcp != 0)
        progress();
    else if (!c->holds() && look_is_due())
        look(*c);
    auto waiting = [&] {
        if (w == nullptr) w = new (waiting_memory) Waiting(options_.send_timeout());
    };
    // The connection is the kernel's, or about to go there. False: the caller asks the kernel, for all of a
    // call that has neither sent nor waited. `error`: the result, where nothing was sent.
    ssize_t error = 0;
    auto remote = [&] {
        if (sent == 0 && w == nullptr) return false;
        if (!waits) return true;
        if (move_away(fd) <= 0) return sent != 0;
        waiting();
        const ssize_t n = MovedCall(fd, w->deadline).send(at, flags);
        if (n > 0) sent += static_cast<std::size_t>(n);
        if (n < 0) error = n;
        return true;
    };
    for (;;) {
        iovec pieces[IovCursor::kWindow];
        std::size_t bytes;
        const std::size_t count = at.window(pieces, at.left(), bytes);
        std::size_t good = readable_bytes(pieces, count);
        // The kernel copies in steps of up to a page fragment, and takes nothing of a step that fails.
        if (__builtin_expect(good < bytes, 0)) good -= std::min(good, (sent + good) % kCopyStep);
        if (good == 0 && bytes != 0 && sent != 0) break;
        ssize_t n;
        {
            ConnectionScope here(*c);
            // More of this call follows what the window holds.
            const bool last = good == at.left();
            const unsigned more = last ? record : tcp::Connection::kMore;
            n = c->send(pieces, count, good, how | more | (sent != 0 ? tcp::Connection::kBegun : 0u));
        }
        // The state of the connection goes before that of the memory.
        if (__builtin_expect(n >= 0 && good == 0 && bytes != 0, 0)) return -EFAULT;
        if (n >= 0) {
            sent += static_cast<std::size_t>(n);
            at.advance(static_cast<std::size_t>(n));
            if (sent == length) break;
            if (good < bytes && static_cast<std::size_t>(n) == good) break;  // the next byte cannot be read
            polled = false;
            if (n != 0) continue;
        } else if (n == -EREMOTE) {
            if (!remote()) return n;
            break;
        } else if (n != -EAGAIN) {
            if (sent != 0) break;
            if (w == nullptr && overtaken()) return -runtime::kRestart;
            return n == -ENOTCONN ? -EPIPE : n;
        }
        if (!polled) {
            // Perhaps acknowledgements have come.
            polled = true;
            flush();
            // A call that waits goes on when a third of the buffer is free, as in the kernel: a trickle of
            // room would make short segments.
            if (progress() != 0 && (!waits || (c->events() & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0))
                continue;
        }
        if (!waits || ConnectionScope::interrupted(*c)) {
            if (sent != 0) break;
            return -EAGAIN;
        }
        waiting();
        const int failed = wait(-1, *w, [&] {
            return (c->events() & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0 || transport_.connection() != c;
        });
        polled = false;
        if (failed != 0) {
            if (sent != 0) break;
            return failed;
        }
        if (transport_.connection() != c) {
            if (!remote()) return -EREMOTE;
            break;
        }
    }
    return sent != 0 ? static_cast<ssize_t>(sent) : error;
}

// For what only the kernel can send: is there a connection to send on? Waits for it as transmit() does. 0 or
// -errno.
ssize_t TcpStream::may_send(int fd, int flags) {
    iovec none{};
    IovCursor at(&none, 1, 0);
    const ssize_t n = transmit(fd, at, flags & ~MSG_OOB);
    return n == -EREMOTE ? 0 : n;
}

// To the thread that made the call, as the kernel sends it.
ssize_t TcpStream::finish_send(ssize_t result, int flags) noexcept {
    if (result == -EPIPE && !(flags & MSG_NOSIGNAL)) {
        const long pid = os::raw_syscall(SYS_getpid), tid = os::raw_syscall(SYS_gettid);
        os::raw_syscall(SYS_tgkill, pid, tid, static_cast<long>(SIGPIPE));
    }
    return finish(result, flags);
}

// Before the kernel gets a send call: 0, or the error of the call.
int TcpStream::kernel_may_send_now(int fd, int flags) {
    if (flags & MSG_SYN) return EINVAL;  // a dummy send, which the kernel would make a real one
    if (phase() != Phase::fresh) return 0;
    if (flags & MSG_FASTOPEN) leave_to_kernel(fd, leave::fast_open);
    return phase() == Phase::fresh ? take_pending_error() : 0;
}

// VMA_SND_FLAGS_DUMMY: a send that only warms the caches.
ssize_t TcpStream::dummy(std::size_t length) noexcept {
    {
        Pin pin(transport_);
        if (pin.connection == nullptr || still_connecting(*pin.connection)) return failed(EAGAIN);
        char headers[64];
        (void)pin.connection->network_header(headers, sizeof headers);
    }
    socket_counters_.dummy();
    return static_cast<ssize_t>(std::min(length, kMaxTransfer));
}

ssize_t TcpStream::sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                          socklen_t alen) {
    auto kernel = [&] {
        return count_kernel(stats::TrafficPath::tx_os, Socket::sendto(fd, buf, len, flags, addr, alen));
    };
    if (__builtin_expect(!has_connection() || !still_mine(fd), 0)) {
        if (const int error = kernel_may_send_now(fd, flags); error != 0) return failed(error);
        return kernel();
    }
    if (__builtin_expect(addr != nullptr, 0)) {
        // Looked at, but not used: the peer is known.
        if (static_cast<int>(alen) < 0 || alen > sizeof(sockaddr_storage)) return failed(EINVAL);
        if (!UserMemory::readable(addr, alen)) return failed(EFAULT);
    }
    if (flags & MSG_SYN) return dummy(len);
    if (flags & MSG_FASTOPEN) return failed(phase() == Phase::connecting ? EALREADY : EISCONN);
    if (flags & MSG_OOB) {
        if (const ssize_t n = may_send(fd, flags); n < 0) return finish_send(n, flags);
        if (!handover(fd, leave::urgent_data)) return failed(EOPNOTSUPP);
        return kernel();
    }
    iovec iov{const_cast<void*>(buf), std::min(len, kMaxTransfer)};
    IovCursor at(&iov, 1, iov.iov_len);
    const ssize_t n = transmit(fd, at, flags);
    if (n == -EREMOTE) {
        const int gone = move_away(fd);
        if (gone > 0) return kernel();
        return gone < 0 ? failed(-gone) : sendto(fd, buf, len, flags, addr, alen);
    }
    return finish_send(n, flags);
}

ssize_t TcpStream::sendmsg(int fd, const msghdr* msg, int flags) {
    if (!UserMemory::readable(msg, sizeof *msg)) return failed(EFAULT);
    auto kernel = [&] { return count_kernel(stats::TrafficPath::tx_os, Socket::sendmsg(fd, msg, flags)); };
    if (__builtin_expect(!has_connection() || !still_mine(fd), 0)) {
        if (const int error = kernel_may_send_now(fd, flags); error != 0) return failed(error);
        return kernel();
    }
    // What the kernel finds wrong before it looks at the socket, in its order.
    if (msg->msg_name != nullptr && static_cast<int>(msg->msg_namelen) < 0) return failed(EINVAL);
    if (msg->msg_name != nullptr &&
        !UserMemory::readable(msg->msg_name,
                              std::min<std::size_t>(msg->msg_namelen, sizeof(sockaddr_storage))))
        return failed(EFAULT);
    if (const int error = vectors_error(*msg); error != 0) return failed(-error);
    std::size_t length = 0;
    for (std::size_t i = 0; i < msg->msg_iovlen; i++)
        length += std::min(msg->msg_iov[i].iov_len, kMaxTransfer - length);
    const Control control = control_of(*msg);
    if (control == Control::invalid) return failed(EINVAL);
    if (flags & MSG_SYN) return dummy(length);
    if (flags & MSG_FASTOPEN) return failed(phase() == Phase::connecting ? EALREADY : EISCONN);
    if ((flags & MSG_OOB) || control == Control::kernel) {
        if (const ssize_t n = may_send(fd, flags); n < 0) return finish_send(n, flags);
        if (!handover(fd, flags & MSG_OOB ? leave::urgent_data : leave::control_messages))
            return failed(EOPNOTSUPP);
        return kernel();
    }
    IovCursor at(msg->msg_iov, msg->msg_iovlen, length);
    const ssize_t n = transmit(fd, at, flags);
    if (n == -EREMOTE) {
        const int gone = move_away(fd);
        if (gone > 0) return kernel();
        return gone < 0 ? failed(-gone) : sendmsg(fd, msg, flags);
    }
    return finish_send(n, flags);
}

int TcpStream::sendmmsg(int fd, mmsghdr* msgs, unsigned total, int flags) {
    if (!has_connection())
        return count_kernel(stats::TrafficPath::tx_os, Socket::sendmmsg(fd, msgs, total, flags), msgs, 0);
    return send_many(
        msgs, total, [&](const msghdr* msg) { return sendmsg(fd, msg, flags); },
        [](const msghdr& msg, std::size_t sent) {
            std::size_t length = 0;
            for (std::size_t i = 0; i < msg.msg_iovlen; i++) length += msg.msg_iov[i].iov_len;
            return sent >= length;
        });
}

}  // namespace vma::sockets
