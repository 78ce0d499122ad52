// SPDX-License-Identifier: BSD-2-Clause
// Socket options, fcntl and ioctl of a UDP socket.
//
// Every option is set on the shadow first; its answer is the program's answer. Then the option falls into one
// of four groups: it changes how we send (the attributes are read again), it changes what we report with a
// datagram, it makes sending the kernel's business, or receiving as well (the socket is left to the kernel).
// An option that is in no group and not known to be without effect on us goes the last way: nothing is
// silently accepted.
#include <linux/net_tstamp.h>
#include <netinet/udp.h>

#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/option_value.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/udp_socket.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace vma::sockets {
namespace {

enum class Effect {
    none,        // the shadow's business alone
    send,        // read the send attributes again
    route,       // and the rules
    receive,     // read what to report
    queue,       // queue limit
    errors,      // errors come without a connection
    timeout,     // SO_RCVTIMEO
    kernel_tx,   // while its value is not 0, the kernel sends
    kernel_all,  // leave the socket to the kernel
};

struct OptionRow {
    int level, name;
    Effect effect;
    unsigned bit;  // report bit or kernel_tx bit
};

using U = UdpSocket;
constexpr OptionRow kOptionTable[] = {
    {SOL_SOCKET, SO_RCVBUF, Effect::queue, 0},
    {SOL_SOCKET, SO_RCVBUFFORCE, Effect::queue, 0},
    {SOL_SOCKET, SO_RCVTIMEO, Effect::timeout, 0},
    {SOL_SOCKET, 66 /* SO_RCVTIMEO_NEW */, Effect::timeout, 0},
    {SOL_SOCKET, SO_BINDTODEVICE, Effect::route, 0},
    {SOL_SOCKET, 62 /* SO_BINDTOIFINDEX */, Effect::route, 0},
    {SOL_SOCKET, SO_MARK, Effect::send, 0},
    {SOL_SOCKET, SO_REUSEPORT, Effect::none, 0},
    {SOL_SOCKET, SO_REUSEADDR, Effect::none, 0},
    {SOL_SOCKET, SO_TIMESTAMP, Effect::receive, U::timestamp},
    {SOL_SOCKET, SO_TIMESTAMPNS, Effect::receive, U::timestampns},
    {SOL_SOCKET, SO_TIMESTAMPING, Effect::receive, U::timestamping},
    {SOL_SOCKET, SO_RXQ_OVFL, Effect::receive, U::rxq_ovfl},
    {SOL_SOCKET, SO_DEBUG, Effect::none, 0},
    {SOL_SOCKET, SO_SNDBUF, Effect::none, 0},
    {SOL_SOCKET, SO_SNDBUFFORCE, Effect::none, 0},
    {SOL_SOCKET, SO_SNDTIMEO, Effect::none, 0},
    {SOL_SOCKET, 67 /* SO_SNDTIMEO_NEW */, Effect::none, 0},
    {SOL_SOCKET, SO_BROADCAST, Effect::none, 0},
    {SOL_SOCKET, SO_KEEPALIVE, Effect::none, 0},
    {SOL_SOCKET, SO_OOBINLINE, Effect::none, 0},
    {SOL_SOCKET, SO_LINGER, Effect::none, 0},
    {SOL_SOCKET, SO_PRIORITY, Effect::none, 0},
    {SOL_SOCKET, SO_RCVLOWAT, Effect::none, 0},
    {SOL_SOCKET, SO_SNDLOWAT, Effect::none, 0},
    {SOL_SOCKET, SO_BUSY_POLL, Effect::none, 0},
    {SOL_SOCKET, 69 /* SO_PREFER_BUSY_POLL */, Effect::none, 0},
    {SOL_SOCKET, 70 /* SO_BUSY_POLL_BUDGET */, Effect::none, 0},
    {SOL_SOCKET, SO_INCOMING_CPU, Effect::none, 0},
    {SOL_SOCKET, SO_SELECT_ERR_QUEUE, Effect::none, 0},
    {SOL_SOCKET, SO_ZEROCOPY, Effect::none, 0},
    {SOL_SOCKET, SO_DONTROUTE, Effect::kernel_tx, U::dontroute},
    {SOL_SOCKET, SO_NO_CHECK, Effect::kernel_tx, U::no_check},
    {SOL_SOCKET, SO_MAX_PACING_RATE, Effect::kernel_tx, U::pacing},
    {SOL_SOCKET, SO_TXTIME, Effect::kernel_tx, U::txtime},
    {IPPROTO_IP, IP_TOS, Effect::send, 0},
    {IPPROTO_IP, IP_TTL, Effect::send, 0},
    {IPPROTO_IP, IP_MTU_DISCOVER, Effect::send, 0},
    {IPPROTO_IP, IP_PKTINFO, Effect::receive, U::pktinfo},
    {IPPROTO_IP, IP_RECVTTL, Effect::receive, U::recvttl},
    {IPPROTO_IP, IP_RECVTOS, Effect::receive, U::recvtos},
    {IPPROTO_IP, IP_RECVORIGDSTADDR, Effect::receive, U::origdst},
    {IPPROTO_IP, IP_RECVERR, Effect::errors, 0},
    {IPPROTO_IP, IP_RECVOPTS, Effect::none, 0},  // datagrams with IP options come through the kernel
    {IPPROTO_IP, IP_RETOPTS, Effect::none, 0},
    {IPPROTO_IP, IP_MULTICAST_IF, Effect::none, 0},  // multicast is the kernel's business in both directions
    {IPPROTO_IP, IP_MULTICAST_TTL, Effect::none, 0},
    {IPPROTO_IP, IP_MULTICAST_LOOP, Effect::none, 0},
    {IPPROTO_IP, IP_MULTICAST_ALL, Effect::none, 0},
    {IPPROTO_IP, IP_ADD_MEMBERSHIP, Effect::none, 0},
    {IPPROTO_IP, IP_DROP_MEMBERSHIP, Effect::none, 0},
    {IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, Effect::none, 0},
    {IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, Effect::none, 0},
    {IPPROTO_IP, IP_BLOCK_SOURCE, Effect::none, 0},
    {IPPROTO_IP, IP_UNBLOCK_SOURCE, Effect::none, 0},
    {IPPROTO_IP, IP_MSFILTER, Effect::none, 0},
    {IPPROTO_IP, MCAST_JOIN_GROUP, Effect::none, 0},
    {IPPROTO_IP, MCAST_LEAVE_GROUP, Effect::none, 0},
    {IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, Effect::none, 0},
    {IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, Effect::none, 0},
    {IPPROTO_IP, MCAST_BLOCK_SOURCE, Effect::none, 0},
    {IPPROTO_IP, MCAST_UNBLOCK_SOURCE, Effect::none, 0},
    {IPPROTO_IP, MCAST_MSFILTER, Effect::none, 0},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, Effect::none, 0},
    {IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, Effect::none, 0},
    {IPPROTO_IP, IP_MINTTL, Effect::none, 0},  // TCP only
    {IPPROTO_IP, IP_OPTIONS, Effect::kernel_tx, U::ip_options},
    {IPPROTO_IP, IP_UNICAST_IF, Effect::kernel_tx, U::unicast_if},
    {IPPROTO_IP, IP_FREEBIND, Effect::kernel_tx, U::source},
    {IPPROTO_IP, IP_TRANSPARENT, Effect::kernel_tx, U::source},
    {IPPROTO_UDP, UDP_CORK, Effect::kernel_tx, U::cork},
    {IPPROTO_UDP, UDP_SEGMENT, Effect::kernel_tx, U::segment},
    {IPPROTO_UDP, UDP_GRO, Effect::none, 0},  // a hint; datagrams from a ring come one by one
    {IPPROTO_UDP, 101 /* UDP_NO_CHECK6_TX */, Effect::none, 0},
    {IPPROTO_UDP, 102 /* UDP_NO_CHECK6_RX */, Effect::none, 0},
};

}  // namespace

int UdpSocket::setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    int r = os::setsockopt(fd, level, name, value, len);
    if (r == 0 && level == IPPROTO_IP && statistics::membership(*this, fd, name, value, len))
        member_.store(true);
    if (r != 0 || left_) return r;
    int saved = errno;
    const OptionRow* row = nullptr;
    for (const OptionRow& candidate : kOptionTable)
        if (candidate.level == level && candidate.name == name) row = &candidate;
    Effect effect = row != nullptr ? row->effect : Effect::kernel_all;

    switch (effect) {
        case Effect::none:
            if (level == SOL_SOCKET && name == SO_REUSEPORT) reuseport_ = any_byte(value, len);
            if (level == IPPROTO_IP && (name == IP_MULTICAST_IF || name == IP_MULTICAST_LOOP))
                show_multicast(fd);
            break;
        case Effect::send:
        case Effect::queue:
        case Effect::route:
            if (!stack_.control().owned_by_me()) {
                stack_.control().lock();
                read_attributes(fd);
                announce_queue();
                if (effect == Effect::route) update_rules(!bound_explicitly_);
                stack_.control().unlock();
            }
            break;
        case Effect::errors:
            if (any_byte(value, len) && !stack_.control().owned_by_me()) {
                stack_.control().lock();
                watch_errors(fd);
                stack_.control().unlock();
            }
            break;
        case Effect::timeout: {
            timeval t{};
            socklen_t size = sizeof t;
            os::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &size);
            rcvtimeo_ns_.store(static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
                               static_cast<std::uint64_t>(t.tv_usec) * 1000u);
            break;
        }
        case Effect::receive: {
            bool on = any_byte(value, len);
            if (level == SOL_SOCKET && name == SO_TIMESTAMPING) {
                int flags = 0;
                socklen_t size = sizeof flags;
                os::getsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, &size);
                set_kernel_tx(tx_timestamps,
                              (flags & (SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_HARDWARE |
                                        SOF_TIMESTAMPING_TX_SCHED)) != 0);
                on = (flags & SOF_TIMESTAMPING_RX_SOFTWARE) && (flags & SOF_TIMESTAMPING_SOFTWARE);
                if ((flags & SOF_TIMESTAMPING_RX_HARDWARE) && (flags & SOF_TIMESTAMPING_RAW_HARDWARE))
                    control_wanted_.fetch_or(timestamping_device);
                else
                    control_wanted_.fetch_and(~timestamping_device);
            }
            unsigned bits = row->bit;
            // The two plain time stamp formats exclude each other: the last one set wins (socket(7)).
            if (on && bits == U::timestamp) control_wanted_.fetch_and(~U::timestampns);
            if (on && bits == U::timestampns) control_wanted_.fetch_and(~U::timestamp);
            if (!on && (bits == U::timestamp || bits == U::timestampns)) bits = U::timestamp | U::timestampns;
            if (on)
                control_wanted_.fetch_or(bits);
            else
                control_wanted_.fetch_and(~bits);
            if (!stack_.control().owned_by_me()) {
                stack_.control().lock();
                update_control_wanted();
                stack_.control().unlock();
            }
            break;
        }
        case Effect::kernel_tx: {
            bool on = any_byte(value, len);
            // An unlimited pacing rate is no pacing.
            if (row->bit == U::pacing) {
                on = false;
                for (socklen_t i = 0; i < len && i < 4; i++)
                    on |= static_cast<const unsigned char*>(value)[i] != 0xff;
            }
            flush();
            set_kernel_tx(row->bit, on);
            show_kernel_tx();
            if (on)
                log::once(log::Level::info, "a UDP socket sends through the kernel: option {}/{} is set",
                          level, name);
            break;
        }
        case Effect::kernel_all: {
            char why[64];
            auto end =
                fmt::format_to_n(why, sizeof why - 1, "socket option {}/{} is not supported", level, name);
            *end.out = 0;
            leave_to_kernel(fd, why);
            break;
        }
    }
    errno = saved;
    return r;
}

void UdpSocket::show_multicast(int fd) noexcept {
    stats::SocketBlock* block = tally_.block();
    if (block == nullptr) return;
    in_addr interface {};
    int loop = 1;
    socklen_t size = sizeof interface;
    if (os::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, &size) != 0) interface = {};
    size = sizeof loop;
    if (os::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, &size) != 0) loop = 1;
    stats::Describe guard(block->sequence);
    std::memcpy(block->multicast_interface, &interface, sizeof block->multicast_interface);
    block->multicast_loop = loop != 0;
}

int UdpSocket::getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    return os::getsockopt(fd, level, name, value, len);
}

void UdpSocket::update_control_wanted() noexcept {
    bool wanted =
        (control_wanted_.load() & (timestamp | timestampns | timestamping | timestamping_device)) != 0 &&
        !rules_.empty();
    if (wanted == counts_timestamps_) return;
    counts_timestamps_ = wanted;
    ring::Ring::want_timestamps(wanted);
}

int UdpSocket::fcntl(int fd, int cmd, unsigned long arg) {
    if (cmd == F_SETFL && (arg & O_ASYNC) != 0) leave_to_kernel(fd, "it uses signal-driven I/O (O_ASYNC)");
    int r = os::fcntl(fd, cmd, arg);
    if (cmd == F_SETFL && r == 0) nonblock_.store((arg & O_NONBLOCK) != 0, std::memory_order_release);
    return r;
}

int UdpSocket::ioctl(int fd, unsigned long request, void* arg) {
    if (request == FIOASYNC) leave_to_kernel(fd, "it uses signal-driven I/O (FIOASYNC)");
    if (request == FIONREAD && arg != nullptr && offloaded()) {
        flush();
        if (queued() == 0) progress();
        std::uint32_t length = 0;
        bool any = false;
        queue_lock_.lock();
        if (head_ != nullptr) {
            length = head_->payload_length;
            any = true;
        }
        queue_lock_.unlock();
        if (any) {
            *static_cast<int*>(arg) = static_cast<int>(length);
            return 0;
        }
    }
    int r = os::ioctl(fd, request, arg);
    if (request == FIONBIO && r == 0)
        nonblock_.store(*static_cast<int*>(arg) != 0, std::memory_order_release);
    return r;
}

}  // namespace vma::sockets
