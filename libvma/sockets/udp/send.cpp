// SPDX-License-Identifier: BSD-2-Clause
// Sending on a UDP socket: over a ring when everything is ordinary, else through the shadow.
//
// Ordinary means: a destination whose route leads through an offloaded interface to a resolved neighbour, a
// datagram that fits the path MTU, no flag or option that asks for more. All other cases the kernel does, on
// the same local port, so the peer sees no difference and every errno is the kernel's own.
#include <limits.h>

#include <cstring>
#include <iterator>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/region.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/udp_socket.h"
#include "libvma/sockets/user_memory.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace vma::sockets {
namespace {

constexpr int kPlainFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
constexpr std::uint64_t kRefreshUsec = 5'000'000;

// The names of UdpSocket::KernelTx, for people.
constexpr const char* kKernelTxNames[] = {"UDP_CORK is set",
                                          "UDP_SEGMENT is set",
                                          "SO_MAX_PACING_RATE is set",
                                          "SO_TXTIME is set",
                                          "IP_OPTIONS is set",
                                          "IP_FREEBIND or IP_TRANSPARENT is set",
                                          "SO_NO_CHECK is set",
                                          "it is shut down",
                                          "SO_DONTROUTE is set",
                                          "transmit time stamps are wanted",
                                          "MSG_MORE",
                                          "IP_UNICAST_IF is set"};
std::string_view name_of(unsigned kernel_tx) noexcept {
    const auto first = static_cast<std::size_t>(__builtin_ctz(kernel_tx));
    return first < std::size(kKernelTxNames) ? kKernelTxNames[first] : "";
}

}  // namespace

bool UdpSocket::still_mine(int fd) noexcept {
    std::uint64_t now = clock::ticks();
    if (now - verified_at_.load(std::memory_order_relaxed) < kVerifyUsec * clock::ticks_per_usec())
        return true;
    verified_at_.store(now, std::memory_order_relaxed);
    std::uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int saved = errno;
    // A path MTU that the kernel learned is not announced, so destinations are looked up again now and then.
    if (now - refreshed_at_ > kRefreshUsec * clock::ticks_per_usec()) {
        refreshed_at_ = now;
        attributes_version_.fetch_add(1, std::memory_order_release);
    }
    bool same = os::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 && cookie == cookie_;
    errno = saved;
    return same;
}

Destination* UdpSocket::destination(in_addr_t addr, in_port_t port) noexcept {
    const std::uint32_t options = attributes_version_.load(std::memory_order_acquire);
    Destination* d = last_destination_;
    if (d == nullptr || d->addr != addr || d->port != port) {
        const std::uint64_t key = std::uint64_t{addr} << 16 | port;
        auto it = destinations_.find(key);
        if (it == destinations_.end()) {
            try {
                if (destinations_.size() >= kMaxDestinations) {
                    last_destination_ = nullptr;
                    destinations_.clear();
                }
                auto fresh = std::make_unique<Destination>();
                fresh->addr = addr;
                fresh->port = port;
                it = destinations_.emplace(key, std::move(fresh)).first;
            } catch (...) {
                return nullptr;
            }
        }
        d = last_destination_ = it->second.get();
    }
    if (__builtin_expect(d->generation != stack_.present_view().generation() || d->options != options, 0)) {
        int saved = errno;
        resolve(stack_, attributes_, *d);
        errno = saved;
        d->options = options;
    }
    return d;
}

void UdpSocket::show_kernel_tx() noexcept {
    if (const unsigned bits = kernel_tx_.load(std::memory_order_relaxed);
        bits != 0 && !left_.load(std::memory_order_relaxed))
        kernel_sends(stats::Reason::option, name_of(bits));
}

bool UdpSocket::send_fast(int fd, const iovec* iov, std::size_t count, std::size_t length, int flags,
                          const sockaddr* name, socklen_t name_length, ssize_t& result) {
    if (left_.load(std::memory_order_relaxed) || shadow_event_.load(std::memory_order_relaxed)) return false;
    if (const unsigned bits = kernel_tx_.load(std::memory_order_relaxed); bits != 0)
        return kernel_sends(stats::Reason::option, name_of(bits));
    if ((flags & ~kPlainFlags) != 0) return kernel_sends(stats::Reason::flags, "flags of the send call");
    in_addr_t addr = peer_addr_;
    in_port_t port = peer_port_;
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
    if (local_port_ == 0)
        return kernel_sends(stats::Reason::not_bound, "the first datagram binds the socket");
    if (!still_mine(fd)) return false;
    for (std::size_t i = 0; i < count; i++)
        if (!UserMemory::readable(iov[i].iov_base, iov[i].iov_len)) return false;  // the kernel says EFAULT
    if (send_lock_.owned_by_me()) return false;  // a signal handler inside a send on this socket
    send_lock_.lock();
    struct Unlock {
        Lock& lock;
        ~Unlock() { lock.unlock(); }
    } unlock{send_lock_};
    Destination* d = destination(addr, port);
    if (d == nullptr) return kernel_sends(stats::Reason::no_memory, {});
    if (d->ring == nullptr) return kernel_sends(d->why.reason, d->why.detail, d->why.rule);
    if (length > d->max_payload) return kernel_sends(stats::Reason::too_long, {});
    if (__builtin_expect(d->stale, 0)) {
        std::uint64_t now = clock::ticks();
        if (now > d->confirm_at) {
            d->generation =
                0;  // resolved again next time: the kernel may have confirmed the neighbour by then
            return kernel_sends(stats::Reason::neighbour, "a datagram through the kernel confirms it");
        }
    }
    int error = d->ring->send_udp(d->headers, iov, count, length);
    if (error == EBUSY) return false;
    if (error != 0) {
        // The kernel has a queue of its own for what exceeds ours, and decides there whether the caller waits
        // or gets EAGAIN.
        if (config::get().tx_nonblocked_eagains == 0) return false;
        if (!(flags & MSG_DONTWAIT) && !nonblock_.load(std::memory_order_relaxed)) return false;
        tally_.eagain(stats::Way::tx_offload);
        errno = EAGAIN;
        result = -1;
        return true;
    }
    tally_.moved(stats::Way::tx_offload, length, true);
    if (__builtin_expect(!tally_.is(stats::Direction::tx, stats::Path::offloaded, stats::Reason::none), 0))
        tally_.decided(stats::Direction::tx, {stats::Path::offloaded, stats::Reason::none, {}, d->why.rule});
    if (__builtin_expect(room_watched_.load(std::memory_order_relaxed) != 0, 0)) tell_of_room();
    result = static_cast<ssize_t>(length);
    return true;
}

// The kernel wakes who waits for room whenever a datagram has left (sock_wfree), full or not.
void UdpSocket::tell_of_room() noexcept {
    departures_.fetch_add(1, std::memory_order_release);
    if (queue_lock_.owned_by_me())
        return;  // a signal handler inside a receive: only an edge of room that was there already
    queue_lock_.lock();
    hooks_.wake_all(kWakeOut);
    queue_lock_.unlock();
}

void UdpSocket::note_kernel_send(int fd, int flags, ssize_t result) noexcept {
    tally_.result(stats::Way::tx_os, result >= 0 ? result : -errno);
    g_kernel_sends.fetch_add(1, std::memory_order_relaxed);
    if (result < 0) return;
    if (flags & MSG_MORE)
        set_kernel_tx(more, true);  // the kernel collects until a send without it
    else if (kernel_tx_.load(std::memory_order_relaxed) & more)
        set_kernel_tx(more, false);
    if (local_port_ == 0 && !left_) {
        int saved = errno;
        after_autobind(fd);
        errno = saved;
    }
}

// A send that may wait in the kernel is tried without waiting first: few have to. See
// Socket::kernel_answered().
int UdpSocket::dont_wait_here(int flags) const noexcept {
    const bool waits = !(flags & MSG_DONTWAIT) && !nonblock_.load(std::memory_order_relaxed);
    return waits && runtime::in_region() ? MSG_DONTWAIT : 0;
}

ssize_t UdpSocket::sendto(int fd, const void* buf, size_t len, int flags, const sockaddr* addr,
                          socklen_t alen) {
    ssize_t result = -1;
    iovec iov{const_cast<void*>(buf), len};
    if (len <= 65535 && send_fast(fd, &iov, 1, len, flags, addr, alen, result)) return result;
    flush();
    shadow_event_.store(false, std::memory_order_relaxed);
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
    ssize_t result = -1;
    if (UserMemory::readable(msg, sizeof *msg) && msg->msg_controllen == 0 && msg->msg_iovlen <= IOV_MAX &&
        UserMemory::readable(msg->msg_iov, msg->msg_iovlen * sizeof(iovec))) {
        std::size_t length = 0;
        bool plain = true;
        for (std::size_t i = 0; i < msg->msg_iovlen; i++) {
            plain &= msg->msg_iov[i].iov_len <= 65535;
            length += msg->msg_iov[i].iov_len;
        }
        const auto* name = static_cast<const sockaddr*>(msg->msg_name);
        if (plain && length <= 65535 &&
            send_fast(fd, msg->msg_iov, msg->msg_iovlen, length, flags, name, msg->msg_namelen, result))
            return result;
    } else if (!left_.load(std::memory_order_relaxed)) {
        kernel_sends(stats::Reason::flags, "control messages when sending");
    }
    flush();
    shadow_event_.store(false, std::memory_order_relaxed);
    const int now = dont_wait_here(flags);
    result = os::sendmsg(fd, msg, flags | now);
    if (result < 0 && errno == EAGAIN && now != 0) {
        errno = runtime::kAskKernel;
        return -1;
    }
    note_kernel_send(fd, flags, result);
    return result;
}

int UdpSocket::sendmmsg(int fd, mmsghdr* msgs, unsigned count, int flags) {
    return send_many(
        msgs, count, [&](const msghdr* msg) { return sendmsg(fd, msg, flags); },
        [](const msghdr&, std::size_t) { return true; });
}

}  // namespace vma::sockets
