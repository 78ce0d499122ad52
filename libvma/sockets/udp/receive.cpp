// SPDX-License-Identifier: BSD-2-Clause
// Receiving on a UDP socket: the queue, the kernel's side, spinning, sleeping, control messages.
//
// A datagram may come from the ring or from the shadow (fragments, loopback, foreign interfaces, everything
// before the rules were in place). The queue is asked first; the kernel's side is asked in the proportion
// VMA_RX_UDP_POLL_OS_RATIO while spinning, at once after anything in this process was sent through the
// kernel, and always before sleeping. Its answer then is the call's answer, so errors, shutdown and
// everything unusual are the kernel's own.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/net/address.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/signal_hold.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/udp/udp_socket.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

// ---- the queue ----

template <ring::RxBuffer* (ReceiveQueue::*kTake)()>
ring::RxBuffer* UdpSocket::pop(bool count) noexcept {
    const std::lock_guard guard(watchers_.lock());
    ring::RxBuffer* b = (queue_.*kTake)();
    if (b == nullptr) return nullptr;
    if (count) socket_counters_.moved(stats::TrafficPath::rx_offload, b->payload_length, true);
    // The last one of a socket left to the kernel: from here on its readiness is the kernel's.
    if (queue_.first() == nullptr && !rules_.any()) watchers_.wake_sets_held(0);
    return b;
}

// In order, and behind what the kernel has got since the rules went: datagrams have no order.
void UdpSocket::give_queue_to_kernel() noexcept {
    if (watchers_.locked_by_me()) return;
    ring::RxBuffer* kept = nullptr;
    while (ring::RxBuffer* b = pop<&ReceiveQueue::pop>(false)) {
        if (b->ring->give_back(*b)) {
            b->release();
            continue;
        }
        b->next = kept;
        kept = b;
    }
    // What the kernel does not take, as datagrams to groups, the library's receive calls still deliver.
    const std::lock_guard guard(watchers_.lock());
    while (kept != nullptr) queue_.put_back(std::exchange(kept, kept->next));
}

// ---- one datagram to the caller ----

ssize_t UdpSocket::finish(ring::RxBuffer* b, Receive& r) noexcept {
    msghdr& msg = *r.msg;
    std::size_t left = b->payload_length;
    for (std::size_t i = 0; i < r.count && left != 0; i++) {
        std::size_t n = std::min(left, r.iov[i].iov_len);
        if (!UserMemory::writable(r.iov[i].iov_base, n)) {
            errno = EFAULT;  // the datagram is lost then, in the kernel as well
            return -1;
        }
        left -= n;
    }
    std::size_t copied = b->copy_to(r.iov, r.count);
    msg.msg_flags = 0;
    if (copied < b->payload_length) msg.msg_flags |= MSG_TRUNC;
    if (r.flags & MSG_CMSG_CLOEXEC) msg.msg_flags |= MSG_CMSG_CLOEXEC;
    if (msg.msg_name != nullptr) {
        const sockaddr_in from = net::ipv4_name(b->src_addr, b->src_port);
        if (!UserMemory::writable(msg.msg_name, std::min<std::size_t>(msg.msg_namelen, sizeof from))) {
            errno = EFAULT;
            return -1;
        }
        std::memcpy(msg.msg_name, &from, std::min<std::size_t>(msg.msg_namelen, sizeof from));
        msg.msg_namelen = sizeof from;
    } else {
        msg.msg_namelen = 0;
    }
    control_.put(*b, msg);
    return static_cast<ssize_t>(r.flags & MSG_TRUNC ? b->payload_length : copied);
}

// ---- one datagram that the program keeps (the extra API) ----

bool UdpSocket::keep(ring::RxBuffer* b, Held& out) noexcept {
    if (hold(b, out)) return true;
    const std::lock_guard guard(watchers_.lock());
    queue_.given_back(ReceiveQueue::cost_of(*b));
    queue_.put_back(b);
    return false;
}

ssize_t UdpSocket::finish_held(ring::RxBuffer* b, Receive& r) noexcept {
    const auto bytes = static_cast<ssize_t>(b->payload_length);
    if (!keep(b, r.held->held)) return failed(ENOBUFS);
    if (r.held->name != nullptr) copy_name(r.held->held.source(), r.held->name, r.held->name_length);
    return bytes;
}

ssize_t UdpSocket::take_ready(Held& out, unsigned, std::size_t) noexcept {
    if (queue_.size() == 0) return -EAGAIN;
    ring::RxBuffer* const b = pop<&ReceiveQueue::pop_lent>(true);
    if (b == nullptr) return -EAGAIN;
    const auto bytes = static_cast<ssize_t>(b->payload_length);
    return keep(b, out) ? bytes : -ENOBUFS;
}

// Is there a datagram in the kernel's socket that the program does not want copied?
bool UdpSocket::refuses_copy(int fd, const Receive& r) noexcept {
    if (!r.held->force) return false;
    msghdr nothing{};
    const int before = errno;
    const bool there = os::recvmsg(fd, &nothing, MSG_PEEK | MSG_DONTWAIT) >= 0;
    errno = there ? EIO : before;
    return there;
}

ssize_t UdpSocket::receive_held(HeldReceive& receive) {
    if (place_.strayed(RingPlace::Way::rx)) move_ring();
    msghdr msg{};
    if (receive.name != nullptr) {
        if (!UserMemory::writable(receive.name_length, sizeof *receive.name_length)) {
            errno = EFAULT;
            return -1;
        }
        msg.msg_name = receive.name;
        msg.msg_namelen = *receive.name_length;
    }
    msg.msg_iov = &receive.copy;
    msg.msg_iovlen = 1;
    Receive r{&receive.copy, 1, receive.flags, &msg, &receive};
    const ssize_t n = this->receive(receive.fd, r);
    if (n >= 0 && !receive.held && receive.name != nullptr) *receive.name_length = msg.msg_namelen;
    return n;
}

// ---- receive ----

bool UdpSocket::kernel_receives(int flags) const noexcept {
    if (offloaded()) return false;
    return left_.load(std::memory_order_relaxed) || (flags & MSG_DONTWAIT) ||
           nonblock_.load(std::memory_order_relaxed);
}

int UdpSocket::would_block() noexcept {
    socket_counters_.eagain(rules_.any() ? stats::TrafficPath::rx_offload : stats::TrafficPath::rx_os);
    errno = EAGAIN;
    return -1;
}

ssize_t UdpSocket::receive(int fd, Receive& r) {
    const config::Params& params = config::get();
    bool waits = blocks(r.flags);
    // Other flags mean nothing to a UDP receive, in the kernel neither (MSG_OOB for one). A handler that
    // interrupted the library gets what the kernel has.
    if ((r.flags & MSG_ERRQUEUE) || interrupted_library_code())
        return count_kernel_receive(os::recvmsg(fd, r.msg, r.flags), r.flags);
    if (pending_error_.load(std::memory_order_relaxed) != 0)
        if (int error = pending_error_.exchange(0); error != 0) {
            errno = error;
            return -1;
        }
    const bool peek = r.flags & MSG_PEEK;
    bool woken = false;
    stats::Arrived came = stats::Arrived::there;
    PollTime time;
    std::optional<Waiting> waiting;  // from the first round that found nothing
    std::optional<ShadowEdges> edges;
    for (;;) {
        // Without rings the kernel's side is all there is. It is still waited for here and not in a blocking
        // recv(), because another thread's bind, connect or send may put rules in place meanwhile.
        const bool rings = rules_.any();
        bool look = kernel_side_.due();
        if (!look) {
            if (queue_.size() == 0) {
                if (came == stats::Arrived::there) came = stats::Arrived::polled;
                flush();
                progress();
            } else if (drain_rate_.due()) {
                rules_.poll_once();
            }
            if (queue_.size() != 0) {
                if (peek) {
                    const std::lock_guard guard(watchers_.lock());
                    if (ring::RxBuffer* b = queue_.first()) return finish(b, r);
                } else if (__builtin_expect(r.held != nullptr, 0)) {
                    if (ring::RxBuffer* b = pop<&ReceiveQueue::pop_lent>(true)) {
                        socket_counters_.came(came);
                        return finish_held(b, r);
                    }
                } else if (ring::RxBuffer* b = pop<&ReceiveQueue::pop>(true)) {
                    socket_counters_.came(came);
                    ssize_t n = finish(b, r);
                    b->release();
                    return n;
                }
            }
        }
        if (Verdicts::due()) {
            if (waiting) Verdicts::keep_deadline(waiting->deadline);
            errno = runtime::kAskVerdict;
            return -1;
        }
        look |= !rings || woken;
        woken = false;
        if (!waiting) {
            waiting.emplace(waits ? receive_timeout_.load(std::memory_order_relaxed) : clock::Nsec{});
            waiting->judges();
            waits = waits && !Verdicts::inside(*this);
            look |= kernel_side_.due_at_first(waits);
        }
        if (closed()) {
            errno = EBADF;
            return -1;
        }
        if (look) {
            kernel_side_.looks();
            int saved = errno;
            if (__builtin_expect(r.held != nullptr, 0) && refuses_copy(fd, r)) return -1;
            ssize_t n = os::recvmsg(fd, r.msg, r.flags | MSG_DONTWAIT);
            if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
                if (n >= 0 && !peek) socket_counters_.came(came);
                return count_kernel_receive(n, r.flags);
            }
            errno = saved;
            kernel_side_.was_empty();
            if (queue_.size() != 0) continue;
        }
        if (!waits) {
            if (queue_.size() == 0) progress();  // the ring may not have been asked yet
            if (queue_.size() != 0) continue;
            return would_block();
        }
        if (rx_shut_.load(std::memory_order_acquire)) return 0;
        switch (waiting->next(rings ? params.rx_poll : params.rx_poll_init)) {
            case Waiting::Next::poll:
                waiting->pause(time);
                continue;
            case Waiting::Next::interrupted:
                errno = -waiting->error();
                return -1;
            case Waiting::Next::late:
                return would_block();
            case Waiting::Next::sleep:
                break;
        }
        {
            time.stop();
            runtime::SignalHold hold;  // released last, see Sleep
            if (!waiting->interrupted() && !sleep(fd, waiting->deadline, hold.original(), edges)) return -1;
        }
        waiting->spins = 0;
        came = stats::Arrived::slept;
        woken = true;  // perhaps by the kernel's side
    }
}

UdpSocket::ShadowEdges::ShadowEdges(int shadow) noexcept
    : set_(static_cast<int>(os::raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC))) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    if (set_ && os::raw_syscall(SYS_epoll_ctl, set_.get(), EPOLL_CTL_ADD, shadow, &event) != 0) set_.reset();
    take();
}

void UdpSocket::ShadowEdges::take() noexcept {
    epoll_event event;
    if (set_) os::raw_syscall(SYS_epoll_pwait, set_.get(), &event, 1, 0, nullptr, 8);
}

bool UdpSocket::sleep(int fd, clock::Time deadline, const sigset_t* mask, std::optional<ShadowEdges>& edges) {
    const bool by_edges = edges && edges->fd() >= 0;
    auto done = [this] {
        return queue_.size() != 0 || closed() || rx_shut_.load(std::memory_order_acquire) || Verdicts::due();
    };
    Sleep sleep(*this, by_edges ? edges->fd() : fd);
    do {
        sleep.arm();
        // A datagram that came before the waiter was in place must not be slept through.
        progress();
        if (done()) return true;
        if (const int error = sleep.run(deadline, mask); error == -EAGAIN) {
            if (queue_.size() != 0) return true;
            would_block();
            return false;
        } else if (error != 0) {
            errno = -error;
            return false;
        }
        if (const short events = sleep.fd_events(); events != 0) {
            // Before the look at the shadow that follows.
            if (by_edges)
                edges->take();
            else if ((events & (POLLERR | POLLIN)) == POLLERR)
                edges.emplace(fd);
            return true;
        }
    } while (!done() && sleep.goes_on());
    return true;
}

void UdpSocket::kernel_answered(int fd, stats::TrafficPath way, ssize_t result, int flags) noexcept {
    way == stats::TrafficPath::rx_os ? (void)count_kernel_receive(result, flags)
                                     : note_kernel_send(fd, flags, result);
}

ssize_t UdpSocket::count_kernel_receive(ssize_t result, int flags) noexcept {
    if (result >= 0 && (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return result;
    if (result < 0 && errno == runtime::kAskKernel) return result;
    socket_counters_.result(stats::TrafficPath::rx_os, result >= 0 ? result : -errno);
    return result;
}

int UdpSocket::count_kernel_receive(int result, const mmsghdr* msgs, int flags) noexcept {
    if (result < 0) return static_cast<int>(count_kernel_receive(static_cast<ssize_t>(result), flags));
    for (int i = 0; i < result; i++) count_kernel_receive(static_cast<ssize_t>(msgs[i].msg_len), flags);
    return result;
}

// ---- calls ----

ssize_t UdpSocket::recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    if (place_.strayed(RingPlace::Way::rx)) move_ring();
    if (kernel_receives(flags))
        return count_kernel_receive(Socket::recvfrom(fd, buf, len, flags, addr, alen), flags);
    iovec iov{buf, len};
    msghdr msg{};
    // A missing or negative length is noticed after the datagram was taken, as in the kernel.
    const int name_error = addr == nullptr                             ? 0
                           : !UserMemory::writable(alen, sizeof *alen) ? EFAULT
                           : static_cast<int>(*alen) < 0               ? EINVAL
                                                                       : 0;
    if (addr != nullptr && name_error == 0) {
        msg.msg_name = addr;
        msg.msg_namelen = *alen;
    }
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    Receive r{&iov, 1, flags, &msg};
    ssize_t n = receive(fd, r);
    if (n >= 0 && name_error != 0) {
        errno = name_error;
        return -1;
    }
    if (n >= 0 && addr != nullptr) *alen = msg.msg_namelen;
    return n;
}

ssize_t UdpSocket::recvmsg(int fd, msghdr* msg, int flags) {
    if (place_.strayed(RingPlace::Way::rx)) move_ring();
    if (kernel_receives(flags) || !UserMemory::writable(msg, sizeof *msg) || vectors_error(*msg) != 0 ||
        static_cast<int>(msg->msg_namelen) < 0)
        return count_kernel_receive(Socket::recvmsg(fd, msg, flags), flags);
    Receive r{msg->msg_iov, msg->msg_iovlen, flags, msg};
    return receive(fd, r);
}

int UdpSocket::recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
    if (kernel_receives(flags))
        return count_kernel_receive(Socket::recvmmsg(fd, msgs, count, flags, timeout), msgs, flags);
    return receive_many(
        msgs, count, flags, timeout, [&](msghdr* msg, int how) { return recvmsg(fd, msg, how); },
        [&](int error) { pending_error_.store(error); });
}

}  // namespace vma::sockets
