// SPDX-License-Identifier: BSD-2-Clause
// What the extra API (libvma/api) asks of a socket beyond the calls of the kernel: data that the program
// keeps without copying it, and callbacks that judge what arrives.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "libvma/sockets/held.h"

namespace vma::ring {
class Ring;
struct SendBuffer;
}  // namespace vma::ring

namespace vma::sockets {

class ExtremeMember;
class Filter;
struct OwnRing;

// One zero-copy receive.
struct HeldReceive {
    int fd;
    int flags;            // of recvfrom(2)
    bool force = false;   // fail with EIO rather than copy
    unsigned pieces = 1;  // at most so many iovecs of a stream
    // Data that only the kernel's socket has is copied here, and its name there.
    iovec copy{};
    sockaddr* name = nullptr;
    socklen_t* name_length = nullptr;
    // What it got; empty after a copy, and at the end of a stream.
    Held held;
};

class ExtraSocket {
  public:
    // Does the library serve it, or will it once it is bound or connected? Any thread.
    virtual bool serves_extra() const noexcept = 0;

    // Is it a stream? Else it has datagrams.
    bool stream() const noexcept { return stream_; }
    // What a receive call would find: datagrams (0 for a stream) and bytes.
    struct Ready {
        std::uint32_t packets, bytes;
    };
    // A socket call: bytes, or -1 with errno. ENOBUFS: no memory.
    virtual ssize_t receive_held(HeldReceive& receive) = 0;
    // `charge` of what the program kept is back. Any thread, any lock held.
    virtual void given_back(std::uint64_t charge) noexcept = 0;

    // Socket calls, of `count` pieces to one peer (null: the connected one). On a UDP socket each piece is a
    // datagram, and the result is how many were sent; on a stream they are one message, and the result is
    // bytes. -1 with errno if nothing was sent.
    virtual int send_pieces(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                            socklen_t length) = 0;

    // Sends a buffer that its ring lent to the program, without a copy: its first `length` bytes, to a peer
    // as above. False: something is out of the ordinary, nothing was sent, and sendto() has the answer.
    virtual bool send_lent(int fd, ring::SendBuffer& buffer, std::size_t length, int flags,
                           const sockaddr* to, socklen_t to_length) {
        (void)fd, (void)buffer, (void)length, (void)flags, (void)to, (void)to_length;
        return false;
    }

    // ---- callbacks; see verdicts.h ----
    // From now on arrivals are undecided until the filter's callback has judged them. Made on first use,
    // null without memory; it stays with the socket.
    virtual Filter* make_filter() noexcept = 0;
    // The filter was set, or unset: the latter makes all that is undecided readable, or leaves that to the
    // verdict that is under way.
    virtual void filter_changed(bool on) noexcept = 0;
    // Takes the next undecided packet out, and tells what is ready(). False: there is none.
    virtual bool next_undecided(Held& out, Ready& ready) noexcept = 0;
    virtual bool any_undecided() noexcept = 0;
    // The verdict about what next_undecided() gave. `receive`: it becomes readable. Null: it does not.
    virtual void apply_verdict(Held* receive) noexcept = 0;
    virtual void decide_all() noexcept = 0;

    // ---- SocketXtreme; see extreme.h ----
    // Null where the program does not poll rings.
    virtual ExtremeMember* extreme() noexcept = 0;
    // Takes what is readable now: a datagram, or at most so much of a stream (one piece at least). Neither
    // waits nor asks the kernel. Bytes, or -errno; -EAGAIN: nothing is there.
    virtual ssize_t take_ready(Held& out, unsigned pieces, std::size_t bytes) noexcept = 0;
    // The same of a datagram that the kernel's socket has: a copy.
    virtual ssize_t take_from_kernel(int fd, Held& out) noexcept = 0;
    // Of a listening socket: accepts a connection that waits in the library's queue. Its number, or -errno.
    virtual int accept_ready(sockaddr_in& from) noexcept = 0;
    // SO_VMA_SHUTDOWN_RX: frames come to the kernel's socket from now on. 0 or -errno.
    virtual int shut_rules() noexcept = 0;

    // ---- rings ----
    // SO_VMA_RING_ALLOC_LOGIC: 0, or -errno; EBUSY: it has a ring already and cannot move.
    virtual int choose_ring(const OwnRing& own) noexcept = 0;
    // The ring over which the socket sends to `to` (null: to its peer): 0, or -errno; ENODATA: over none.
    virtual int send_ring(int fd, const sockaddr* to, socklen_t length, ring::Ring*& ring) = 0;
    // The headers in front of what it sends to its peer. Puts at most `room` bytes at `out`; the length, or
    // -ENOTCONN where they are not known.
    virtual int network_header(int fd, void* out, std::size_t room) = 0;

  protected:
    explicit ExtraSocket(bool stream) noexcept : stream_(stream) {}
    ~ExtraSocket() = default;

  private:
    const bool stream_;
};

}  // namespace vma::sockets
