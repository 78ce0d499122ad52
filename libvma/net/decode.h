// SPDX-License-Identifier: BSD-2-Clause
// Decodes rtnetlink(7) messages into values of view.h. Pure functions; a malformed message gives false.
#pragma once

#include <linux/netlink.h>

#include <vector>

#include "libvma/net/view.h"

namespace vma::net {

struct LinkEntry {
    Link link;
    unsigned flags = 0;  // IFF_*, without those that do not matter to routing
};
struct AddressEntry {
    LocalAddress local;
    std::uint8_t prefix_length = 32;
    friend bool operator==(const AddressEntry&, const AddressEntry&) = default;
};
struct NeighbourEntry {
    int ifindex = 0;
    in_addr_t address = 0;
    Neighbour neighbour;
};

// RTM_NEWLINK, RTM_DELLINK. False also for messages about bridge ports and wireless events, which do not
// describe the device.
bool decode_link(nlmsghdr* message, LinkEntry& out);
// RTM_NEWADDR, RTM_DELADDR of IPv4.
bool decode_address(nlmsghdr* message, AddressEntry& out);
// RTM_NEWNEIGH, RTM_DELNEIGH of IPv4; false for proxy entries.
bool decode_neighbour(nlmsghdr* message, NeighbourEntry& out);
// The RTM_NEWROUTE that answers RTM_GETROUTE. `mtu` is 0 when the route has none of its own. Never allocates.
bool decode_route(nlmsghdr* message, Route& out);
// A route of a table dump, with the fields that the way back to a source needs.
struct RouteEntry {
    in_addr_t destination = 0;
    std::uint8_t length = 0;
    std::uint32_t table = 0, metric = 0;
    bool unicast = false, tos = false;  // tos: the route is for some packets only
    std::vector<int> interfaces;        // of its next hops
};
// RTM_NEWROUTE of IPv4 from a dump. False for a route that the kernel would not use now (a cached or dead
// one).
bool decode_route_entry(nlmsghdr* message, RouteEntry& out);
// RTM_NEWRULE: is it one of the kernel's three default rules?
bool rule_is_default(nlmsghdr* message);
// Is this announcement (RTM_NEWROUTE, RTM_DELROUTE) about an IPv4 route?
bool is_ipv4_route(nlmsghdr* message);
// RTM_NEWRULE: does the policy rule select by protocol or port? True also for an unreadable message.
bool rule_looks_at_ports(nlmsghdr* message);

}  // namespace vma::net
