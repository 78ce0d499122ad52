// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/path_resolver.h"

#include <algorithm>

#include "libvma/config/params.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

constexpr std::uint32_t kLeastMtu = 68;  // RFC 791

}  // namespace

std::uint32_t limit_mtu(std::uint32_t mtu) noexcept {
    const auto wanted = static_cast<std::uint32_t>(config::get().mtu);
    return wanted == 0 ? mtu : std::min(mtu, std::max(wanted, kLeastMtu));
}

Result<net::Route> PathResolver::route(int protocol, const net::Endpoints& ends,
                                       const net::PathOptions& options) {
    net::RouteQuery query;
    query.dst = ends.remote.address.v4();
    query.src = ends.local.address.v4();
    query.oif = options.oif;
    query.mark = options.mark;
    query.tos = options.tos;
    query.protocol = static_cast<decltype(query.protocol)>(protocol);
    query.src_port = ends.local.port;
    query.dst_port = ends.remote.port;
    return stack_.view().route(query);
}

bool PathResolver::link(const net::Route& route, net::Link& out) {
    return stack_.view().link(route.ifindex, out) && out.up;
}

ring::Ring* PathResolver::ring(const net::Route& route, unsigned lane, bool& busy,
                               std::string* why) noexcept {
    busy = false;
    if (ring::Ring* known = stack_.ring(route.ifindex, lane))
        return known;  // of the map only under the control lock
    if (!stack_.control().try_lock()) {
        busy = true;
        return nullptr;
    }
    ring::Ring* opened = stack_.open_ring(route.ifindex, lane, why);
    stack_.control().unlock();
    return opened;
}

std::uint32_t PathResolver::mtu(const net::Route& route, const net::Link& link) noexcept {
    return std::min(route.mtu != 0 ? route.mtu : link.mtu, link.mtu);
}

}  // namespace vma::sockets
