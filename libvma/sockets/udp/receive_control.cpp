// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/receive_control.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/time.h>
#include <time.h>

#include <cstring>

#include "libvma/net/address.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

bool group(in_addr_t address) noexcept { return net::Address(address).is_multicast(); }

// What the kernel would send from to the datagram's source, or the interface's first address
// (fib_compute_spec_dst() of Linux).
in_addr_t own_address_towards(const ring::RxBuffer& b) noexcept {
    Stack* stack = Stack::running();
    if (stack == nullptr) return 0;
    net::KernelView& view = stack->present_view();
    if (auto route = view.route({.dst = b.src_addr}); route && route->src != 0) return route->src;
    try {
        for (const net::LocalAddress& a : view.addresses())
            if (a.ifindex == b.ring->attr().ifindex) return a.address;
    } catch (...) {
        // No memory: the program does without.
    }
    return 0;
}

}  // namespace

void ReceiveControl::want(unsigned wish, bool on) noexcept {
    constexpr unsigned kPlain = timestamp | timestampns;
    if ((wish & kPlain) != 0) wanted_.fetch_and(~kPlain);
    if (on)
        wanted_.fetch_or(wish);
    else
        wanted_.fetch_and(~wish);
}

void ReceiveControl::count_timestamps(bool has_rules) noexcept {
    constexpr unsigned kAny = timestamp | timestampns | timestamping | timestamping_device;
    const bool wanted = (wanted_.load() & kAny) != 0 && has_rules;
    if (wanted == counted_) return;
    counted_ = wanted;
    ring::Ring::want_timestamps(wanted);
}

void ReceiveControl::put(const ring::RxBuffer& b, unsigned wanted, CmsgWriter& out) noexcept {
    // The kernel's order: socket level first, then the IP level by option.
    if (wanted & (timestamp | timestampns | timestamping | timestamping_device)) {
        // The datagram came before any socket wanted time stamps: as in the kernel, the time is now.
        const clock::WallTime arrived = b.arrived != clock::WallTime{} ? b.arrived : clock::wall();
        const timespec when = clock::to_timespec(arrived.time_since_epoch());
        if (wanted & timestampns) {
            out.put(SOL_SOCKET, SO_TIMESTAMPNS, &when, sizeof when);
        } else if (wanted & timestamp) {
            timeval tv{when.tv_sec, when.tv_nsec / 1000};
            out.put(SOL_SOCKET, SO_TIMESTAMP, &tv, sizeof tv);
        }
        // As the kernel, it says what there is: where the device has no time, only the first is set, or there
        // is no message at all.
        const bool by_device = (wanted & timestamping_device) && b.arrived != clock::WallTime{} &&
                               b.arrived_at_device != clock::DeviceTime{};
        if ((wanted & timestamping) || by_device) {
            scm_timestamping stamps{};
            if (wanted & timestamping) std::memcpy(&stamps.ts[0], &when, sizeof when);
            if (by_device) {
                const timespec at = clock::to_timespec(b.arrived_at_device.time_since_epoch());
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
        info.ipi_spec_dst.s_addr = group(b.dst_addr) ? own_address_towards(b) : b.dst_addr;
        info.ipi_addr.s_addr = b.dst_addr;
        out.put(IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    }
    if (wanted & recvttl) {
        int ttl = b.ttl;
        out.put(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
    }
    if (wanted & recvtos) out.put(IPPROTO_IP, IP_TOS, &b.tos, sizeof b.tos);
    if (wanted & origdst) {
        const sockaddr_in to = net::ipv4_name(b.dst_addr, b.dst_port);
        out.put(IPPROTO_IP, IP_ORIGDSTADDR, &to, sizeof to);
    }
}

}  // namespace vma::sockets
