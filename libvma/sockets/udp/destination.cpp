// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/destination.h"

#include <algorithm>
#include <cstring>

#include "libvma/config/rules.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/path_resolver.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

// A neighbour the kernel holds for stale is confirmed by its own traffic, which the library bypasses. One
// datagram through the kernel now and then starts its reachability probe (RFC 4861's NUD, as Linux does it
// for ARP).
constexpr std::chrono::microseconds kConfirm{10'000'000};

// What can be said of a group before its route is known. False: the kernel sends, and `d.why` tells.
bool prepare_group(Stack& stack, const SendAttributes& from, Destination& d) {
    auto leave = [&](std::string_view why) {
        d.why.reason = stats::Reason::multicast;
        d.why.detail = why;
        return false;
    };
    if (from.multicast.ttl == 0) return leave("IP_MULTICAST_TTL is 0");
    if (!from.multicast.known) return leave("the interface of IP_MULTICAST_IF is not known");
    // To a VRF the kernel's rules are others.
    if (net::Link bound; from.path.oif != 0 && stack.view().link(from.path.oif, bound) && bound.kind == "vrf")
        return leave("the socket is bound to a VRF");
    if (from.multicast.loops) {
        // Before the route is asked for: a change meanwhile makes the answer outdated at once.
        d.members = stack.memberships().version();
        d.conditional = d.follows_members = true;
        stack.memberships().follow();
    }
    return true;
}

void confirm_later(Destination& d) noexcept {
    d.conditional = d.stale = true;
    d.confirm_at = clock::Ticks::now() + clock::to_ticks(kConfirm);
}

}  // namespace

void resolve(Stack& stack, const SendAttributes& from, Destination& d) noexcept {
    const runtime::NoCancel whole;
    d.ring = nullptr;
    d.next_hop = 0;
    d.conditional = d.stale = d.follows_members = false;
    // Read before asking: a change meanwhile makes the answer outdated at once.
    d.generation = stack.view().generation();
    d.routes = stack.view().routes_generation();
    auto leave = [&](stats::Reason reason, std::string_view detail = {}) {
        d.why.reason = reason;
        d.why.detail = detail;
    };
    try {
        d.why = {};
        // Such packets need identifications the kernel hands out.
        if (from.pmtu_discover == IP_PMTUDISC_DONT)
            return leave(stats::Reason::option, "IP_MTU_DISCOVER is IP_PMTUDISC_DONT");
        const net::Endpoint to(d.addr, d.port);
        const config::Verdict decision = config::decide(config::Role::udp_sender, to, nullptr);
        d.why.rule = decision.text();
        if (decision.os()) return leave(stats::Reason::rule);
        PathResolver paths(stack);
        const bool group = is_group(d.addr);
        const GroupPath asked = group ? group_path(from) : GroupPath{from.src_addr, from.path};
        if (group && !prepare_group(stack, from, d)) return;
        auto route = paths.route(IPPROTO_UDP, {{asked.src, from.src_port}, to}, asked.path);
        if (!route) return leave(stats::Reason::no_route);
        if (group) {
            const bool members =
                stack.memberships().forwards() || stack.memberships().seen(route->ifindex, d.addr);
            if (const auto why = kernel_sends_group(*route, from.multicast.loops, members); !why.empty())
                return leave(stats::Reason::multicast, why);
        } else if (const stats::Reason reason = statistics::reason_of_route(*route);
                   reason != stats::Reason::none) {
            return leave(reason);
        }
        if (asked.src != 0 && asked.src != route->src) {
            int ifindex;
            if (!stack.view().is_local(asked.src, &ifindex)) return leave(stats::Reason::foreign_address);
        }
        // Control operations take the send lock, which the caller holds, so the ring is not waited for: the
        // kernel sends this datagram, and the next one asks again.
        bool busy = false;
        const in_addr_t local = asked.src != 0 ? asked.src : route->src;
        const unsigned lane = stack.rings().lanes().of(from.path.lane, local);
        ring::Ring* ring = paths.ring(*route, lane, busy, &d.why.detail);
        if (busy) {
            d.generation = 0;
            return leave(stats::Reason::other, "the rings are being changed at the moment");
        }
        if (ring == nullptr) {
            d.why.reason = stats::Reason::no_device;
            return;
        }
        net::Neighbour next;
        if (group)
            next = {.state = net::Neighbour::State::usable, .mac = group_mac(d.addr)};
        else
            next = stack.view().neighbour(route->ifindex, PathResolver::next_hop(*route, d.addr));
        if (!group) d.next_hop = PathResolver::next_hop(*route, d.addr);
        d.ifindex = route->ifindex;
        if (next.state != net::Neighbour::State::usable) return leave(stats::Reason::neighbour);

        net::Link link;
        if (!paths.link(*route, link)) return leave(stats::Reason::no_device, "the interface is down");
        net::UdpTemplate t;
        t.src_mac = link.mac;
        t.dst_mac = next.mac;
        t.src_addr = local;
        t.dst_addr = d.addr;
        t.src_port = from.src_port;
        t.dst_port = d.port;
        t.tos = asked.path.tos;
        t.ttl = asked.path.ttl;
        t.dont_fragment = true;
        net::build_udp_headers(t, 0, d.headers);
        d.src_addr = t.src_addr;
        std::uint32_t mtu =
            from.pmtu_discover == IP_PMTUDISC_PROBE || from.pmtu_discover == IP_PMTUDISC_INTERFACE
                ? link.mtu
                : PathResolver::mtu(*route, link);
        d.max_payload = std::min(limit_mtu(mtu) - 28, ring->max_udp_payload());
        if (next.stale) confirm_later(d);
        d.ring = ring;
    } catch (...) {
        d.ring = nullptr;  // no memory: the kernel sends
        d.why.reason = stats::Reason::no_memory;
    }
}

bool follow_neighbour(Stack& stack, Destination& d) noexcept {
    const std::uint32_t generation = stack.view().generation();
    if (d.ring == nullptr || d.next_hop == 0 || d.routes != stack.view().routes_generation()) return false;
    const net::Neighbour next = stack.view().neighbour(d.ifindex, d.next_hop);
    if (next.state != net::Neighbour::State::usable) return false;
    std::memcpy(d.headers, next.mac.data(), next.mac.size());
    // One that was to be confirmed already is not given more time.
    if (!next.stale)
        d.conditional = d.stale = false;
    else if (!d.stale)
        confirm_later(d);
    d.generation = generation;
    return true;
}

}  // namespace vma::sockets
