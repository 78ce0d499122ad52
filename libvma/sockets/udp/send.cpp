// SPDX-License-Identifier: BSD-2-Clause
// Sending on a UDP socket: over a ring when everything is ordinary, else through the shadow.
//
// Ordinary means: a destination whose route leads through an offloaded interface to a resolved neighbour, a
// datagram that fits the path MTU, no flag or option that asks for more. All other cases the kernel does, on
// the same local port, so the peer sees no difference and every errno is the kernel's own.
#include <limits.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/region.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/udp/multicast_send.h"
#include "libvma/sockets/udp/udp_socket.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {
namespace {

constexpr int kPlainFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
constexpr int kDummy = MSG_SYN;  // VMA_SND_FLAGS_DUMMY
constexpr const char* kControl = "control messages when sending";

}  // namespace

bool UdpSocket::still_mine(int fd) noexcept {
    const clock::Ticks now = clock::Ticks::now();
    if (shadow_.trusted(now)) return true;
    send_.refresh(now);
    return shadow_.verify(fd, now);
}

void UdpSocket::show_kernel_sends() noexcept {
    if (const unsigned bits = send_.kernel_sends(); bits != 0 && !left_.load(std::memory_order_relaxed))
        kernel_sends(stats::Reason::option, SendPath::text_of(bits));
}

// Inline, for each datagram comes here.
[[gnu::always_inline]] inline bool UdpSocket::may_send_fast(int fd, int flags, const sockaddr* name,
                                                            socklen_t name_length, const PacketInfo* info,
                                                            in_addr_t& addr, in_port_t& port) {
    if ((flags & ~kPlainFlags) != 0) return kernel_sends(stats::Reason::flags, "flags of the send call");
    addr = ends_.remote.address.v4();
    port = ends_.remote.port;
    if (name != nullptr) {
        sockaddr_in to;
        if (name_length < sizeof to || name_length > sizeof(sockaddr_storage) ||
            !UserMemory::readable(name, sizeof to))
            return false;
        std::memcpy(&to, name, sizeof to);
        if (to.sin_family != AF_INET || to.sin_port == 0 || to.sin_addr.s_addr == 0) return false;
        addr = to.sin_addr.s_addr;
        port = to.sin_port;
    } else if (addr == 0) {
        return false;
    }
    if (__builtin_expect(info != nullptr, 0) && !is_group(addr))
        return kernel_sends(stats::Reason::flags, kControl);
    if (ends_.local.port == 0)
        return kernel_sends(stats::Reason::not_bound, "the first datagram binds the socket");
    if (!still_mine(fd)) return false;
    return true;
}

// With send_.lock() held.
[[gnu::always_inline]] inline void UdpSocket::sent_fast(const Destination& d, unsigned datagrams,
                                                        std::size_t bytes) noexcept {
    socket_counters_.moved(stats::TrafficPath::tx_offload, bytes, true, datagrams);
    if (__builtin_expect(
            !socket_counters_.is(stats::Direction::tx, stats::Path::offloaded, stats::Reason::none), 0))
        socket_counters_.decided(stats::Direction::tx,
                                 {stats::Path::offloaded, stats::Reason::none, {}, d.why.rule});
    if (__builtin_expect(send_.room_watched(), 0)) tell_of_room();
}

bool UdpSocket::send_fast(int fd, const iovec* iov, std::size_t count, std::size_t length, int flags,
                          const sockaddr* name, socklen_t name_length, const PacketInfo* info,
                          ssize_t& result) {
    if (left_.load(std::memory_order_relaxed) || kernel_side_.has_event()) return false;
    if (const unsigned bits = send_.kernel_sends(); bits != 0)
        return kernel_sends(stats::Reason::option, SendPath::text_of(bits));
    if (__builtin_expect((flags & kDummy) != 0, 0)) {
        // Everything but the frame: headers, route and neighbour are looked up (warm caches).
        if (name == nullptr && ends_.remote.port != 0 && ends_.local.port != 0 &&
            !send_.lock().owned_by_me()) {
            const std::lock_guard guard(send_.lock());
            (void)send_.destination(stack_, ends_.remote.address.v4(), ends_.remote.port);
        }
        socket_counters_.dummy();
        result = static_cast<ssize_t>(length);
        return true;
    }
    in_addr_t addr;
    in_port_t port;
    if (!may_send_fast(fd, flags, name, name_length, info, addr, port)) return false;
    for (std::size_t i = 0; i < count; i++)
        if (!UserMemory::readable(iov[i].iov_base, iov[i].iov_len)) return false;  // the kernel says EFAULT
    if (send_.lock().owned_by_me()) return false;  // a signal handler inside a send on this socket
    const std::lock_guard guard(send_.lock());
    Destination* d = __builtin_expect(info != nullptr, 0) ? send_.destination_by(stack_, addr, port, *info)
                                                          : send_.destination(stack_, addr, port);
    if (d == nullptr) return kernel_sends(stats::Reason::no_memory, {});
    if (__builtin_expect(d->conditional, 0)) {
        if (d->stale && clock::Ticks::now() > d->confirm_at) {
            d->generation =
                0;  // resolved again next time: the kernel may have confirmed the neighbour by then
            return kernel_sends(stats::Reason::neighbour, "a datagram through the kernel confirms it");
        }
        if (d->follows_members) send_.follow_members(stack_, *d);
    }
    if (d->ring == nullptr) return kernel_sends(d->why.reason, d->why.detail, d->why.rule);
    if (length > d->max_payload) return kernel_sends(stats::Reason::too_long, {});
    int error = d->ring->send_udp(d->headers, iov, count, length);
    if (error == EBUSY) return false;
    if (error != 0) {
        // The kernel has a queue of its own for what exceeds the ring, and decides there whether the caller
        // waits or gets EAGAIN.
        if (config::get().tx_nonblocked_eagains == 0) return false;
        if (blocks(flags)) return false;
        socket_counters_.eagain(stats::TrafficPath::tx_offload);
        errno = EAGAIN;
        result = -1;
        return true;
    }
    sent_fast(*d, 1, length);
    result = static_cast<ssize_t>(length);
    return true;
}

// What is out of the ordinary, sendto() finds again.
template <class Post>
unsigned UdpSocket::send_ordinary(int fd, int flags, const sockaddr* name, socklen_t name_length,
                                  Post&& post) {
    in_addr_t addr;
    in_port_t port;
    if (left_.load(std::memory_order_relaxed) || kernel_side_.has_event() || send_.kernel_sends() != 0 ||
        (flags & ~kPlainFlags) != 0 || !may_send_fast(fd, flags, name, name_length, nullptr, addr, port) ||
        send_.lock().owned_by_me())
        return 0;
    const std::lock_guard guard(send_.lock());
    Destination* d = send_.destination(stack_, addr, port);
    if (d == nullptr || d->conditional || d->ring == nullptr) return 0;
    return post(*d);
}

// One look at the peer and at the ring's lock for all.
unsigned UdpSocket::send_run(int fd, const iovec* datagrams, unsigned count, int flags, const sockaddr* name,
                             socklen_t name_length) {
    return send_ordinary(fd, flags, name, name_length, [&](const Destination& d) {
        unsigned good = 0;
        std::size_t bytes = 0;
        for (; good < count; good++) {
            const iovec& one = datagrams[good];
            if (one.iov_len > d.max_payload || !UserMemory::readable(one.iov_base, one.iov_len)) break;
        }
        if (good == 0) return 0u;
        const unsigned sent = d.ring->send_udp_many(d.headers, datagrams, good);
        for (unsigned i = 0; i < sent; i++) bytes += datagrams[i].iov_len;
        if (sent != 0) sent_fast(d, sent, bytes);
        return sent;
    });
}

// A ring sends only from memory of its own.
bool UdpSocket::send_lent(int fd, ring::SendBuffer& buffer, std::size_t length, int flags, const sockaddr* to,
                          socklen_t to_length) {
    if (place_.strayed(RingPlace::Way::tx)) move_ring();
    const unsigned sent = send_ordinary(fd, flags, to, to_length, [&](const Destination& d) {
        if (d.ring != buffer.ring || length > d.max_payload) return 0u;
        if (d.ring->send_lent_udp(d.headers, buffer, length) != 0) return 0u;
        sent_fast(d, 1, length);
        return 1u;
    });
    return sent != 0;
}

int UdpSocket::send_pieces(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                           socklen_t length) {
    constexpr unsigned kRun = 64;  // others may want the locks
    if (place_.strayed(RingPlace::Way::tx)) move_ring();
    unsigned sent = 0;
    const int before = errno;
    while (sent < count) {
        const unsigned run = std::min(count - sent, kRun);
        const unsigned went = send_run(fd, data + sent, run, flags, to, length);
        sent += went;
        if (went == run) continue;
        if (sendto(fd, data[sent].iov_base, data[sent].iov_len, flags, to, length) < 0) break;
        sent++;
    }
    if (sent == 0 && count != 0) return -1;
    errno = before;
    return static_cast<int>(sent);
}

// The kernel wakes waiters for room whenever a datagram has left (sock_wfree), full or not.
void UdpSocket::tell_of_room() noexcept {
    send_.note_departure();
    if (watchers_.locked_by_me())
        return;  // a signal handler inside a receive: only an edge of room that was there already
    const std::lock_guard guard(watchers_.lock());
    watchers_.wake_sets_held(kWakeOut);
}

void UdpSocket::note_kernel_send(int fd, int flags, ssize_t result) noexcept {
    socket_counters_.result(stats::TrafficPath::tx_os, result >= 0 ? result : -errno);
    KernelSide::note_send();
    if (result < 0) return;
    if (flags & MSG_MORE)
        send_.set_kernel_sends(SendPath::more, true);  // the kernel collects until a send without it
    else if (send_.kernel_sends() & SendPath::more)
        send_.set_kernel_sends(SendPath::more, false);
    if (ends_.local.port == 0 && !left_) {
        const ErrnoKept kept;
        after_autobind(fd);
    }
}

// A send that may wait in the kernel is tried without waiting first: few have to. See
// Socket::kernel_answered().
int UdpSocket::dont_wait_here(int flags) const noexcept {
    return blocks(flags) && runtime::in_region() ? MSG_DONTWAIT : 0;
}

ssize_t UdpSocket::sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                          socklen_t alen) {
    if (place_.strayed(RingPlace::Way::tx)) move_ring();
    ssize_t result = -1;
    iovec iov{const_cast<void*>(buf), len};
    if (len <= 65535 && send_fast(fd, &iov, 1, len, flags, addr, alen, nullptr, result)) return result;
    if (__builtin_expect((flags & kDummy) != 0, 0)) return failed(EINVAL);  // the kernel would send it
    flush();
    kernel_side_.forget_event();
    const int now = dont_wait_here(flags);
    result = os::sendto(fd, buf, len, flags | now, addr, alen);
    if (result < 0 && errno == EAGAIN && now != 0) {
        errno = runtime::kAskKernel;
        return -1;
    }
    note_kernel_send(fd, flags, result);
    return result;
}

ssize_t UdpSocket::sendmsg(int fd, const msghdr* msg, int flags) {
    if (place_.strayed(RingPlace::Way::tx)) move_ring();
    ssize_t result = -1;
    PacketInfo info;
    if (UserMemory::readable(msg, sizeof *msg) && (msg->msg_controllen == 0 || info.read(*msg)) &&
        msg->msg_iovlen <= IOV_MAX && UserMemory::readable(msg->msg_iov, msg->msg_iovlen * sizeof(iovec))) {
        std::size_t length = 0;
        bool plain = true;
        for (std::size_t i = 0; i < msg->msg_iovlen; i++) {
            plain &= msg->msg_iov[i].iov_len <= 65535;
            length += msg->msg_iov[i].iov_len;
        }
        const auto* name = static_cast<const sockaddr*>(msg->msg_name);
        if (plain && length <= 65535 &&
            send_fast(fd, msg->msg_iov, msg->msg_iovlen, length, flags, name, msg->msg_namelen,
                      info.given ? &info : nullptr, result))
            return result;
    } else if (!left_.load(std::memory_order_relaxed)) {
        kernel_sends(stats::Reason::flags, kControl);
    }
    if (__builtin_expect((flags & kDummy) != 0, 0)) return failed(EINVAL);  // the kernel would send it
    flush();
    kernel_side_.forget_event();
    const int now = dont_wait_here(flags);
    result = os::sendmsg(fd, msg, flags | now);
    if (result < 0 && errno == EAGAIN && now != 0) {
        errno = runtime::kAskKernel;
        return -1;
    }
    note_kernel_send(fd, flags, result);
    return result;
}

// The frames of one call share kicks: the ring of the peer before is most likely that of these, too.
int UdpSocket::sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
    ring::Ring* ring = nullptr;
    if (count > 1 && !send_.lock().owned_by_me()) {
        const std::lock_guard guard(send_.lock());
        ring = send_.last_ring();
    }
    const ring::Ring::Gather gather(ring);
    return send_many(
        msgs, count, [&](const msghdr* msg) { return sendmsg(fd, msg, flags); },
        [](const msghdr&, std::size_t) { return true; });
}

}  // namespace vma::sockets
