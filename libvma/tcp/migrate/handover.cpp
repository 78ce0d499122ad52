// SPDX-License-Identifier: BSD-2-Clause
// See handover.h. The order of the steps is the kernel's: sequence numbers only while closed, options only
// before the first byte is queued, windows after the receive queue, bytes that were never sent only outside
// of repair mode.
//
// That last point would make a failure visible, because outside of repair mode the kernel sends. So until the
// last byte is queued the socket believes the peer's window to be zero, and every failure can still be undone
// in silence.
#include "libvma/tcp/migrate/handover.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"

namespace vma::tcp {
namespace {

using OwnFin = KernelState::OwnFin;

// All calls below return what the kernel returns: -errno on failure.
template <class T>
long set(int fd, int level, int name, const T& value) noexcept {
    return os::raw_syscall(SYS_setsockopt, fd, level, name, &value, sizeof value);
}
template <class T>
long get(int fd, int level, int name, T& value) noexcept {
    socklen_t length = sizeof value;
    return os::raw_syscall(SYS_getsockopt, fd, level, name, &value, &length);
}

bool after(std::uint32_t a, std::uint32_t b) noexcept { return static_cast<std::int32_t>(a - b) > 0; }

std::size_t bytes(std::span<const iovec> queue) noexcept {
    std::size_t sum = 0;
    for (const iovec& piece : queue) sum += piece.iov_len;
    return sum;
}

std::unexpected<Error> refused(long result, const char* step) {
    return fail(static_cast<int>(-result),
                std::string("handing a TCP connection over to the kernel: ") + step);
}

long raw_socket() noexcept {
    return os::raw_syscall(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
}

// One that is kept for play(): the internal thread hands over, too, and a socket made there would hold the
// lowest free number, which a thread of the program may count on.
constinit NeverDestroyed<InternalFd> g_raw;
constinit int g_raw_number = -1;  // g_raw->get(); atomic

bool same_network(int a, int b) noexcept {
    std::uint64_t here = 0, there = 1;
    return get(a, SOL_SOCKET, SO_NETNS_COOKIE, here) >= 0 &&
           get(b, SOL_SOCKET, SO_NETNS_COOKIE, there) >= 0 && here == there;
}

// A place in a queue, moved on as the kernel takes bytes.
class Cursor {
  public:
    explicit Cursor(std::span<const iovec> queue) noexcept : queue_(queue) {}

    // The next pieces, at most `limit` bytes; how many pieces were written.
    std::size_t fill(std::span<iovec> out, std::size_t limit) const noexcept {
        std::size_t count = 0, skip = offset_;
        for (std::size_t i = at_; i < queue_.size() && count < out.size() && limit != 0; i++, skip = 0) {
            const std::size_t length = std::min(queue_[i].iov_len - skip, limit);
            if (length == 0) continue;
            out[count++] = {static_cast<char*>(queue_[i].iov_base) + skip, length};
            limit -= length;
        }
        return count;
    }
    void advance(std::size_t length) noexcept {
        while (at_ < queue_.size() && length >= queue_[at_].iov_len - offset_) {
            length -= queue_[at_++].iov_len - offset_;
            offset_ = 0;
        }
        offset_ += length;
    }

  private:
    std::span<const iovec> queue_;
    std::size_t at_ = 0, offset_ = 0;
};

// Lets a socket buffer hold `wanted` bytes for now, whatever the limits; then puts the program's own setting
// back.
class Buffer {
  public:
    Buffer(int fd, int name, int force) noexcept
        : fd_(fd), name_(name), force_(force), lock_(name == SO_SNDBUF ? 1 : 2) {}
    void make_room(std::size_t wanted) noexcept {
        if (!known_) {
            get(fd_, SOL_SOCKET, name_, before_);
            chosen_ = (locks() & lock_) != 0;
            known_ = true;
        }
        // The kernel doubles the number, for its own overhead, and so it does for this.
        wanted_ = static_cast<int>(std::min<std::size_t>(wanted + kOverhead, kMost));
        if (2 * static_cast<std::int64_t>(wanted_) > before_) set(fd_, SOL_SOCKET, force_, wanted_);
    }
    bool double_it() noexcept {
        if (static_cast<std::size_t>(wanted_) >= kMost) return false;
        make_room(2 * static_cast<std::size_t>(wanted_));
        return true;
    }
    // `grown`: leave the room, where the program has not chosen a size.
    void restore(bool grown) noexcept {
        if (!known_) return;
        if (chosen_ || !grown) set(fd_, SOL_SOCKET, force_, before_ / 2);
        // What we have set must not count as the program's choice: that would end the kernel's own tuning.
        if (!chosen_) set(fd_, SOL_SOCKET, SO_BUF_LOCK, locks() & ~lock_);
        known_ = false;
    }

  private:
    // A kernel that does not tell (before 5.15) has to be content with a size that is fixed from now on.
    int locks() const noexcept {
        int value = lock_;
        get(fd_, SOL_SOCKET, SO_BUF_LOCK, value);
        return value;
    }
    static constexpr std::size_t kOverhead = 128 << 10, kMost = 1 << 29;
    int fd_, name_, force_;
    int lock_;  // SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK
    int before_ = 0, wanted_ = 0;
    bool known_ = false, chosen_ = false;
};

// May this thread take a socket off the interface that it is bound to?
bool may_unbind() noexcept {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
    return os::raw_syscall(SYS_capget, &header, data.data()) >= 0 &&
           (data[0].effective & 1u << CAP_NET_RAW) != 0;
}

int kernel_state(int fd) noexcept {
    tcp_info info{};
    return get(fd, IPPROTO_TCP, TCP_INFO, info) < 0 ? -1 : info.tcpi_state;
}

class Handover {
  public:
    Handover(int fd, const KernelState& state, const std::function<void()>& unsteer) noexcept
        : fd_(fd),
          s_(state),
          unsteer_(unsteer),
          sent_(state.snd_nxt - state.snd_una),
          total_(bytes(state.send_queue)),
          received_(bytes(state.receive_queue)),
          to_send_(state.send_queue) {}

    Result<void> run() {
        if (auto ok = check(); !ok) return ok;
        if (s_.over) return install_over();
        measuring_ = s_.timestamps && s_.srtt != Usec::zero() &&
                     (total_ != 0 || s_.own_fin == OwnFin::wanted || s_.own_fin == OwnFin::sent);
        auto done = install();
        // Where our own segments do not get through (loopback is down, a packet filter), without a measured
        // time.
        if (!done && std::exchange(measuring_, false)) done = install();
        return done;
    }

  private:
    net::Endpoint name() const noexcept {
        sockaddr_in raw{};
        socklen_t length = sizeof raw;
        os::raw_syscall(SYS_getsockname, fd_, &raw, &length);
        return net::Endpoint(raw);
    }
    Result<void> install() {
        for (auto step :
             {&Handover::begin, &Handover::connect, &Handover::options, &Handover::received,
              &Handover::measure, &Handover::sent, &Handover::unsent, &Handover::fins, &Handover::go}) {
            if (auto ok = (this->*step)(); !ok) {
                undo();
                return ok;
            }
        }
        return {};
    }

    // A connection that a reset has just ended is what a program sees of one that has ended in any way.
    Result<void> install_over() {
        for (auto step : {&Handover::begin, &Handover::connect, &Handover::seclude, &Handover::options,
                          &Handover::received, &Handover::end}) {
            if (auto ok = (this->*step)(); !ok) {
                undo();
                return ok;
            }
        }
        unsteer_();
        release(true);
        return {};
    }

    // The connection has been over for long, and its numbers are made up. So the socket must neither hear its
    // peer nor acknowledge the FIN to it: the peer's kernel would answer each such ACK, and the socket would
    // answer back. On the loopback interface the socket meets nobody but play().
    Result<void> seclude() {
        own_interface_ = bound_interface();
        secluded_ = may_unbind() && bind_to_interface(kLoopback) >= 0;
        return {};
    }

    Result<void> end() {
        if (s_.peer_fin) play_peer_fin(s_.snd_una);
        const bool played = play(s_.rcv_nxt + (s_.peer_fin ? 1 : 0), 0, kRst) &&
                            delivered([this] { return kernel_state(fd_) == TCP_CLOSE; });
        if (!played) return refused(-EIO, "loopback");
        int taken;
        if (s_.error == 0) get(fd_, SOL_SOCKET, SO_ERROR, taken);
        return {};
    }

    Result<void> check() const {
        if (sent_ > total_) return refused(-EINVAL, "more was sent than is queued");
        if ((s_.own_fin == OwnFin::sent || s_.own_fin == OwnFin::acknowledged) && sent_ != total_)
            return refused(-EINVAL, "a FIN was sent before the data");
        if (s_.own_fin == OwnFin::acknowledged && total_ != 0)
            return refused(-EINVAL, "a FIN was acknowledged before the data");
        if (s_.snd_wscale > kMaxScale || s_.rcv_wscale > kMaxScale)
            return refused(-EINVAL, "window scale above 14");
        const int state = kernel_state(fd_);
        if (state < 0) return refused(-ENOTSOCK, "not a TCP socket");
        if (state != TCP_CLOSE) return refused(-EISCONN, "the socket is in use");
        return {};
    }

    Result<void> begin() {
        get(fd_, SOL_SOCKET, SO_REUSEADDR, reuse_);
        if (long r = repair(TCP_REPAIR_ON); r < 0) return refused(r, "TCP_REPAIR");
        set(fd_, IPPROTO_TCP, TCP_FASTOPEN_CONNECT,
            0);  // it would put the connection off until the first byte
        return {};
    }

    // After it the socket is ESTABLISHED, with empty queues that begin where ours do.
    Result<void> connect() {
        if (long r = queue(TCP_SEND_QUEUE); r < 0) return refused(r, "TCP_REPAIR_QUEUE");
        const std::uint32_t begin = s_.snd_una - (measuring_ ? 1 : 0);
        if (long r = set(fd_, IPPROTO_TCP, TCP_QUEUE_SEQ, begin); r < 0) return refused(r, "TCP_QUEUE_SEQ");
        if (long r = queue(TCP_RECV_QUEUE); r < 0) return refused(r, "TCP_REPAIR_QUEUE");
        const auto first = static_cast<std::uint32_t>(s_.rcv_nxt - received_);
        if (long r = set(fd_, IPPROTO_TCP, TCP_QUEUE_SEQ, first); r < 0) return refused(r, "TCP_QUEUE_SEQ");

        // What the peer may still send into our last window must find room, so before connect() looks at the
        // buffer.
        receive_.make_room(received_ + s_.rcv_wnd);
        send_.make_room(total_);

        // Repair mode ignores all conflicts, with a listener on this port above all.
        const net::SocketName local(s_.ends.local), remote(s_.ends.remote);
        const in_port_t bound = name().port;
        if (bound == 0) {
            if (long r = os::raw_syscall(SYS_bind, fd_, local.get(), local.size()); r < 0)
                return refused(r, "bind");
        } else if (bound != s_.ends.local.port) {
            return refused(-EINVAL, "the socket is bound to another port");
        }
        if (long r = os::raw_syscall(SYS_connect, fd_, remote.get(), remote.size()); r < 0)
            return refused(r, "connect");
        connected_ = true;
        // Bound to INADDR_ANY, the routes have chosen the address.
        if (name().address != s_.ends.local.address)
            return refused(-EADDRNOTAVAIL, "the routes lead from another address now");
        return {};
    }

    Result<void> options() {
        std::array<tcp_repair_opt, 4> list{};
        std::size_t count = 0;
        list[count++] = {TCPOPT_MAXSEG, s_.mss};
        // Always, for without it the kernel would scale as it would have proposed to.
        const std::uint32_t snd = s_.window_scaling ? s_.snd_wscale : 0,
                            rcv = s_.window_scaling ? s_.rcv_wscale : 0;
        list[count++] = {TCPOPT_WINDOW, snd | rcv << 16};
        if (s_.sack) list[count++] = {TCPOPT_SACK_PERMITTED, 0};
        if (s_.timestamps) list[count++] = {TCPOPT_TIMESTAMP, 0};
        long r = os::raw_syscall(SYS_setsockopt, fd_, IPPROTO_TCP, TCP_REPAIR_OPTIONS, list.data(),
                                 count * sizeof list[0]);
        if (r < 0) return refused(r, "TCP_REPAIR_OPTIONS");
        if (s_.timestamps)
            if (r = set(fd_, IPPROTO_TCP, TCP_TIMESTAMP, own_time()); r < 0)
                return refused(r, "TCP_TIMESTAMP");
        // The segment size follows the MSS only when something makes the kernel compute it again: setting the
        // IP options to what they are does.
        std::array<std::uint8_t, 40> ip{};
        socklen_t length = ip.size();
        if (os::raw_syscall(SYS_getsockopt, fd_, IPPROTO_IP, IP_OPTIONS, ip.data(), &length) >= 0)
            os::raw_syscall(SYS_setsockopt, fd_, IPPROTO_IP, IP_OPTIONS, ip.data(), length);
        return {};
    }

    Result<void> received() {
        Cursor from(s_.receive_queue);
        if (auto ok = push(from, received_, receive_, "the receive queue"); !ok) return ok;
        if (auto ok = window(s_.snd_wnd); !ok) return ok;
        if (long r = queue(TCP_SEND_QUEUE); r < 0) return refused(r, "TCP_REPAIR_QUEUE");
        return {};
    }

    // The peer has long acknowledged the byte before the send queue, so what it is does not matter.
    Result<void> measure() {
        if (!measuring_) return {};
        char byte = 0;
        const iovec one{&byte, 1};
        Cursor from({&one, 1});
        if (auto ok = push(from, 1, send_, "the send queue"); !ok) return ok;
        const Msec trip = std::max(std::chrono::duration_cast<Msec>(s_.srtt), Msec(1));
        const bool played =
            play(s_.rcv_nxt, s_.snd_una, kAck, own_time() - trip.count()) && delivered([this] {
                int waiting = 1;
                os::raw_syscall(SYS_ioctl, fd_, SIOCOUTQ, &waiting);
                return waiting == 0;
            });
        return played ? Result<void>{} : refused(-EIO, "loopback");
    }

    // In this mode everything counts as sent.
    Result<void> sent() {
        if (auto ok = push(to_send_, sent_, send_, "the send queue"); !ok) return ok;
        return sent_ == total_ ? Result<void>{} : window(0);
    }

    // Queued while the window is closed, so that nothing leaves yet.
    Result<void> unsent() {
        if (sent_ == total_) return {};
        if (long r = repair(TCP_REPAIR_OFF_NO_WP); r < 0) return refused(r, "TCP_REPAIR");
        if (auto ok = push(to_send_, total_ - sent_, send_, "the unsent data"); !ok) return ok;
        if (long r = repair(TCP_REPAIR_ON); r < 0) return refused(r, "TCP_REPAIR");
        return window(s_.snd_wnd);
    }

    // FINs of the past, in the order in which they were.
    Result<void> fins() {
        const bool sent = s_.own_fin == OwnFin::sent || s_.own_fin == OwnFin::acknowledged;
        if (s_.peer_fin && (s_.peer_fin_first || !sent)) play_peer_fin(s_.snd_una);
        if (!sent) return {};
        // With the send queue under repair, a FIN counts as sent like the data.
        if (long r = queue(TCP_SEND_QUEUE); r < 0) return refused(r, "TCP_REPAIR_QUEUE");
        if (long r = os::raw_syscall(SYS_shutdown, fd_, SHUT_WR); r < 0) return refused(r, "shutdown");
        const std::uint32_t acknowledged = s_.snd_una + (s_.own_fin == OwnFin::acknowledged ? 1 : 0);
        if (s_.peer_fin && !s_.peer_fin_first) return play_peer_fin(acknowledged), Result<void>{};
        // If this one gets lost, the kernel repeats the FIN some day and the peer acknowledges it again.
        if (s_.own_fin == OwnFin::acknowledged) play(s_.rcv_nxt + (s_.peer_fin ? 1 : 0), acknowledged, kAck);
        return {};
    }

    // Everything is in place: the kernel takes over.
    Result<void> go() {
        if (long r = repair(TCP_REPAIR_OFF_NO_WP); r < 0) return refused(r, "TCP_REPAIR");
        unsteer_();
        // Leaving repair mode once more sends the window probe, now that its answer can reach the kernel.
        if (repair(TCP_REPAIR_ON) >= 0) repair(TCP_REPAIR_OFF);
        receive_.restore(true);
        send_.restore(false);
        if (s_.read_shut) os::raw_syscall(SYS_shutdown, fd_, SHUT_RD);
        if (s_.own_fin == OwnFin::wanted)
            os::raw_syscall(SYS_shutdown, fd_, SHUT_WR);
        else if (sent_ != total_)
            start_sending();
        return {};
    }

    // Opening the window by hand has started nothing. Setting TCP_NODELAY does; then the program's own
    // setting.
    void start_sending() noexcept {
        int nodelay = 0;
        get(fd_, IPPROTO_TCP, TCP_NODELAY, nodelay);
        set(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
        if (nodelay == 0) set(fd_, IPPROTO_TCP, TCP_NODELAY, 0);
    }

    // Disconnecting in repair mode sends nothing.
    void undo() noexcept {
        to_send_ = Cursor(s_.send_queue);
        if (std::exchange(connected_, false)) {
            repair(TCP_REPAIR_ON);
            sockaddr nobody{};
            nobody.sa_family = AF_UNSPEC;
            os::raw_syscall(SYS_connect, fd_, &nobody, sizeof nobody);
            int error;
            get(fd_, SOL_SOCKET, SO_ERROR, error);
        }
        release(false);
    }

    // Leaves repair mode, and takes back what was for the time of the move. `grown`: see Buffer::restore().
    void release(bool grown) noexcept {
        if (std::exchange(secluded_, false)) bind_to_interface(own_interface_);
        repair(TCP_REPAIR_OFF_NO_WP);
        receive_.restore(grown);
        send_.restore(false);
    }

    // Even: an odd value asks the kernel to count in microseconds. Ahead by one at most, and never behind.
    std::uint32_t own_time() const noexcept { return (s_.ts_value + 1) & ~1u; }
    // Repair mode uses SO_REUSEADDR for itself and leaves it cleared. It is restored before a frame can reach
    // the socket, since what the connection becomes then, TIME_WAIT for one, keeps it as it is.
    long repair(int mode) const noexcept {
        const long r = set(fd_, IPPROTO_TCP, TCP_REPAIR, mode);
        if (mode != TCP_REPAIR_ON) set(fd_, SOL_SOCKET, SO_REUSEADDR, reuse_);
        return r;
    }
    long queue(int which) const noexcept { return set(fd_, IPPROTO_TCP, TCP_REPAIR_QUEUE, which); }
    // The interface that the socket is bound to; 0: none.
    int bound_interface() const noexcept {
        int index = 0;
        get(fd_, SOL_SOCKET, SO_BINDTOIFINDEX, index);
        return index;
    }
    long bind_to_interface(int index) const noexcept { return set(fd_, SOL_SOCKET, SO_BINDTOIFINDEX, index); }

    Result<void> window(std::uint32_t snd_wnd) {
        // A window announced with the acknowledgement of a FIN began one further.
        const std::uint32_t edge = s_.rcv_wup + s_.rcv_wnd;
        const std::uint32_t from = after(s_.rcv_wup, s_.rcv_nxt) ? s_.rcv_nxt : s_.rcv_wup;
        tcp_repair_window w{};
        w.snd_wl1 = s_.snd_wl1;
        w.snd_wnd = snd_wnd;
        w.max_window = std::max(s_.max_window, s_.snd_wnd);
        w.rcv_wnd = edge - from;
        w.rcv_wup = from;
        if (long r = set(fd_, IPPROTO_TCP, TCP_REPAIR_WINDOW, w); r < 0)
            return refused(r, "TCP_REPAIR_WINDOW");
        return {};
    }

    Result<void> push(Cursor& from, std::size_t length, Buffer& room, const char* what) {
        while (length != 0) {
            // Small enough that the kernel finds memory for each step.
            std::array<iovec, 64> pieces;
            msghdr message{};
            message.msg_iov = pieces.data();
            message.msg_iovlen = from.fill(pieces, std::min<std::size_t>(length, 64 << 10));
            long r = os::raw_syscall(SYS_sendmsg, fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (r > 0) {
                from.advance(static_cast<std::size_t>(r));
                length -= static_cast<std::size_t>(r);
            } else if (r != -EINTR &&
                       !((r == -EAGAIN || r == -ENOMEM || r == -ENOBUFS) && room.double_it())) {
                return refused(r == 0 ? -EIO : r, what);
            }
        }
        return {};
    }

    void play_peer_fin(std::uint32_t ack) noexcept {
        const int before = kernel_state(fd_);
        if (play(s_.rcv_nxt, ack, kFin | kAck) && delivered([&] { return kernel_state(fd_) != before; }))
            return;
        // At least the program sees the end of the stream. The peer has sent its last byte already.
        log::debug("the kernel did not take a FIN received earlier; its connection stays half open");
        os::raw_syscall(SYS_shutdown, fd_, SHUT_RD);
    }

    // A segment on loopback is delivered before the send call returns, unless the kernel's packet thread is
    // busy.
    template <class Condition>
    static bool delivered(Condition reached) noexcept {
        for (int i = 0; i < 20; i++) {
            if (reached()) return true;
            timespec pause{0, 1'000'000};
            os::raw_syscall(SYS_nanosleep, &pause, nullptr);
        }
        return false;
    }

    // Gives the kernel's socket a segment from the peer, over loopback. It finds the socket by its four
    // numbers; were it bound to another interface, it would not, and the kernel would send a reset. No
    // `echo`: no round trip time is taken. False when nothing was sent.
    bool play(std::uint32_t seq, std::uint32_t ack, std::uint8_t flags, std::uint32_t echo = 0) noexcept {
        int out = std::atomic_ref(g_raw_number).load(std::memory_order_relaxed), made = -1;
        if (out < 0 || !same_network(out, fd_)) out = made = static_cast<int>(std::max(raw_socket(), -1L));
        bool done = false;
        if (out >= 0 && same_network(out, fd_)) {
            const int interface = secluded_ ? 0 : bound_interface();
            if (interface == 0 || bind_to_interface(0) >= 0) {
                done = send_by_loopback(out, make(seq, ack, flags, echo));
                if (interface != 0) bind_to_interface(interface);
            }
        }
        if (made >= 0) os::raw_syscall(SYS_close, made);
        return done;
    }

    struct Segment {
        std::array<std::uint8_t, sizeof(net::Ipv4Header) + 20 + 12> data{};
        std::size_t length = 0;
    };
    // By the routes it would come as if from the interface that has the address. A secluded socket does not
    // hear that.
    bool send_by_loopback(int out, Segment segment) const noexcept {
        const net::SocketName to({s_.ends.local.address, 0});
        iovec all{segment.data.data(), segment.length};
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(in_pktinfo))> route{};
        msghdr message{const_cast<sockaddr*>(to.get()), to.size(), &all, 1, route.data(), route.size(), 0};
        const cmsghdr head{CMSG_LEN(sizeof(in_pktinfo)), IPPROTO_IP, IP_PKTINFO};
        const in_pktinfo info{kLoopback, {}, {}};
        std::memcpy(route.data(), &head, sizeof head);
        std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &info, sizeof info);
        if (!secluded_) message.msg_controllen = 0;
        return os::raw_syscall(SYS_sendmsg, out, &message, MSG_DONTWAIT) > 0;
    }
    Segment make(std::uint32_t seq, std::uint32_t ack, std::uint8_t flags,
                 std::uint32_t echo) const noexcept {
        Segment segment;
        tcphdr tcp{};
        std::size_t tcp_length = sizeof tcp + (s_.timestamps ? 12 : 0);
        tcp.source = s_.ends.remote.port;
        tcp.dest = s_.ends.local.port;
        tcp.seq = htonl(seq);
        tcp.ack_seq = htonl(ack);
        tcp.doff = static_cast<std::uint16_t>(tcp_length / 4) & 15u;
        tcp.fin = (flags & kFin) != 0;
        tcp.rst = (flags & kRst) != 0;
        tcp.ack = (flags & kAck) != 0;
        const unsigned scale = s_.window_scaling ? s_.snd_wscale : 0;
        tcp.window = htons(static_cast<std::uint16_t>(std::min<std::uint32_t>(s_.snd_wnd >> scale, 0xffff)));
        std::uint8_t* at = segment.data.data() + sizeof(net::Ipv4Header);
        std::memcpy(at, &tcp, sizeof tcp);
        if (s_.timestamps) {
            const std::array<std::uint32_t, 3> option{htonl(TCPOPT_TSTAMP_HDR), htonl(s_.ts_recent),
                                                      htonl(echo)};
            std::memcpy(at + sizeof tcp, option.data(), sizeof option);
        }
        std::uint64_t sum = net::pseudo_header_sum(s_.ends.remote.address.v4(), s_.ends.local.address.v4(),
                                                   IPPROTO_TCP, static_cast<std::uint32_t>(tcp_length));
        sum = net::checksum_add(at, tcp_length, sum);
        const auto check = static_cast<std::uint16_t>(~net::checksum_fold(sum));
        std::memcpy(at + offsetof(tcphdr, check), &check, sizeof check);

        net::Ipv4Header ip{};
        ip.version_ihl = 0x45;
        ip.ttl = 255;  // IP_MINTTL
        ip.protocol = IPPROTO_TCP;
        ip.src = s_.ends.remote.address.v4();
        ip.dst = s_.ends.local.address.v4();
        segment.length = sizeof ip + tcp_length;
        ip.total_length = htons(static_cast<std::uint16_t>(segment.length));
        std::memcpy(segment.data.data(), &ip, sizeof ip);  // the kernel fills in its checksum
        return segment;
    }

    static constexpr unsigned kMaxScale = 14;  // RFC 7323
    static constexpr int kLoopback = 1;        // the index of that interface, in each network namespace
    static constexpr std::uint8_t kFin = 1, kRst = 4, kAck = 16;

    const int fd_;
    const KernelState& s_;
    const std::function<void()>& unsteer_;
    const std::size_t sent_, total_, received_;
    Cursor to_send_;
    Buffer send_{fd_, SO_SNDBUF, SO_SNDBUFFORCE};
    Buffer receive_{fd_, SO_RCVBUF, SO_RCVBUFFORCE};
    int reuse_ = 0;
    int own_interface_ = 0;  // while secluded_: what the program has bound the socket to
    bool measuring_ = false, connected_ = false, secluded_ = false;
};

}  // namespace

Result<void> hand_over(int fd, const KernelState& state, const std::function<void()>& unsteer) {
    return Handover(fd, state, unsteer).run();
}

namespace {
constinit std::atomic<int> g_possible{-1};  // -1: to be asked
constinit std::atomic<bool> g_keeping{false};

void keep_raw_socket() noexcept {
    if (std::atomic_ref(g_raw_number).load(std::memory_order_relaxed) >= 0 || g_keeping.exchange(true))
        return;
    *g_raw = InternalFd(static_cast<int>(std::max(raw_socket(), -1L)));
    if (*g_raw) {
        set(g_raw->get(), SOL_SOCKET, SO_RCVBUF, 1);  // nobody reads what a peer sends to protocol 255
        g_raw->mirror(&g_raw_number);
    }
    g_keeping.store(false);
}
}  // namespace

void forget_handover_possible() noexcept { g_possible.store(-1, std::memory_order_relaxed); }

namespace {
void forget_keepers() noexcept {
    forget_handover_possible();
    g_keeping.store(false, std::memory_order_relaxed);
    std::atomic_ref(g_raw_number).store(-1, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_keepers);
}  // namespace

bool handover_possible() noexcept {
    int value = g_possible.load(std::memory_order_relaxed);
    if (value < 0) {
        long fd = os::raw_syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return false;
        value = set(static_cast<int>(fd), IPPROTO_TCP, TCP_REPAIR, int{TCP_REPAIR_ON}) >= 0;
        os::raw_syscall(SYS_close, fd);
        keep_raw_socket();
        g_possible.store(value, std::memory_order_relaxed);
    }
    return value != 0;
}

}  // namespace vma::tcp
