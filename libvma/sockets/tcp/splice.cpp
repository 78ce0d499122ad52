// SPDX-License-Identifier: BSD-2-Clause
// sendfile() and splice() of a TCP socket: the bytes go through a buffer of the library, since only the
// kernel can move pages.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/moved_call.h"
#include "libvma/sockets/tcp/stream.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {
namespace {

constexpr std::size_t kChunk = 128 << 10;

bool is_pipe(int fd) noexcept {
    struct stat s;
    const ErrnoKept kept;
    const bool pipe = fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode);
    return pipe;
}

// Is the pipe ready for `events` now?
bool pipe_ready(int fd, short events) noexcept {
    pollfd p{fd, events, 0};
    const ErrnoKept kept;
    const bool ready = os::poll(&p, 1, 0) > 0;
    return ready;
}

// The kernel's splice(), by the caller where it may wait (see Socket::kernel_answered()).
ssize_t asked(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len, unsigned flags) {
    if (!runtime::in_region()) return os::splice(in, in_offset, out, out_offset, len, flags);
    errno = runtime::kAskKernel;
    return -1;
}

// Waits for a pipe. -1: a signal came.
int await_pipe(int fd, short events) {
    pollfd p{fd, events, 0};
    const int r = runtime::poll_interruptibly(&p, 1, nullptr);
    if (r < 0 && errno == EINTR && runtime::pending()) errno = runtime::kRestart;
    return r;
}

}  // namespace

ssize_t TcpStream::sendfile(int out, int in, off_t* offset, size_t length) {
    if (!has_connection()) {
        if (const int error = phase() == Phase::fresh ? take_pending_error() : 0; error != 0)
            return failed(error);
        return count_kernel(stats::TrafficPath::tx_os, Socket::sendfile(out, in, offset, length));
    }
    const int mode = os::fcntl(in, F_GETFL, 0);
    if (mode < 0) return -1;
    if ((mode & O_ACCMODE) == O_WRONLY) return failed(EBADF);
    struct stat s;
    if (fstat(in, &s) != 0) return -1;
    if (!S_ISREG(s.st_mode) && !S_ISBLK(s.st_mode)) return failed(EINVAL);
    if (offset != nullptr && !UserMemory::writable(offset, sizeof *offset)) return failed(EFAULT);
    off_t position = offset != nullptr ? *offset : lseek(in, 0, SEEK_CUR);
    if (position < 0) return failed(EINVAL);
    std::size_t count = std::min(length, kMaxTransfer);
    const off_t start = position;
    const std::size_t wanted = count;
    std::unique_ptr<char[]> buffer(new (std::nothrow) char[std::min(count, kChunk) + 1]);
    if (buffer == nullptr) return failed(ENOMEM);
    int error = 0;
    while (count != 0) {
        const ssize_t n = pread(in, buffer.get(), std::min(count, kChunk), position);
        if (n < 0) error = -errno;
        if (n <= 0) break;
        iovec iov{buffer.get(), static_cast<std::size_t>(n)};
        IovCursor at(&iov, 1, iov.iov_len);
        count -= static_cast<std::size_t>(n);
        const bool more = count != 0 && position + n < s.st_size;
        const ssize_t sent = transmit(out, at, more ? MSG_MORE : 0);
        if (sent < 0) error = static_cast<int>(sent);
        if (sent > 0) position += sent;
        if (sent < n) break;
    }
    if (position == start && error == -EREMOTE) {
        const int gone = move_away(out);
        if (gone > 0) return Socket::sendfile(out, in, offset, wanted);
        return gone < 0 ? failed(-gone) : sendfile(out, in, offset, wanted);
    }
    if (offset != nullptr)
        *offset = position;
    else if (position != start)
        lseek(in, position, SEEK_SET);
    if (position != start) return static_cast<ssize_t>(position - start);
    return error == 0 ? 0 : finish_send(error, 0);
}

// Only as much is taken from the pipe as there is room for in the send queue, so that nothing is left over
// when the socket does not wait.
ssize_t TcpStream::splice_in(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                             unsigned flags) {
    if (!has_connection() || in_offset != nullptr || out_offset != nullptr || len == 0 || !is_pipe(in))
        return count_kernel(stats::TrafficPath::tx_os, asked(in, in_offset, out, out_offset, len, flags));
    std::unique_ptr<char[]> buffer(new (std::nothrow) char[std::min(len, kChunk)]);
    if (buffer == nullptr) return failed(ENOMEM);
    len = std::min(len, kMaxTransfer);
    const int more = (flags & SPLICE_F_MORE) ? MSG_MORE : 0;
    std::size_t moved = 0;
    ssize_t error = 0;
    while (moved < len) {
        // The kernel looks at the pipe first, and waits for its first byte only.
        if ((moved != 0 || (flags & SPLICE_F_NONBLOCK)) && !pipe_ready(in, POLLIN)) {
            if (moved == 0) error = -EAGAIN;
            break;
        }
        if (moved == 0) {
            if (await_pipe(in, POLLIN) < 0) return -1;
        }
        std::size_t room = 0;
        {
            Pin pin(transport_);
            tcp::Connection* c = pin.connection;
            if (c == nullptr) {
                error = -EREMOTE;
                break;
            }
            auto settled = [&] {
                return (!still_connecting(*c) && c->send_space() != 0) ||
                       (c->events() & (EPOLLHUP | EPOLLERR)) != 0 || transport_.connection() != c;
            };
            if (!settled()) {
                flush();
                progress();
                if (!settled()) {
                    if (!blocks(0) || moved != 0 || ConnectionScope::interrupted(*c)) {
                        if (moved == 0) error = -EAGAIN;
                        break;
                    }
                    Waiting w(options_.send_timeout());
                    if (const int e = wait(-1, w, settled)) {
                        error = e;
                        break;
                    }
                }
            }
            room = c->send_space();
            if (room == 0) {
                // Why there is none: send() knows, and takes nothing from the pipe.
                char none = 0;
                iovec iov{&none, 0};
                ConnectionScope here(*c);
                error = c->send(&iov, 1, 0, 0);
                if (error == 0) error = -EPIPE;
                break;
            }
        }
        const ssize_t n = os::read(in, buffer.get(), std::min({len - moved, room, kChunk}));
        if (n < 0) error = -errno;
        if (n <= 0) break;
        iovec iov{buffer.get(), static_cast<std::size_t>(n)};
        IovCursor at(&iov, 1, iov.iov_len);
        // Fits, unless another thread sends as well: then these bytes wait, for they cannot go back.
        while (at.left() != 0) {
            const ssize_t sent = transmit(out, at, more);
            if (sent == -EAGAIN) {
                Pin pin(transport_);
                if (pin.connection == nullptr || ConnectionScope::interrupted(*pin.connection)) break;
                Waiting w(clock::Nsec{});
                wait(-1, w,
                     [&] { return (pin.connection->events() & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0; });
            } else if (const int gone = sent == -EREMOTE ? move_away(out) : 0; gone > 0) {
                // They are out of the pipe, so the wait has no limit. What a signal ends is not begun anew.
                if (MovedCall(out, {}).send(at, more) <= 0) error = -EPIPE;
                break;
            } else if (sent < 0 && (sent != -EREMOTE || gone < 0)) {
                error = sent;
                break;
            }
        }
        if (error != 0) break;
        moved += static_cast<std::size_t>(n);
    }
    if (moved != 0) return static_cast<ssize_t>(moved);
    if (error == -EREMOTE) {
        const int gone = move_away(out);
        if (gone > 0)
            return count_kernel(stats::TrafficPath::tx_os, asked(in, in_offset, out, out_offset, len, flags));
        return gone < 0 ? failed(-gone) : splice_in(in, in_offset, out, out_offset, len, flags);
    }
    return error == 0 ? 0 : finish_send(error, 0);
}

// A pipe that poll() calls writable has a free page, which takes PIPE_BUF bytes without waiting (pipe(7)).
ssize_t TcpStream::splice_out(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                              unsigned flags) {
    if (!has_connection() || in_offset != nullptr || out_offset != nullptr || len == 0 || !is_pipe(out))
        return count_kernel(stats::TrafficPath::rx_os, asked(in, in_offset, out, out_offset, len, flags));
    char buffer[PIPE_BUF];
    std::size_t moved = 0;
    len = std::min(len, kMaxTransfer);
    while (moved < len) {
        if (!pipe_ready(out, POLLOUT)) {
            if (moved != 0) break;
            if (flags & SPLICE_F_NONBLOCK) return failed(EAGAIN);
            if (await_pipe(out, POLLOUT) < 0) return -1;
        }
        iovec iov{buffer, std::min(len - moved, sizeof buffer)};
        IovCursor at(&iov, 1, iov.iov_len);
        // SPLICE_F_NONBLOCK is about the pipe; the socket has its own flag.
        const ssize_t n = receive(in, at, moved != 0 ? MSG_DONTWAIT : 0);
        if (n == -EREMOTE && moved == 0) {
            const int gone = move_away(in);
            if (gone > 0)
                return count_kernel(stats::TrafficPath::rx_os, asked(in, nullptr, out, nullptr, len, flags));
            return gone < 0 ? failed(-gone) : splice_out(in, nullptr, out, nullptr, len, flags);
        }
        if (n < 0 && moved == 0) return finish(n, 0);
        if (n <= 0) break;
        for (ssize_t done = 0; done < n;) {
            const ssize_t written = os::write(out, buffer + done, static_cast<std::size_t>(n - done));
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) return -1;  // no reader any more: EPIPE, and SIGPIPE came with it
            done += written;
        }
        moved += static_cast<std::size_t>(n);
    }
    return static_cast<ssize_t>(moved);
}

}  // namespace vma::sockets
