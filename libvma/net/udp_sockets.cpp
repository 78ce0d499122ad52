// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/udp_sockets.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>

#include <cstring>

namespace vma::net {
namespace {

// A socket of IPv6 receives IPv4, too, unless IPV6_V6ONLY is set.
bool v6_only(const inet_diag_msg& socket, std::size_t length) noexcept {
    std::size_t left = length - sizeof socket;
    const auto* at = reinterpret_cast<const std::uint8_t*>(&socket + 1);
    rtattr attribute;
    while (left >= sizeof attribute) {
        std::memcpy(&attribute, at, sizeof attribute);
        if (attribute.rta_len < sizeof attribute || attribute.rta_len > left) break;
        if (attribute.rta_type == INET_DIAG_SKV6ONLY && attribute.rta_len > sizeof attribute)
            return at[sizeof attribute] != 0;
        const std::size_t step = NLMSG_ALIGN(attribute.rta_len);
        if (step >= left) break;
        at += step;
        left -= step;
    }
    return false;
}

}  // namespace

Result<std::vector<UdpListener>> udp_listeners(NetlinkSocket& socket) {
    std::vector<UdpListener> all;
    for (const std::uint8_t family : {AF_INET, AF_INET6}) {
        const std::size_t before = all.size();
        inet_diag_req_v2 request{};
        request.sdiag_family = family;
        request.sdiag_protocol = IPPROTO_UDP;
        request.idiag_states = ~0u;
        auto dumped = socket.dump(
            "list of UDP sockets", SOCK_DIAG_BY_FAMILY, &request, sizeof request, [&] { all.resize(before); },
            [&](nlmsghdr* message) {
                inet_diag_msg s;
                if (message->nlmsg_len < NLMSG_LENGTH(sizeof s)) return;
                const auto* in_place = static_cast<const inet_diag_msg*>(NLMSG_DATA(message));
                std::memcpy(&s, in_place, sizeof s);
                in6_addr v6;
                std::memcpy(&v6, s.id.idiag_src, sizeof v6);
                const Address local = family == AF_INET ? Address(in_addr_t{s.id.idiag_src[0]}) : Address(v6);
                const bool group = local.is_v4() && local.is_multicast();
                if (s.id.idiag_sport == 0 || (!local.is_any() && !group)) return;
                if (family == AF_INET6 && v6_only(*in_place, message->nlmsg_len - NLMSG_HDRLEN)) return;
                all.push_back({s.id.idiag_sport, group ? local.v4() : 0, static_cast<int>(s.id.idiag_if),
                               std::uint64_t{s.id.idiag_cookie[1]} << 32 | s.id.idiag_cookie[0]});
            });
        // A kernel without IPv6 has no such sockets.
        if (!dumped && !(family == AF_INET6 && dumped.error().code == ENOENT))
            return std::unexpected(dumped.error());
    }
    return all;
}

}  // namespace vma::net
