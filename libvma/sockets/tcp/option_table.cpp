// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/option_table.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace vma::sockets {
namespace {

using enum TcpEffect;

constexpr TcpOptionRow kTable[] = {
    {SOL_SOCKET, SO_RCVBUF, connection},
    {SOL_SOCKET, SO_RCVBUFFORCE, connection},
    {SOL_SOCKET, SO_SNDBUF, connection},
    {SOL_SOCKET, SO_SNDBUFFORCE, connection},
    {SOL_SOCKET, SO_RCVTIMEO, connection},
    {SOL_SOCKET, SO_SNDTIMEO, connection},
    {SOL_SOCKET, kReceiveTimeoutNew, connection},
    {SOL_SOCKET, kSendTimeoutNew, connection},
    {SOL_SOCKET, SO_RCVLOWAT, connection},
    {SOL_SOCKET, SO_KEEPALIVE, connection},
    {SOL_SOCKET, SO_LINGER, connection},
    {SOL_SOCKET, SO_REUSEPORT, connection},
    {SOL_SOCKET, SO_BINDTODEVICE, connection},
    {SOL_SOCKET, kBindToIfindex, connection},
    {SOL_SOCKET, SO_MARK, connection},
    {SOL_SOCKET, SO_REUSEADDR, connection},
    {SOL_SOCKET, SO_DEBUG, none},
    {SOL_SOCKET, SO_BROADCAST, none},
    {SOL_SOCKET, SO_OOBINLINE, none},  // a connection that meets urgent data moves to the kernel
    {SOL_SOCKET, SO_PRIORITY, none},   // queueing discipline and VLAN priority of the kernel's path
    {SOL_SOCKET, SO_NO_CHECK, none},   // UDP only
    {SOL_SOCKET, SO_PASSCRED, none},   // AF_UNIX only
    {SOL_SOCKET, SO_PASSSEC, none},
    {SOL_SOCKET, SO_RXQ_OVFL, none},  // datagrams only
    {SOL_SOCKET, SO_BUSY_POLL, none},
    {SOL_SOCKET, SO_PREFER_BUSY_POLL, none},
    {SOL_SOCKET, SO_BUSY_POLL_BUDGET, none},
    {SOL_SOCKET, SO_INCOMING_CPU, none},
    {SOL_SOCKET, SO_SELECT_ERR_QUEUE, none},
    {SOL_SOCKET, SO_WIFI_STATUS, none},
    {SOL_SOCKET, SO_NOFCS, none},
    {SOL_SOCKET, 72 /* SO_BUF_LOCK */, none},
    {SOL_SOCKET, 73 /* SO_RESERVE_MEM */, none},
    {SOL_SOCKET, 74 /* SO_TXREHASH */, none},
    {SOL_SOCKET, 75 /* SO_RCVMARK */, none},
    {SOL_SOCKET, 82 /* SO_RCVPRIORITY */, none},
    {SOL_SOCKET, SO_DETACH_FILTER, none},
    {SOL_SOCKET, SO_LOCK_FILTER, none},
    {SOL_SOCKET, SO_DONTROUTE, kernel_if_set},
    {SOL_SOCKET, SO_TIMESTAMP, kernel_if_set},
    {SOL_SOCKET, SO_TIMESTAMPNS, kernel_if_set},
    {SOL_SOCKET, SO_TIMESTAMPING, kernel_if_set},
    {SOL_SOCKET, 63 /* SO_TIMESTAMP_NEW */, kernel_if_set},
    {SOL_SOCKET, 64 /* SO_TIMESTAMPNS_NEW */, kernel_if_set},
    {SOL_SOCKET, 65 /* SO_TIMESTAMPING_NEW */, kernel_if_set},
    {SOL_SOCKET, SO_ZEROCOPY, kernel_if_set},
    {SOL_SOCKET, SO_TXTIME, kernel},
    {SOL_SOCKET, SO_MAX_PACING_RATE, kernel_if_limited},
    {SOL_SOCKET, SO_PEEK_OFF, kernel_if_positive},
    {SOL_SOCKET, SO_ATTACH_FILTER, kernel},
    {SOL_SOCKET, SO_ATTACH_BPF, kernel},
    {SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, kernel},
    {SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, kernel},
    {SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, none},

    {IPPROTO_IP, IP_TOS, connection},
    {IPPROTO_IP, IP_TTL, connection},
    {IPPROTO_IP, IP_MTU_DISCOVER, connection},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, connection},
    {IPPROTO_IP, 51 /* IP_LOCAL_PORT_RANGE */, none},  // bind() of the shadow obeys it
    {IPPROTO_IP, IP_FREEBIND, none},                   // a foreign source is not offloaded
    {IPPROTO_IP, IP_PKTINFO, none},                    // messages of datagrams
    {IPPROTO_IP, IP_RECVTTL, none},
    {IPPROTO_IP, IP_RECVTOS, none},
    {IPPROTO_IP, IP_RECVOPTS, none},
    {IPPROTO_IP, IP_RETOPTS, none},
    {IPPROTO_IP, IP_RECVORIGDSTADDR, none},
    {IPPROTO_IP, IP_CHECKSUM, none},
    {IPPROTO_IP, IP_RECVFRAGSIZE, none},
    {IPPROTO_IP, IP_PASSSEC, none},
    {IPPROTO_IP, IP_MULTICAST_IF, none},
    {IPPROTO_IP, IP_MULTICAST_TTL, none},
    {IPPROTO_IP, IP_MULTICAST_LOOP, none},
    {IPPROTO_IP, IP_MULTICAST_ALL, none},
    {IPPROTO_IP, IP_RECVERR, kernel_if_set},  // errors at once, and their queue
    {IPPROTO_IP, IP_OPTIONS, kernel_if_set},
    {IPPROTO_IP, IP_TRANSPARENT, kernel_if_set},
    {IPPROTO_IP, IP_MINTTL, kernel_if_set},
    {IPPROTO_IP, IP_UNICAST_IF, kernel_if_set},

    {IPPROTO_TCP, TCP_NODELAY, connection},
    {IPPROTO_TCP, TCP_CORK, connection},
    {IPPROTO_TCP, TCP_MAXSEG, connection},
    {IPPROTO_TCP, TCP_KEEPIDLE, connection},
    {IPPROTO_TCP, TCP_KEEPINTVL, connection},
    {IPPROTO_TCP, TCP_KEEPCNT, connection},
    {IPPROTO_TCP, TCP_SYNCNT, connection},
    {IPPROTO_TCP, TCP_LINGER2, connection},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, connection},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, connection},
    {IPPROTO_TCP, TCP_QUICKACK, connection},
    {IPPROTO_TCP, TCP_CONGESTION, connection},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, connection},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, connection},
    {IPPROTO_TCP, TCP_INQ, connection},
    {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, none},  // hints
    {IPPROTO_TCP, TCP_THIN_DUPACK, none},
    {IPPROTO_TCP, TCP_FASTOPEN_KEY, none},
    {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, none},
    {IPPROTO_TCP, TCP_FASTOPEN, kernel_if_set},
    {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, kernel_if_set},
    {IPPROTO_TCP, TCP_SAVE_SYN, kernel_if_set},
    {IPPROTO_TCP, TCP_TX_DELAY, kernel_if_set},
    {IPPROTO_TCP, TCP_ULP, kernel},
    {IPPROTO_TCP, TCP_MD5SIG, kernel},
    {IPPROTO_TCP, TCP_MD5SIG_EXT, kernel},
    {IPPROTO_TCP, TCP_REPAIR, kernel},
    {IPPROTO_TCP, TCP_REPAIR_QUEUE, kernel},
    {IPPROTO_TCP, TCP_REPAIR_OPTIONS, kernel},
    {IPPROTO_TCP, TCP_REPAIR_WINDOW, kernel},
    {IPPROTO_TCP, TCP_QUEUE_SEQ, kernel},
    {IPPROTO_TCP, TCP_TIMESTAMP, kernel},
    {IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, kernel},
    {IPPROTO_TCP, 38 /* TCP_AO_ADD_KEY */, kernel},
    {IPPROTO_TCP, 39 /* TCP_AO_DEL_KEY */, kernel},
    {IPPROTO_TCP, 40 /* TCP_AO_INFO */, kernel},
    {IPPROTO_TCP, 43 /* TCP_AO_REPAIR */, kernel},
};

}  // namespace

const TcpOptionRow* find_tcp_option(int level, int name) noexcept {
    for (const TcpOptionRow& row : kTable)
        if (row.level == level && row.name == name) return &row;
    return nullptr;
}

}  // namespace vma::sockets
