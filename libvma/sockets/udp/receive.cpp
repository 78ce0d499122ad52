// SPDX-License-Identifier: BSD-2-Clause
// Receiving on a UDP socket: the queue, the kernel's side, spinning, sleeping, control messages.
//
// A datagram may come from the ring or from the shadow (fragments, loopback, foreign interfaces, everything
// before the rules were in place). The queue is asked first; the kernel's side is asked in the proportion
// VMA_RX_UDP_POLL_OS_RATIO while spinning, at once after anything in this process was sent through the
// kernel, and always before sleeping. Its answer then is the call's answer, so errors, shutdown and
// everything unusual are the kernel's own.
#include <limits.h>
#include <linux/errqueue.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signal_hold.h"
#include "libvma/runtime/signals.h"
#include "libvma/runtime/spin.h"
#include "libvma/sockets/cmsg.h"
#include "libvma/sockets/many_messages.h"
#include "libvma/sockets/ring_watch.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/udp_socket.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

std::atomic<std::uint32_t> g_kernel_sends{0};

namespace {

// What one queued datagram costs beside its payload. The kernel charges its buffers (768 bytes and more for a
// small datagram); ours are larger still, but a program's SO_RCVBUF is meant in the kernel's currency.
constexpr std::uint64_t kDatagramCost = 256;
constexpr std::uint64_t kKernelLookUsec =
    10;  // a call that finds nothing looks at the kernel's side if the last look is older

}  // namespace

// ---- arrival ----

// Without what is charged for each datagram. With queue_lock_ held.
std::uint64_t UdpSocket::queued_payload() const noexcept {
    return queued_bytes_ - std::uint64_t{queued_.load(std::memory_order_relaxed)} * kDatagramCost;
}

bool UdpSocket::deliver(ring::RxBuffer* b) noexcept {
    if (closed_.load(std::memory_order_acquire)) return false;
    const std::uint64_t cost = b->payload_length + kDatagramCost;
    queue_lock_.lock();
    if (queued_bytes_ + cost > queue_limit_.load(std::memory_order_relaxed) && head_ != nullptr) {
        drops_++;
        tally_.dropped(b->payload_length);
        queue_lock_.unlock();
        return false;
    }
    // What is unread for long must not keep the ring's buffers: others receive into them.
    if (b->ring->should_copy(queued_.load(std::memory_order_relaxed))) {
        ring::RxBuffer* copy = b->ring->swap_for_copy(b, queued_bytes_);
        if (copy == nullptr) {
            drops_++;
            tally_.dropped(b->payload_length);
            queue_lock_.unlock();
            return false;
        }
        b = copy;
    }
    b->drops_before = drops_;
    b->next = nullptr;
    if (tail_ != nullptr)
        tail_->next = b;
    else
        head_ = b;
    tail_ = b;
    queued_bytes_ += cost;
    queued_.store(queued_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    arrivals_.store(arrivals_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    tally_.queued(queued_.load(std::memory_order_relaxed), queued_payload());
    if (!waiters_.empty()) waiters_.signal_all();
    hooks_.wake_all(kWakeIn);
    queue_lock_.unlock();
    return true;
}

ring::RxBuffer* UdpSocket::pop(bool count) noexcept {
    queue_lock_.lock();
    ring::RxBuffer* b = head_;
    if (b != nullptr) {
        head_ = b->next;
        if (head_ == nullptr) tail_ = nullptr;
        b->next = nullptr;
        queued_bytes_ -= b->payload_length + kDatagramCost;
        if (count) tally_.moved(stats::Way::rx_offload, b->payload_length, true);
        queued_.store(queued_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
        // The last one of a socket left to the kernel: from here on its readiness is the kernel's.
        if (head_ == nullptr && ring_count_.load(std::memory_order_relaxed) == 0) hooks_.wake_all(0);
    }
    queue_lock_.unlock();
    return b;
}

// In order, and behind what the kernel has got since the rules went: datagrams have no order.
void UdpSocket::give_queue_to_kernel() noexcept {
    if (queue_lock_.owned_by_me()) return;
    while (ring::RxBuffer* b = pop(false)) {
        if (b->ring->give_back(*b)) {
            b->release();
            continue;
        }
        // Our receive calls still deliver it.
        queue_lock_.lock();
        b->next = head_;
        head_ = b;
        if (tail_ == nullptr) tail_ = b;
        queued_bytes_ += b->payload_length + kDatagramCost;
        queued_.store(queued_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        queue_lock_.unlock();
        return;
    }
}

unsigned UdpSocket::progress() noexcept {
    // One poll takes one batch, and all of it may be other sockets'. "Nothing there" may be said only of an
    // empty ring.
    constexpr unsigned kMaxRounds = 1024;
    unsigned n = 0, round = 0, taken;
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    do {
        taken = 0;
        for (unsigned i = 0; i < count; i++) taken += rings_[i].load(std::memory_order_relaxed)->poll();
        n += taken;
    } while (taken != 0 && queued() == 0 && ++round < kMaxRounds);
    return n;
}

// One batch, although there is something queued.
void UdpSocket::drain() noexcept {
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) rings_[i].load(std::memory_order_relaxed)->poll();
}

void UdpSocket::flush() noexcept {
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++) rings_[i].load(std::memory_order_relaxed)->flush();
}

unsigned UdpSocket::arm(int* fds, unsigned room) noexcept {
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    unsigned n = 0;
    for (unsigned i = 0; i < count && n < room; i++) {
        ring::Ring* ring = rings_[i].load(std::memory_order_relaxed);
        ring->arm();
        fds[n++] = ring->channel_fd();
    }
    return n;
}

bool UdpSocket::add_waiter(Waiter* waiter) noexcept {
    queue_lock_.lock();
    bool added = waiters_.add(waiter);
    queue_lock_.unlock();
    return added;
}

void UdpSocket::remove_waiter(Waiter* waiter) noexcept {
    queue_lock_.lock();
    waiters_.remove(waiter);
    queue_lock_.unlock();
}

bool UdpSocket::subscribe(ReadyHook* hook) noexcept {
    if (queue_lock_.owned_by_me()) return false;
    queue_lock_.lock();
    hooks_.add(hook);
    queue_lock_.unlock();
    return true;
}

bool UdpSocket::unsubscribe(ReadyHook* hook) noexcept {
    if (queue_lock_.owned_by_me()) return false;
    queue_lock_.lock();
    hooks_.remove(hook);
    queue_lock_.unlock();
    return true;
}

unsigned UdpSocket::rings(ring::Ring** out, unsigned room) const noexcept {
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count && i < room; i++) out[i] = rings_[i].load(std::memory_order_relaxed);
    return count;
}

// ---- one datagram to the caller ----

void UdpSocket::put_control(const ring::RxBuffer& b, msghdr& msg) noexcept {
    const unsigned wanted = control_wanted_.load(std::memory_order_relaxed);
    CmsgWriter out(msg);
    if (wanted == 0) return;
    // The kernel's order: socket level first, then the IP level by option.
    if (wanted & (timestamp | timestampns | timestamping | timestamping_device)) {
        timespec when{b.timestamp_ns / 1'000'000'000, b.timestamp_ns % 1'000'000'000};
        // It came before anybody asked for time stamps; like the kernel, take the time of asking.
        if (b.timestamp_ns == 0) clock_gettime(CLOCK_REALTIME, &when);
        if (wanted & timestampns) {
            out.put(SOL_SOCKET, SO_TIMESTAMPNS, &when, sizeof when);
        } else if (wanted & timestamp) {
            timeval tv{when.tv_sec, when.tv_nsec / 1000};
            out.put(SOL_SOCKET, SO_TIMESTAMP, &tv, sizeof tv);
        }
        // As the kernel, it says what there is: where the device has no time, only the first is set, or there
        // is no message at all.
        const bool by_device = (wanted & timestamping_device) && b.timestamp_ns != 0 && b.device_ns != 0;
        if ((wanted & timestamping) || by_device) {
            scm_timestamping stamps{};
            if (wanted & timestamping) std::memcpy(&stamps.ts[0], &when, sizeof when);
            if (by_device) {
                const timespec at{static_cast<time_t>(b.device_ns / 1'000'000'000),
                                  static_cast<long>(b.device_ns % 1'000'000'000)};
                std::memcpy(&stamps.ts[2], &at, sizeof at);
            }
            out.put(SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps);
        }
    }
    if ((wanted & rxq_ovfl) && b.drops_before != 0)
        out.put(SOL_SOCKET, SO_RXQ_OVFL, &b.drops_before, sizeof b.drops_before);
    if (wanted & pktinfo) {
        in_pktinfo info{};
        info.ipi_ifindex = b.ring->attr().ifindex;
        info.ipi_spec_dst.s_addr = b.dst_addr;
        info.ipi_addr.s_addr = b.dst_addr;
        out.put(IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    }
    if (wanted & recvttl) {
        int ttl = b.ttl;
        out.put(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
    }
    if (wanted & recvtos) out.put(IPPROTO_IP, IP_TOS, &b.tos, sizeof b.tos);
    if (wanted & origdst) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = b.dst_addr;
        to.sin_port = b.dst_port;
        out.put(IPPROTO_IP, IP_ORIGDSTADDR, &to, sizeof to);
    }
}

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
        sockaddr_in from{};
        from.sin_family = AF_INET;
        from.sin_addr.s_addr = b->src_addr;
        from.sin_port = b->src_port;
        if (!UserMemory::writable(msg.msg_name, std::min<std::size_t>(msg.msg_namelen, sizeof from))) {
            errno = EFAULT;
            return -1;
        }
        std::memcpy(msg.msg_name, &from, std::min<std::size_t>(msg.msg_namelen, sizeof from));
        msg.msg_namelen = sizeof from;
    } else {
        msg.msg_namelen = 0;
    }
    put_control(*b, msg);
    return static_cast<ssize_t>(r.flags & MSG_TRUNC ? b->payload_length : copied);
}

// A signal handler that interrupted this thread while it held a lock we need: only the kernel's side can be
// served.
bool UdpSocket::interrupted_library_code() const noexcept {
    if (queue_lock_.owned_by_me()) return true;
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (rings_[i].load(std::memory_order_relaxed)->rx_owned_by_me()) return true;
    return false;
}

bool UdpSocket::kernel_receives(int flags) const noexcept {
    if (offloaded()) return false;
    return left_.load(std::memory_order_relaxed) || (flags & MSG_DONTWAIT) ||
           nonblock_.load(std::memory_order_relaxed);
}

bool UdpSocket::kernel_side_due() noexcept {
    if (shadow_event_.load(std::memory_order_acquire)) return true;
    std::uint32_t left = os_polls_left_.load(std::memory_order_relaxed);
    if (left == 0) return false;  // VMA_RX_UDP_POLL_OS_RATIO is 0
    os_polls_left_.store(left - 1, std::memory_order_relaxed);
    return left == 1;
}

ssize_t UdpSocket::receive(int fd, Receive& r) {
    const config::Params& params = config::get();
    const bool nonblock = (r.flags & MSG_DONTWAIT) || nonblock_.load(std::memory_order_relaxed);
    // Other flags mean nothing to a UDP receive, in the kernel neither (MSG_OOB for one).
    if ((r.flags & MSG_ERRQUEUE) || interrupted_library_code())
        return count_kernel_receive(os::recvmsg(fd, r.msg, r.flags), r.flags);
    if (pending_error_.load(std::memory_order_relaxed) != 0)
        if (int error = pending_error_.exchange(0); error != 0) {
            errno = error;
            return -1;
        }
    const bool peek = r.flags & MSG_PEEK;
    std::uint64_t deadline = 0, spins = 0;
    std::uint32_t interruptions = 0, restarts = 0;
    bool first = true, woken = false;
    stats::Came came = stats::Came::there;
    PollTime time;
    std::optional<ShadowEdges> edges;
    for (;;) {
        // Without rings the kernel's side is all there is. It is still waited for here and not in a blocking
        // recv(), because another thread's bind, connect or send may put rules in place meanwhile.
        const bool rings = ring_count_.load(std::memory_order_acquire) != 0;
        bool look = kernel_side_due();
        if (!look) {
            if (queued() == 0) {
                if (came == stats::Came::there) came = stats::Came::polled;
                flush();
                progress();
            } else if (drain_rate_.due()) {
                drain();
            }
            if (queued() != 0) {
                if (peek) {
                    queue_lock_.lock();
                    ssize_t n = -1;
                    bool have = head_ != nullptr;
                    if (have) n = finish(head_, r);
                    queue_lock_.unlock();
                    if (have) return n;
                } else if (ring::RxBuffer* b = pop()) {
                    tally_.came(came);
                    ssize_t n = finish(b, r);
                    b->release();
                    return n;
                }
            }
        }
        look |= !rings || woken;
        woken = false;
        if (first) {
            first = false;
            interruptions = runtime::interruptions();
            restarts = runtime::restarts();
            if (std::uint64_t timeout = rcvtimeo_ns_.load(std::memory_order_relaxed);
                timeout != 0 && !nonblock)
                deadline = clock::monotonic_ns() + timeout;
            // A call that waits looks there while it polls, and its sleep ends when something is there.
            look |= g_kernel_sends.load(std::memory_order_relaxed) != kernel_sends_seen_ ||
                    ((nonblock || params.rx_udp_poll_os_ratio == 0) &&
                     clock::ticks() - os_polled_at_.load(std::memory_order_relaxed) >
                         kKernelLookUsec * clock::ticks_per_usec());
        }
        if (closed_.load(std::memory_order_acquire)) {
            errno = EBADF;
            return -1;
        }
        if (look) {
            shadow_event_.store(false, std::memory_order_relaxed);
            kernel_sends_seen_ = g_kernel_sends.load(std::memory_order_relaxed);
            os_polls_left_.store(static_cast<std::uint32_t>(params.rx_udp_poll_os_ratio),
                                 std::memory_order_relaxed);
            int saved = errno;
            ssize_t n = os::recvmsg(fd, r.msg, r.flags | MSG_DONTWAIT);
            if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
                if (n >= 0 && !peek) tally_.came(came);
                return count_kernel_receive(n, r.flags);
            }
            errno = saved;
            os_polled_at_.store(clock::ticks(), std::memory_order_relaxed);
            if (queued() != 0) continue;
        }
        if (nonblock) {
            if (queued() == 0) progress();  // the ring may not have been asked yet
            if (queued() != 0) continue;
            tally_.eagain(rings ? stats::Way::rx_offload : stats::Way::rx_os);
            errno = EAGAIN;
            return -1;
        }
        if (rx_shut_.load(std::memory_order_acquire)) return 0;
        if (runtime::pending() || runtime::interruptions() != interruptions ||
            (deadline != 0 && runtime::restarts() != restarts)) {
            errno = runtime::pending() && deadline == 0 ? runtime::kRestart : EINTR;  // see signal(7)
            return -1;
        }
        spins++;
        if (deadline != 0 && (spins & 63) == 0 && clock::monotonic_ns() >= deadline) {
            tally_.eagain(rings ? stats::Way::rx_offload : stats::Way::rx_os);
            errno = EAGAIN;
            return -1;
        }
        if (const std::int64_t limit = rings ? params.rx_poll : params.rx_poll_init;
            limit < 0 || spins < static_cast<std::uint64_t>(limit)) {
            time.round();
            params.rx_poll_yield != 0 ? yield_core() : spin_wait(spins);
            continue;
        }
        {
            time.stop();
            runtime::SignalHold
                hold;  // released last, so that a handler finds no lock or list of ours in use
            if (!runtime::pending() && runtime::interruptions() == interruptions &&
                (deadline == 0 || runtime::restarts() == restarts) &&
                !sleep(fd, deadline, hold.original(), edges))
                return -1;
        }
        spins = 0;
        came = stats::Came::slept;
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

bool UdpSocket::sleep(int fd, std::uint64_t deadline, const sigset_t* mask,
                      std::optional<ShadowEdges>& edges) {
    pollfd fds[2 + kMaxRings];
    const bool by_edges = edges && edges->fd() >= 0;
    Waiter* waiter = Waiter::mine();
    bool sure_to_wake = false;
    struct Waiting {
        UdpSocket* socket;
        Waiter* waiter;
        ~Waiting() {
            if (waiter != nullptr) socket->remove_waiter(waiter);
        }
    } waiting{this, waiter};
    if (waiter != nullptr) {
        waiter->clear();
        sure_to_wake = add_waiter(waiter);
    }
    ring::Ring* watched[kMaxRings];
    RingWatch watch(sure_to_wake ? waiter : nullptr, watched, rings(watched, kMaxRings));
    auto done = [this] {
        return queued() != 0 || closed_.load(std::memory_order_acquire) ||
               rx_shut_.load(std::memory_order_acquire);
    };
    int saved = errno;
    for (;;) {
        nfds_t n = 0;
        fds[n++] = {by_edges ? edges->fd() : fd, POLLIN, 0};
        if (waiter != nullptr) fds[n++] = {waiter->fd(), POLLIN, 0};
        n += watch.arm(fds + n);
        // A datagram that came before the waiter was in place must not be slept through.
        flush();
        progress();
        if (done()) return true;
        timespec limit{}, *timeout = nullptr;
        if (deadline != 0 || !sure_to_wake) {
            std::uint64_t now = clock::monotonic_ns();
            std::uint64_t left = deadline == 0 ? ~std::uint64_t{0} : deadline > now ? deadline - now : 0;
            if (!sure_to_wake) left = std::min<std::uint64_t>(left, 1'000'000);
            limit = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
            timeout = &limit;
        }
        const int r = os::ppoll(fds, n, timeout, mask);
        if (r < 0 && errno != EINTR) return false;
        // Handlers that were installed past our sigaction() are not counted; the first signal brings them
        // behind ours.
        if (r < 0 && runtime::signals::adopt_new()) {
            errno = EINTR;
            return false;
        }
        errno = saved;
        if (r == 0 && deadline != 0 && clock::monotonic_ns() >= deadline) {
            progress();
            if (queued() != 0) return true;
            tally_.eagain(ring_count_.load(std::memory_order_relaxed) != 0 ? stats::Way::rx_offload
                                                                           : stats::Way::rx_os);
            errno = EAGAIN;
            return false;
        }
        if (r <= 0) return true;
        if (by_edges && fds[0].revents != 0) edges->take();
        // Before the look at the shadow that follows.
        if (!by_edges && (fds[0].revents & (POLLERR | POLLIN)) == POLLERR) edges.emplace(fd);
        watch.woken();
        if (fds[0].revents != 0 || done() || !watch.sleeps_on(waiter != nullptr ? fds[1].revents : short{0}))
            return true;
    }
}

void UdpSocket::kernel_answered(int fd, stats::Way way, ssize_t result, int flags) noexcept {
    way == stats::Way::rx_os ? (void)count_kernel_receive(result, flags)
                             : note_kernel_send(fd, flags, result);
}

ssize_t UdpSocket::count_kernel_receive(ssize_t result, int flags) noexcept {
    if (result >= 0 && (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return result;
    if (result < 0 && errno == runtime::kAskKernel) return result;
    tally_.result(stats::Way::rx_os, result >= 0 ? result : -errno);
    return result;
}

int UdpSocket::count_kernel_receive(int result, const mmsghdr* msgs, int flags) noexcept {
    if (result < 0) return static_cast<int>(count_kernel_receive(static_cast<ssize_t>(result), flags));
    for (int i = 0; i < result; i++) count_kernel_receive(static_cast<ssize_t>(msgs[i].msg_len), flags);
    return result;
}

// ---- calls ----

ssize_t UdpSocket::recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
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
