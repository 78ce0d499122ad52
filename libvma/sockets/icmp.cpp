// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/icmp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/icmp.h>
#include <netinet/ip.h>
#include <sys/socket.h>

#include <cstring>
#include <mutex>

#include "libvma/net/frame.h"
#include "libvma/os/calls.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/icmp_gate.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets::icmp {
namespace {

std::atomic<bool> g_started{false};
constinit NeverDestroyed<InternalFd> g_socket;
constinit NeverDestroyed<IcmpGate> g_gate;  // the internal thread's

// The kernel's table of what an "unreachable" means to a socket (net/ipv4/icmp.c has the same in RFC 1122
// section 3.2.2.1).
int errno_of(unsigned code) noexcept {
    switch (code) {
        case ICMP_NET_UNREACH:
        case ICMP_NET_UNKNOWN:
        case ICMP_NET_ANO:
        case ICMP_NET_UNR_TOS:
            return ENETUNREACH;
        case ICMP_PROT_UNREACH:
            return ENOPROTOOPT;
        case ICMP_PORT_UNREACH:
            return ECONNREFUSED;
        case ICMP_FRAG_NEEDED:
            return EMSGSIZE;
        case ICMP_SR_FAILED:
            return EOPNOTSUPP;
        case ICMP_HOST_UNKNOWN:
            return EHOSTDOWN;
        case ICMP_HOST_ISOLATED:
            return ENONET;
        default:
            return EHOSTUNREACH;
    }
}

void handle(Stack& stack, const std::uint8_t* packet, std::size_t length) noexcept {
    if (length < sizeof(iphdr)) return;
    const std::size_t outer = std::size_t{packet[0] & 15u} * 4;
    if (outer < sizeof(iphdr) || length < outer + sizeof(icmphdr) + sizeof(net::Ipv4Header)) return;
    icmphdr h;
    std::memcpy(&h, packet + outer, sizeof h);
    if (h.type != ICMP_DEST_UNREACH && h.type != ICMP_TIME_EXCEEDED) return;
    const std::uint8_t* quoted = packet + outer + sizeof h;
    std::size_t left = length - outer - sizeof h;
    net::Ipv4Header ip;
    std::memcpy(&ip, quoted, sizeof ip);
    const std::size_t inner = std::size_t{ip.version_ihl & 15u} * 4;
    if (ip.version_ihl >> 4 != 4 || inner < sizeof ip || ip.protocol != IPPROTO_TCP || left < inner + 8)
        return;
    struct {
        std::uint16_t src, dst;
        std::uint32_t seq;
    } tcp;  // eight bytes are all that RFC 792 promises
    std::memcpy(&tcp, quoted + inner, sizeof tcp);
    ring::IcmpError error;
    error.error = h.type == ICMP_TIME_EXCEEDED ? EHOSTUNREACH : errno_of(h.code);
    error.mtu = h.type == ICMP_DEST_UNREACH && h.code == ICMP_FRAG_NEEDED ? ntohs(h.un.frag.mtu) : 0;
    error.seq = ntohl(tcp.seq);
    const verbs::FlowSpec flow{IPPROTO_TCP, ip.src, tcp.src, ip.dst, tcp.dst};
    if (!g_gate->admits(flow, clock::monotonic())) return;
    // The rule may be on another ring than the one the error came in by.
    const std::lock_guard guard(stack.control());
    stack.rings().for_each([&](ring::Ring& ring) { ring.icmp_error(flow, error); });
}

void readable(Stack& stack) noexcept {
    alignas(8) std::uint8_t packet[1500];
    for (int i = 0; i < 64; i++) {
        const ssize_t n = os::recv(g_socket->get(), packet, sizeof packet, MSG_DONTWAIT);
        if (n <= 0) return;
        handle(stack, packet, static_cast<std::size_t>(n));
    }
}

}  // namespace

void start(Stack& stack) noexcept {
    if (g_started.exchange(true)) return;
    const ErrnoKept kept;
    const int fd = os::socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_ICMP);
    if (fd < 0) {
        log::once(log::Level::info, "ICMP errors do not reach offloaded TCP connections: no raw socket ({})",
                  std::strerror(errno));
        return;
    }
    icmp_filter filter{~(1u << ICMP_DEST_UNREACH | 1u << ICMP_TIME_EXCEEDED)};
    (void)os::setsockopt(fd, SOL_RAW, ICMP_FILTER, &filter, sizeof filter);
    try {
        *g_socket = InternalFd(fd);
        runtime::watch(g_socket->get(), [&stack] { readable(stack); });
    } catch (...) {
        log::once(log::Level::warn, "ICMP errors do not reach offloaded TCP connections: out of memory");
    }
}

namespace {
void forget_icmp() noexcept { g_started = false; }
VMA_RENEW_IN_CHILD(forget_icmp);
}  // namespace

}  // namespace vma::sockets::icmp
