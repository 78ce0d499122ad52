// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/paths.h"

#include <errno.h>

#include <algorithm>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/path_resolver.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

// The kernel repeats its own question after a second (net.ipv4.neigh.*.retrans_time_ms), so asking it more
// often is idle.
constexpr std::chrono::seconds kAskAgain{1};

std::uint64_t key_of(const net::Endpoints& ends) noexcept {
    return (std::uint64_t{ends.remote.address.v4()} << 32 | std::uint64_t{ends.remote.port} << 16 |
            ends.local.port) ^
           std::uint64_t{ends.local.address.v4()} << 16;
}
std::size_t slot_of(std::uint64_t key) noexcept { return (key * 0x9e3779b97f4a7c15u) >> 56; }

}  // namespace

std::uint32_t TcpPaths::generation() const noexcept { return stack_.present_view().generation(); }

void TcpPaths::ask(int ifindex, in_addr_t next_hop) noexcept {
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(ifindex)} << 32 | next_hop;
    Asked& slot = asked_[slot_of(key)];
    const clock::Time now = clock::monotonic();
    if (slot.key.exchange(key, std::memory_order_relaxed) == key &&
        now - slot.at.load(std::memory_order_relaxed) < kAskAgain)
        return;
    slot.at.store(now, std::memory_order_relaxed);
    stack_.view().solicit(ifindex, next_hop);
}

clock::Time TcpPaths::waits_since(const net::Endpoints& ends) noexcept {
    const std::uint64_t key = key_of(ends);
    Asked& slot = waiting_[slot_of(key)];
    if (slot.key.load(std::memory_order_acquire) == key) return slot.at.load(std::memory_order_relaxed);
    slot.at.store(clock::monotonic(), std::memory_order_relaxed);
    slot.key.store(key, std::memory_order_release);
    return {};
}

void TcpPaths::waits_no_more(const net::Endpoints& ends) noexcept {
    std::uint64_t key = key_of(ends);
    waiting_[slot_of(key)].key.compare_exchange_strong(key, 0, std::memory_order_relaxed);
}

int TcpPaths::find(const net::Endpoints& ends, const net::PathOptions& options, tcp::Path& out) noexcept {
    // Read before asking: a change meanwhile makes the answer outdated at once.
    const std::uint32_t generation = stack_.view().generation(), routes = stack_.view().routes_generation();
    const runtime::NoCancel whole;
    const net::PathOptions& asked = out.asked;
    const bool holds = out.ring != nullptr && out.routes == routes && asked.oif == options.oif &&
                       asked.mark == options.mark && asked.tos == options.tos && asked.lane == options.lane;
    if (!holds) {
        out = tcp::Path{};
        if (const int error = find_route(ends, options, out); error != 0) return error;
        out.routes = routes;
        out.asked = options;
    }
    out.generation = generation;
    return find_neighbour(ends, out);
}

int TcpPaths::find_route(const net::Endpoints& ends, const net::PathOptions& options,
                         tcp::Path& out) noexcept {
    PathResolver paths(stack_);
    auto route = paths.route(IPPROTO_TCP, ends, options);
    if (!route) return -route.error().code;
    if (route->kind != net::Route::Kind::unicast) return -EOPNOTSUPP;
    net::Link link;
    if (!paths.link(*route, link)) return -ENETUNREACH;
    bool busy = false;  // the caller may hold a ring's lock, and control operations take those
    out.ring = paths.ring(*route, options.lane, busy);
    if (busy) return -EAGAIN;
    if (out.ring == nullptr) return -EOPNOTSUPP;
    out.src_mac = link.mac;
    out.ecn = route->ecn;
    out.mtu = limit_mtu(PathResolver::mtu(*route, link));
    out.ifindex = route->ifindex;
    out.next_hop = PathResolver::next_hop(*route, ends.remote.address.v4());
    return 0;
}

int TcpPaths::find_neighbour(const net::Endpoints& ends, tcp::Path& out) noexcept {
    const net::Neighbour next = stack_.view().neighbour(out.ifindex, out.next_hop);
    switch (next.state) {
        case net::Neighbour::State::usable:
            out.dst_mac = next.mac;
            out.stale = next.stale;
            waits_no_more(ends);
            return 0;
        case net::Neighbour::State::failed:
            if (const clock::Time since = waits_since(ends);
                since != clock::Time{} && next.failed_at > since) {
                waits_no_more(ends);
                return -EHOSTUNREACH;
            }
            ask(out.ifindex, out.next_hop);
            return -EAGAIN;
        default:
            waits_since(ends);
            ask(out.ifindex, out.next_hop);
            return -EAGAIN;
    }
}

// A neighbour that the kernel holds for stale is probed by the kernel as soon as it is used; the kernel does
// not see the library's traffic.
void TcpPaths::confirm(const tcp::Path& path, in_addr_t remote) noexcept {
    if (path.ring == nullptr || !path.stale) return;
    const int ifindex = path.ring->attr().ifindex;
    const in_addr_t next_hop = path.next_hop != 0 ? path.next_hop : remote;
    const net::Neighbour next = stack_.view().neighbour(ifindex, next_hop);
    if (next.stale) ask(ifindex, next_hop);
}

void TcpPaths::doubt(const tcp::Path& path, in_addr_t remote) noexcept {
    if (path.ring == nullptr) return;
    const int ifindex = path.ring->attr().ifindex;
    const in_addr_t next_hop = path.next_hop != 0 ? path.next_hop : remote;
    const net::Neighbour next = stack_.view().neighbour(ifindex, next_hop);
    if (next.state != net::Neighbour::State::usable || next.stale) ask(ifindex, next_hop);
}

}  // namespace vma::sockets
