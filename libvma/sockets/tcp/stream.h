// SPDX-License-Identifier: BSD-2-Clause
// The data calls of a TCP socket: receive, send, sendfile, splice.
//
// Methods that return bytes or -errno say -EREMOTE when the connection is the kernel's, or about to go there:
// then the call is repeated on the shadow.
#pragma once

#include <atomic>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/iov_cursor.h"
#include "libvma/sockets/tcp/connecting.h"

namespace vma::sockets {

class TcpStream : public TcpConnecting {
  public:
    ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) override;
    ssize_t recvmsg(int fd, msghdr* msg, int flags) override;
    int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) override;
    ssize_t sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                   socklen_t alen) override;
    ssize_t sendmsg(int fd, const msghdr* msg, int flags) override;
    int sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) override;
    ssize_t sendfile(int out, int in, off_t* offset, size_t count) override;
    ssize_t splice_in(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                      unsigned flags) override;
    ssize_t splice_out(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t len,
                       unsigned flags) override;

  protected:
    using TcpConnecting::TcpConnecting;
    ~TcpStream() override = default;

    // Bytes, 0 at the end of the stream, or -errno.
    ssize_t receive_ours(int fd, IovCursor& at, int flags);
    // For the program: -1 with errno.
    static ssize_t finish(ssize_t result, int flags) noexcept;

  private:
    // ---- receive.cpp ----
    ssize_t receive(int fd, IovCursor& at, int flags);
    ssize_t receive_urgent(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen);
    ssize_t take(tcp::Connection& c, IovCursor& at, std::size_t left, unsigned flags,
                 std::size_t skip) noexcept;

    // ---- send.cpp ----
    ssize_t transmit(int fd, IovCursor& at, int flags);
    ssize_t transmit_ours(int fd, IovCursor& at, int flags);
    ssize_t may_send(int fd, int flags);
    // Does the first write after a pause look at the ring (core.h)? Writes in a row do not, and those of a
    // burst need not even ask: they look when there is no room.
    bool look_is_due() noexcept {
        const clock::Ticks now = clock::Ticks::now(), before = wrote_at_.load(std::memory_order_relaxed);
        wrote_at_.store(now, std::memory_order_relaxed);
        return now - before > clock::to_ticks(kPause);
    }
    ssize_t dummy(std::size_t length) noexcept;
    int kernel_may_send_now(int fd, int flags);
    // For the program: -1 with errno, and SIGPIPE where the kernel raises it.
    static ssize_t finish_send(ssize_t result, int flags) noexcept;

    static constexpr clock::Usec kPause{50};
    // Of this socket's last write. Two threads may look once more, or once less.
    std::atomic<clock::Ticks> wrote_at_{};
};

}  // namespace vma::sockets
