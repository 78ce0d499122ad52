// SPDX-License-Identifier: BSD-2-Clause
// Receiving on a TCP socket.
#include <limits.h>

#include <algorithm>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/sockets/cmsg.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/moved_call.h"
#include "libvma/sockets/tcp/stream.h"
#include "libvma/sockets/tcp/wait.h"

#ifndef TCP_CM_INQ
#define TCP_CM_INQ 36
#endif

namespace vma::sockets {
namespace {

constexpr std::size_t kAhead = 2048;  // room checked before it is known how much will come

// Does one take() fill all of it, if there is enough?
bool fits_in_one_go(const IovCursor& at) noexcept {
    iovec pieces[IovCursor::kWindow];
    std::size_t bytes;
    at.window(pieces, at.left(), bytes);
    return bytes == at.left();
}

}  // namespace

// What is there now, at most `left` bytes, into the cursor's place. Bytes, 0 at the end of the stream, or
// -errno. Only memory that will be written is looked at, as in the kernel: a buffer may be worse further on.
ssize_t TcpStream::take(tcp::Connection& c, IovCursor& at, std::size_t left, unsigned flags,
                        std::size_t skip) noexcept {
    const std::size_t there = c.readable();
    if (flags & tcp::Connection::kDiscard) {
        ConnectionScope here(c);
        return c.receive(nullptr, 0, left, flags, skip);
    }
    std::size_t wanted = std::min(left, std::max(there > skip ? there - skip : 0, kAhead));
    iovec pieces[IovCursor::kWindow];
    std::size_t bytes = 0;
    for (;;) {
        std::size_t count = at.window(pieces, wanted, bytes);
        bool good = true;
        for (std::size_t i = 0; i < count; i++)
            good &= UserMemory::writable(pieces[i].iov_base, pieces[i].iov_len);
        if (good) {
            ConnectionScope here(c);
            return c.receive(pieces, count, bytes, flags, skip);
        }
        if (wanted > there - std::min(skip, there) && there > skip) {
            wanted = there - skip;
            continue;
        }
        if (there <= skip) {
            // Nothing to write yet: is there something to report?
            char byte;
            iovec one{&byte, 1};
            ConnectionScope here(c);
            const ssize_t n = c.receive(&one, 1, 1, flags | tcp::Connection::kPeek, skip);
            return n > 0 ? -EFAULT : n;
        }
        // As much as can be written.
        std::size_t room = 0;
        for (std::size_t i = 0; i < count; i++) {
            const auto* base = static_cast<const char*>(pieces[i].iov_base);
            std::size_t n = pieces[i].iov_len;
            if (!UserMemory::writable(pieces[i].iov_base, n)) {
                const std::size_t page = 4096 - (reinterpret_cast<std::uintptr_t>(base) & 4095);
                n = 0;
                for (std::size_t step = std::min(page, pieces[i].iov_len);
                     step <= pieces[i].iov_len && UserMemory::writable(pieces[i].iov_base, step) && n != step;
                     step = std::min(step + 4096, pieces[i].iov_len))
                    n = step;
                room += n;
                break;
            }
            room += n;
        }
        if (room == 0) return -EFAULT;
        wanted = room;
    }
}

ssize_t TcpStream::receive(int fd, IovCursor& at, int flags) {
    const ssize_t n = receive_ours(fd, at, flags);
    return (flags & MSG_PEEK) != 0 && n > 0 ? n : count(stats::TrafficPath::rx_offload, n);
}

ssize_t TcpStream::receive_ours(int fd, IovCursor& at, int flags) {
    if (place_.strayed(RingPlace::Way::rx)) move_connection();
    Pin pin(transport_);
    tcp::Connection* const c = pin.connection;
    if (c == nullptr) return -ENOTCONN;
    if (__builtin_expect(c->urgent_seen() || c->bulk_seen(), 0) && leaving(*c) != nullptr) return -EREMOTE;
    const bool peek = (flags & MSG_PEEK) != 0;
    bool waits = blocks(flags);
    const unsigned how =
        (peek ? tcp::Connection::kPeek : 0u) | ((flags & MSG_TRUNC) ? tcp::Connection::kDiscard : 0u);
    const std::size_t length = at.left();
    std::size_t target = 1;
    if (flags & MSG_WAITALL)
        target = std::max<std::size_t>(length, 1);
    else if (const std::size_t lowat = options_.receive_lowat(); lowat > 1)
        target = std::max<std::size_t>(std::min(lowat, length), 1);

    if (__builtin_expect(length == 0, 0)) {
        // As the kernel: waits for something, takes nothing.
        char byte;
        iovec one{&byte, 1};
        IovCursor probe(&one, 1, 1);
        const ssize_t n = receive_ours(fd, probe, (flags & ~(MSG_WAITALL | MSG_TRUNC)) | MSG_PEEK);
        return std::min<ssize_t>(n, 0);
    }

    if (c->readable() != 0 && drain_rate_.due())
        if (ring::Ring* ring = c->ring()) ring->poll();

    std::size_t got = 0;
    // With nothing to read and nothing to tell the ring comes first: a look at the connection takes its lock.
    bool polled = c->readable() == 0 && (c->events() & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0;
    if (polled) {
        flush();
        progress();
    }
    alignas(Waiting) std::byte waiting_memory[sizeof(Waiting)];
    Waiting* w = nullptr;
    auto waiting = [&] {
        if (w == nullptr) w = new (waiting_memory) Waiting(receive_timeout_.load(std::memory_order_relaxed));
    };
    // The connection is the kernel's, or about to go there. The caller asks the kernel for all of a call that
    // has neither data nor waited. `error`: the result, where there are no data.
    enum class Then { stop, again, leave };
    ssize_t error = 0;
    auto remote = [&]() -> Then {
        if (got == 0 && (w == nullptr || how != 0)) return Then::leave;
        if (!waits || got >= target || how != 0) return Then::stop;
        if (const int gone = move_away(fd); gone <= 0)
            return gone == 0 ? Then::again : got == 0 ? Then::leave : Then::stop;
        waiting();
        const ssize_t n =
            MovedCall(fd, w->deadline).receive(at, flags, target - got, options_.receive_lowat(), got != 0);
        if (n > 0) got += static_cast<std::size_t>(n);
        if (n < 0) error = n;
        return Then::stop;
    };
    for (;;) {
        // What was copied is returned before an error is: the error waits for the next call.
        if (got != 0 && c->readable() <= (peek ? got : 0) && c->peek_error() != 0) break;
        const unsigned begun = got != 0 ? tcp::Connection::kBegun : 0u;
        const ssize_t n = take(*c, at, length - got, how | begun, peek ? got : 0);
        if (n > 0) {
            got += static_cast<std::size_t>(n);
            // What has come since is for the next call: another thread may have taken some before it, and the
            // bytes of one call follow one another, since the kernel lets no call in between.
            const bool done =
                got == length || (got >= target && (c->readable() <= (peek ? got : 0) || fits_in_one_go(at)));
            if (!(how & tcp::Connection::kDiscard)) at.advance(static_cast<std::size_t>(n));
            if (done) break;
            continue;
        }
        if (got == 0 && n != -EAGAIN && w == nullptr && overtaken()) return -runtime::kRestart;
        if (n == 0) break;
        if (n == -EREMOTE) {
            const Then then = remote();
            if (then == Then::leave) return n;
            if (then == Then::stop) break;
            continue;
        }
        if (n != -EAGAIN) {
            if (got != 0) break;
            return n;
        }
        if (got >= target) break;
        if (!polled) {
            polled = true;
            flush();
            if (progress() != 0) continue;
        }
        if (__builtin_expect(c->undecided(), 0) && got != 0) {
            c->decide_all();  // the rest of what this call waits for
            if (c->readable() > (peek ? got : 0)) continue;
        }
        if (got == 0 && Verdicts::due()) {
            if (w != nullptr) Verdicts::keep_deadline(w->deadline);
            return -runtime::kAskVerdict;
        }
        waits = waits && !Verdicts::inside(*this);
        if (!waits || ConnectionScope::interrupted(*c)) {
            if (got != 0) break;
            return -EAGAIN;
        }
        waiting();
        w->judges(got == 0);
        const std::size_t have = peek ? got : 0;
        const int failed = wait(-1, *w, [&] {
            if (__builtin_expect(c->undecided(), 0) && got != 0) c->decide_all();
            return c->readable() > have || (c->events() & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 ||
                   transport_.connection() != c;
        });
        if (failed != 0) {
            if (got != 0) break;
            return failed;
        }
        // Another thread disconnected it, or gave it to the kernel, which knows the answer.
        if (transport_.connection() != c) {
            if (remote() == Then::leave) return -EREMOTE;
            break;
        }
    }
    if (got != 0 && !peek)
        socket_counters_.came(w != nullptr ? (w->slept ? stats::Arrived::slept : stats::Arrived::polled)
                              : polled     ? stats::Arrived::polled
                                           : stats::Arrived::there);
    return got != 0 ? static_cast<ssize_t>(got) : error;
}

ssize_t TcpStream::finish(ssize_t result, int) noexcept {
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
}

// ---- calls ----

ssize_t TcpStream::recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    if (const int error = (flags & (MSG_ERRQUEUE | MSG_OOB)) ? 0 : take_pending_error();
        __builtin_expect(error != 0, 0))
        return failed(error);
    auto kernel = [&] {
        return count_kernel(stats::TrafficPath::rx_os, Socket::recvfrom(fd, buf, len, flags, addr, alen),
                            flags);
    };
    if (!has_connection() || (flags & MSG_ERRQUEUE)) return kernel();
    if (flags & MSG_OOB) return receive_urgent(fd, buf, len, flags, addr, alen);
    iovec iov{buf, std::min(len, kMaxTransfer)};
    IovCursor at(&iov, 1, iov.iov_len);
    const ssize_t n = receive(fd, at, flags);
    if (n == -EREMOTE) {
        const int gone = move_away(fd);
        if (gone > 0) return kernel();
        return gone < 0 ? failed(-gone) : recvfrom(fd, buf, len, flags, addr, alen);
    }
    if (n >= 0 && addr != nullptr) {
        // A stream's data carries no name (recv(2)); the length says so.
        if (!UserMemory::writable(alen, sizeof *alen)) return failed(EFAULT);
        if (static_cast<int>(*alen) < 0) return failed(EINVAL);
        *alen = 0;
    }
    return finish(n, flags);
}

ssize_t TcpStream::receive_urgent(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    {
        Pin pin(transport_);
        const tcp::Connection* c = pin.connection;
        if (c != nullptr && !c->urgent_seen()) {
            flush();
            progress();
        }
        if (c != nullptr && !c->urgent_seen()) return failed(EINVAL);  // recv(2): there is none
    }
    if (!handover(fd, leave::urgent_data)) return failed(EOPNOTSUPP);
    return count_kernel(stats::TrafficPath::rx_os, Socket::recvfrom(fd, buf, len, flags, addr, alen), flags);
}

ssize_t TcpStream::recvmsg(int fd, msghdr* msg, int flags) {
    if (const int error = (flags & (MSG_ERRQUEUE | MSG_OOB)) ? 0 : take_pending_error();
        __builtin_expect(error != 0, 0))
        return failed(error);
    // The kernel says what is wrong with it; its socket has nothing to give, unless it has the connection.
    auto kernel = [&] {
        return count_kernel(stats::TrafficPath::rx_os, Socket::recvmsg(fd, msg, flags), flags);
    };
    if (!has_connection() || (flags & MSG_ERRQUEUE) || !UserMemory::writable(msg, sizeof *msg) ||
        vectors_error(*msg) != 0 || (msg->msg_name != nullptr && static_cast<int>(msg->msg_namelen) < 0))
        return kernel();
    std::size_t length = 0;
    for (std::size_t i = 0; i < msg->msg_iovlen; i++)
        length += std::min(msg->msg_iov[i].iov_len, kMaxTransfer - length);
    ssize_t n;
    if (flags & MSG_OOB) {
        char* buf = msg->msg_iovlen != 0 ? static_cast<char*>(msg->msg_iov[0].iov_base) : nullptr;
        n = receive_urgent(fd, buf, msg->msg_iovlen != 0 ? msg->msg_iov[0].iov_len : 0, flags, nullptr,
                           nullptr);
        if (n >= 0) msg->msg_flags = MSG_OOB, msg->msg_controllen = 0;
        return n;
    }
    IovCursor at(msg->msg_iov, msg->msg_iovlen, length);
    n = receive(fd, at, flags);
    if (n == -EREMOTE) {
        const int gone = move_away(fd);
        if (gone > 0) return kernel();
        return gone < 0 ? failed(-gone) : recvmsg(fd, msg, flags);
    }
    if (n < 0) return finish(n, flags);
    msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
    if (msg->msg_name != nullptr) msg->msg_namelen = 0;
    CmsgWriter control(*msg);
    if (options_.report_inq()) {
        Pin pin(transport_);
        int inq = pin.connection == nullptr ? 0 : static_cast<int>(pin.connection->readable());
        if (inq == 0 && pin.connection != nullptr && (pin.connection->events() & EPOLLRDHUP) != 0)
            inq = 1;  // the FIN
        control.put(IPPROTO_TCP, TCP_CM_INQ, &inq, sizeof inq);
    }
    return n;
}

int TcpStream::recvmmsg(int fd, mmsghdr* msgs, unsigned room, int flags, timespec* timeout) {
    if (!has_connection() || (flags & MSG_ERRQUEUE))
        return count_kernel(stats::TrafficPath::rx_os, Socket::recvmmsg(fd, msgs, room, flags, timeout), msgs,
                            flags);
    bool first = true;
    return receive_many(
        msgs, room, flags, timeout,
        [&](msghdr* msg, int how) -> ssize_t {
            if (std::exchange(first, false)) {
                // The kernel asks for a pending error before it looks at any message, so an error comes
                // before data and end.
                Pin pin(transport_);
                if (pin.connection != nullptr && pin.connection->peek_error() != 0)
                    if (const int error = pin.connection->take_error(); error != 0) return failed(error);
            }
            return recvmsg(fd, msg, how);
        },
        [&](int error) { pending_error_.store(error); });
}

}  // namespace vma::sockets
