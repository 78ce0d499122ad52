// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/decode.h"

#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/in_route.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <string.h>

#include <algorithm>
#include <array>

namespace vma::net {
namespace {

// Set by packet capture and multicast membership; routing does not look at them.
constexpr unsigned kFlagsWithoutMeaning = IFF_PROMISC | IFF_ALLMULTI;

template <std::size_t N>
bool parse_attributes(nlmsghdr* message, int header_length, std::array<nlattr*, N>& attributes,
                      const std::array<nla_policy, N>& policy) {
    return nlmsg_parse(message, header_length, attributes.data(), static_cast<int>(N) - 1,
                       const_cast<nla_policy*>(policy.data())) == 0;
}

in_addr_t ipv4(const nlattr* attribute) {
    in_addr_t address;
    memcpy(&address, nla_data(attribute), sizeof address);
    return address;
}

std::string text(const nlattr* attribute) {
    const char* start = static_cast<const char*>(nla_data(attribute));
    return std::string(start, strnlen(start, static_cast<std::size_t>(nla_len(attribute))));
}

void copy_mac(const nlattr* attribute, MacAddress& out) {
    if (attribute && nla_len(attribute) == static_cast<int>(out.size()))
        memcpy(out.data(), nla_data(attribute), out.size());
}

constexpr auto kLinkPolicy = [] {
    std::array<nla_policy, IFLA_MAX + 1> p{};
    p[IFLA_IFNAME].type = NLA_STRING;
    p[IFLA_MTU].type = NLA_U32;
    p[IFLA_MASTER].type = NLA_U32;
    p[IFLA_LINK].type = NLA_U32;
    p[IFLA_NUM_RX_QUEUES].type = NLA_U32;
    p[IFLA_LINKINFO].type = NLA_NESTED;
    return p;
}();
constexpr auto kLinkInfoPolicy = [] {
    std::array<nla_policy, IFLA_INFO_MAX + 1> p{};
    p[IFLA_INFO_KIND].type = NLA_STRING;
    p[IFLA_INFO_DATA].type = NLA_NESTED;
    return p;
}();
constexpr auto kVlanPolicy = [] {
    std::array<nla_policy, IFLA_VLAN_MAX + 1> p{};
    p[IFLA_VLAN_ID].type = NLA_U16;
    p[IFLA_VLAN_PROTOCOL].type = NLA_U16;
    return p;
}();
constexpr auto kAddressPolicy = [] {
    std::array<nla_policy, IFA_MAX + 1> p{};
    p[IFA_LOCAL].type = NLA_U32;
    p[IFA_ADDRESS].type = NLA_U32;
    return p;
}();
constexpr auto kNeighbourPolicy = [] {
    std::array<nla_policy, NDA_MAX + 1> p{};
    p[NDA_DST].type = NLA_U32;
    return p;
}();
constexpr auto kRoutePolicy = [] {
    std::array<nla_policy, RTA_MAX + 1> p{};
    p[RTA_OIF].type = NLA_U32;
    p[RTA_GATEWAY].type = NLA_U32;
    p[RTA_PREFSRC].type = NLA_U32;
    p[RTA_METRICS].type = NLA_NESTED;
    return p;
}();
constexpr auto kMetricsPolicy = [] {
    std::array<nla_policy, RTAX_MAX + 1> p{};
    p[RTAX_MTU].type = NLA_U32;
    p[RTAX_FEATURES].type = NLA_U32;
    return p;
}();

// Reads IFLA_INFO_DATA of a link of kind "vlan". 0 for 802.1ad, which has another tag.
std::uint16_t vlan_id(nlattr* data) {
    std::array<nlattr*, IFLA_VLAN_MAX + 1> attributes;
    if (nla_parse_nested(attributes.data(), IFLA_VLAN_MAX, data,
                         const_cast<nla_policy*>(kVlanPolicy.data())) != 0 ||
        attributes[IFLA_VLAN_ID] == nullptr)
        return 0;
    if (attributes[IFLA_VLAN_PROTOCOL] && nla_get_u16(attributes[IFLA_VLAN_PROTOCOL]) != htons(ETH_P_8021Q))
        return 0;
    return nla_get_u16(attributes[IFLA_VLAN_ID]);
}

}  // namespace

bool decode_link(nlmsghdr* message, LinkEntry& out) {
    std::array<nlattr*, IFLA_MAX + 1> attributes;
    if (!parse_attributes(message, sizeof(ifinfomsg), attributes, kLinkPolicy)) return false;
    const auto* info = static_cast<const ifinfomsg*>(nlmsg_data(message));
    // A bridge announces its ports under AF_BRIDGE. A port that leaves the bridge is an RTM_DELLINK, though
    // the device still exists.
    if (info->ifi_family != AF_UNSPEC || attributes[IFLA_WIRELESS] != nullptr) return false;
    out = {};
    out.flags = info->ifi_flags & ~kFlagsWithoutMeaning;
    Link& link = out.link;
    link.ifindex = info->ifi_index;
    link.up = (info->ifi_flags & IFF_UP) && (info->ifi_flags & IFF_LOWER_UP);
    link.loopback = info->ifi_flags & IFF_LOOPBACK;
    link.ethernet = info->ifi_type == ARPHRD_ETHER;
    if (attributes[IFLA_IFNAME]) link.name = text(attributes[IFLA_IFNAME]);
    if (attributes[IFLA_MTU]) link.mtu = nla_get_u32(attributes[IFLA_MTU]);
    if (attributes[IFLA_MASTER]) link.master = static_cast<int>(nla_get_u32(attributes[IFLA_MASTER]));
    if (attributes[IFLA_NUM_RX_QUEUES])
        link.rx_queues = std::max(1u, nla_get_u32(attributes[IFLA_NUM_RX_QUEUES]));
    copy_mac(attributes[IFLA_ADDRESS], link.mac);
    if (attributes[IFLA_LINKINFO]) {
        std::array<nlattr*, IFLA_INFO_MAX + 1> nested;
        if (nla_parse_nested(nested.data(), IFLA_INFO_MAX, attributes[IFLA_LINKINFO],
                             const_cast<nla_policy*>(kLinkInfoPolicy.data())) == 0 &&
            nested[IFLA_INFO_KIND])
            link.kind = text(nested[IFLA_INFO_KIND]);
        if (link.kind == "vlan" && nested[IFLA_INFO_DATA]) link.vlan = vlan_id(nested[IFLA_INFO_DATA]);
        // With IFLA_LINK_NETNSID the number means an interface of another network namespace.
        if (link.vlan != 0 && attributes[IFLA_LINK] && !attributes[IFLA_LINK_NETNSID])
            link.lower = static_cast<int>(nla_get_u32(attributes[IFLA_LINK]));
    }
    return true;
}

bool decode_address(nlmsghdr* message, AddressEntry& out) {
    std::array<nlattr*, IFA_MAX + 1> attributes;
    if (nlmsg_datalen(message) < static_cast<int>(sizeof(ifaddrmsg))) return false;
    const auto* info = static_cast<const ifaddrmsg*>(nlmsg_data(message));
    if (info->ifa_family != AF_INET ||
        !parse_attributes(message, sizeof(ifaddrmsg), attributes, kAddressPolicy))
        return false;
    // On a point-to-point link IFA_ADDRESS is the peer.
    const nlattr* local = attributes[IFA_LOCAL] ? attributes[IFA_LOCAL] : attributes[IFA_ADDRESS];
    if (!local) return false;
    out.local = {static_cast<int>(info->ifa_index), ipv4(local)};
    out.prefix_length = info->ifa_prefixlen;
    return true;
}

bool decode_neighbour(nlmsghdr* message, NeighbourEntry& out) {
    std::array<nlattr*, NDA_MAX + 1> attributes;
    if (nlmsg_datalen(message) < static_cast<int>(sizeof(ndmsg))) return false;
    const auto* info = static_cast<const ndmsg*>(nlmsg_data(message));
    if (info->ndm_family != AF_INET || (info->ndm_flags & NTF_PROXY)) return false;
    if (!parse_attributes(message, sizeof(ndmsg), attributes, kNeighbourPolicy) || !attributes[NDA_DST])
        return false;
    out = {};
    out.ifindex = info->ndm_ifindex;
    out.address = ipv4(attributes[NDA_DST]);
    constexpr unsigned kUnconfirmed = NUD_STALE | NUD_DELAY | NUD_PROBE;
    const unsigned state = info->ndm_state;
    if (state & (NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | kUnconfirmed)) {
        out.neighbour.state = Neighbour::State::usable;
        out.neighbour.stale = state & kUnconfirmed;
        copy_mac(attributes[NDA_LLADDR], out.neighbour.mac);
    } else if (state & NUD_FAILED) {
        out.neighbour.state = Neighbour::State::failed;
    } else if (state & NUD_INCOMPLETE) {
        out.neighbour.state = Neighbour::State::incomplete;
    }
    return true;
}

bool decode_route(nlmsghdr* message, Route& out) {
    std::array<nlattr*, RTA_MAX + 1> attributes;
    if (message->nlmsg_type != RTM_NEWROUTE) return false;
    if (!parse_attributes(message, sizeof(rtmsg), attributes, kRoutePolicy)) return false;
    const auto* info = static_cast<const rtmsg*>(nlmsg_data(message));
    if (info->rtm_family != AF_INET) return false;
    out = {};
    switch (info->rtm_type) {
        case RTN_UNICAST:
            out.kind = Route::Kind::unicast;
            break;
        case RTN_LOCAL:
            out.kind = Route::Kind::local;
            break;
        case RTN_BROADCAST:
            out.kind = Route::Kind::broadcast;
            break;
        case RTN_MULTICAST:
            out.kind = Route::Kind::multicast;
            out.copied_here = (info->rtm_flags & RTCF_LOCAL) != 0;
            break;
        default:
            break;
    }
    // The route has a gateway of another family, or makes a tunnel: the kernel serves it.
    if (attributes[RTA_VIA] || attributes[RTA_ENCAP]) out.kind = Route::Kind::other;
    if (attributes[RTA_OIF]) out.ifindex = static_cast<int>(nla_get_u32(attributes[RTA_OIF]));
    if (attributes[RTA_GATEWAY]) out.gateway = ipv4(attributes[RTA_GATEWAY]);
    if (attributes[RTA_PREFSRC]) out.src = ipv4(attributes[RTA_PREFSRC]);
    if (attributes[RTA_METRICS]) {
        std::array<nlattr*, RTAX_MAX + 1> metrics;
        if (nla_parse_nested(metrics.data(), RTAX_MAX, attributes[RTA_METRICS],
                             const_cast<nla_policy*>(kMetricsPolicy.data())) == 0) {
            if (metrics[RTAX_MTU]) out.mtu = nla_get_u32(metrics[RTAX_MTU]);
            if (metrics[RTAX_FEATURES])
                out.ecn = (nla_get_u32(metrics[RTAX_FEATURES]) & RTAX_FEATURE_ECN) != 0;
        }
    }
    return true;
}

bool decode_route_entry(nlmsghdr* message, RouteEntry& out) {
    std::array<nlattr*, RTA_MAX + 1> attributes;
    if (message->nlmsg_type != RTM_NEWROUTE) return false;
    if (!parse_attributes(message, sizeof(rtmsg), attributes, kRoutePolicy)) return false;
    const auto* info = static_cast<const rtmsg*>(nlmsg_data(message));
    if (info->rtm_family != AF_INET || (info->rtm_flags & (RTM_F_CLONED | RTNH_F_DEAD)) ||
        info->rtm_dst_len > 32)
        return false;
    auto word = [&](int name, std::uint32_t otherwise) {
        return attributes[name] != nullptr && nla_len(attributes[name]) >= 4 ? nla_get_u32(attributes[name])
                                                                             : otherwise;
    };
    out = {};
    out.destination = word(RTA_DST, 0);
    out.length = info->rtm_dst_len;
    out.table = word(RTA_TABLE, info->rtm_table);
    out.metric = word(RTA_PRIORITY, 0);
    out.unicast = info->rtm_type == RTN_UNICAST;
    out.tos = info->rtm_tos != 0;
    if (attributes[RTA_OIF]) out.interfaces.push_back(static_cast<int>(nla_get_u32(attributes[RTA_OIF])));
    if (const nlattr* hops = attributes[RTA_MULTIPATH]) {
        int left = nla_len(hops);
        for (auto* hop = static_cast<rtnexthop*>(nla_data(hops)); RTNH_OK(hop, left);
             left -= RTNH_ALIGN(hop->rtnh_len), hop = RTNH_NEXT(hop))
            if (!(hop->rtnh_flags & RTNH_F_DEAD)) out.interfaces.push_back(hop->rtnh_ifindex);
    }
    return true;
}

bool rule_is_default(nlmsghdr* message) {
    nlattr* attributes[FRA_MAX + 1] = {};
    if (message->nlmsg_type != RTM_NEWRULE ||
        nlmsg_parse(message, sizeof(fib_rule_hdr), attributes, FRA_MAX, nullptr) < 0)
        return false;
    const auto* rule = static_cast<const fib_rule_hdr*>(nlmsg_data(message));
    for (int name : {FRA_IIFNAME, FRA_OIFNAME, FRA_FWMARK, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE,
                     FRA_UID_RANGE, FRA_L3MDEV, FRA_TUN_ID})
        if (attributes[name] != nullptr) return false;
    return rule->action == FR_ACT_TO_TBL && rule->table >= RT_TABLE_DEFAULT && rule->src_len == 0 &&
           rule->dst_len == 0 && rule->tos == 0 && !(rule->flags & FIB_RULE_INVERT);
}

bool is_ipv4_route(nlmsghdr* message) {
    if (nlmsg_datalen(message) < static_cast<int>(sizeof(rtmsg))) return false;
    const auto* info = static_cast<const rtmsg*>(nlmsg_data(message));
    return info->rtm_family == AF_INET && !(info->rtm_flags & RTM_F_CLONED);
}

bool rule_looks_at_ports(nlmsghdr* message) {
    nlattr* attributes[FRA_MAX + 1] = {};
    if (nlmsg_parse(message, sizeof(fib_rule_hdr), attributes, FRA_MAX, nullptr) < 0) return true;
    return attributes[FRA_IP_PROTO] != nullptr || attributes[FRA_SPORT_RANGE] != nullptr ||
           attributes[FRA_DPORT_RANGE] != nullptr;
}

}  // namespace vma::net
