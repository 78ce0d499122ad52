// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/option_table.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include "libvma/sockets/membership_options.h"
#include "libvma/sockets/udp/receive_control.h"
#include "libvma/sockets/udp/send_path.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace vma::sockets {
namespace {

using Effect = UdpEffect;
using R = ReceiveControl;
using S = SendPath;
constexpr UdpOptionRow kOptionTable[] = {
    {SOL_SOCKET, SO_RCVBUF, Effect::queue, 0},
    {SOL_SOCKET, SO_RCVBUFFORCE, Effect::queue, 0},
    {SOL_SOCKET, SO_RCVTIMEO, Effect::timeout, 0},
    {SOL_SOCKET, 66 /* SO_RCVTIMEO_NEW */, Effect::timeout, 0},
    {SOL_SOCKET, SO_BINDTODEVICE, Effect::route, 0},
    {SOL_SOCKET, 62 /* SO_BINDTOIFINDEX */, Effect::route, 0},
    {SOL_SOCKET, SO_MARK, Effect::send, 0},
    {SOL_SOCKET, SO_REUSEPORT, Effect::none, 0},
    {SOL_SOCKET, SO_REUSEADDR, Effect::none, 0},
    {SOL_SOCKET, SO_TIMESTAMP, Effect::receive, R::timestamp},
    {SOL_SOCKET, SO_TIMESTAMPNS, Effect::receive, R::timestampns},
    {SOL_SOCKET, SO_TIMESTAMPING, Effect::receive, R::timestamping},
    {SOL_SOCKET, SO_RXQ_OVFL, Effect::receive, R::rxq_ovfl},
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
    {SOL_SOCKET, SO_DONTROUTE, Effect::kernel_tx, S::dontroute},
    {SOL_SOCKET, SO_NO_CHECK, Effect::kernel_tx, S::no_check},
    {SOL_SOCKET, SO_MAX_PACING_RATE, Effect::kernel_tx, S::pacing},
    {SOL_SOCKET, SO_TXTIME, Effect::kernel_tx, S::txtime},
    {IPPROTO_IP, IP_TOS, Effect::send, 0},
    {IPPROTO_IP, IP_TTL, Effect::send, 0},
    {IPPROTO_IP, IP_MTU_DISCOVER, Effect::send, 0},
    {IPPROTO_IP, IP_PKTINFO, Effect::receive, R::pktinfo},
    {IPPROTO_IP, IP_RECVTTL, Effect::receive, R::recvttl},
    {IPPROTO_IP, IP_RECVTOS, Effect::receive, R::recvtos},
    {IPPROTO_IP, IP_RECVORIGDSTADDR, Effect::receive, R::origdst},
    {IPPROTO_IP, IP_RECVERR, Effect::errors, 0},
    {IPPROTO_IP, IP_RECVOPTS, Effect::none, 0},  // datagrams with IP options come through the kernel
    {IPPROTO_IP, IP_RETOPTS, Effect::none, 0},
    {IPPROTO_IP, IP_MULTICAST_IF, Effect::group, 0},
    {IPPROTO_IP, IP_MULTICAST_TTL, Effect::group, 0},
    {IPPROTO_IP, IP_MULTICAST_LOOP, Effect::group, 0},
    {IPPROTO_IP, IP_MULTICAST_ALL, Effect::groups, 0},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, Effect::none, 0},
    {IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, Effect::none, 0},
    {IPPROTO_IP, IP_MINTTL, Effect::none, 0},  // TCP only
    {IPPROTO_IP, IP_OPTIONS, Effect::kernel_tx, S::ip_options},
    {IPPROTO_IP, IP_UNICAST_IF, Effect::kernel_tx, S::unicast_if},
    {IPPROTO_IP, IP_FREEBIND, Effect::kernel_tx, S::source},
    {IPPROTO_IP, IP_TRANSPARENT, Effect::kernel_tx, S::source},
    {IPPROTO_UDP, UDP_CORK, Effect::kernel_tx, S::cork},
    {IPPROTO_UDP, UDP_SEGMENT, Effect::kernel_tx, S::segment},
    {IPPROTO_UDP, UDP_GRO, Effect::none, 0},  // a hint; datagrams from a ring come one by one
    {IPPROTO_UDP, 101 /* UDP_NO_CHECK6_TX */, Effect::none, 0},
    {IPPROTO_UDP, 102 /* UDP_NO_CHECK6_RX */, Effect::none, 0},
};

}  // namespace

const UdpOptionRow* find_udp_option(int level, int name) noexcept {
    for (const UdpOptionRow& row : kOptionTable)
        if (row.level == level && row.name == name) return &row;
    static constexpr UdpOptionRow kMembership{IPPROTO_IP, 0, Effect::groups, 0};
    return level == IPPROTO_IP && find_membership_option(name) != nullptr ? &kMembership : nullptr;
}

}  // namespace vma::sockets
