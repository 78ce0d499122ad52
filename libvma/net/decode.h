// SPDX-License-Identifier: BSD-2-Clause
// rtnetlink(7) messages as values of view.h. Pure functions; a message that is not what it should be gives
// false.
#pragma once

#include <linux/netlink.h>

#include <vector>

#include "libvma/net/view.h"

namespace vma::net {

struct LinkEntry {
    Link link;
    unsigned flags = 0;  // IFF_*, less those that say nothing about routing
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

// RTM_NEWLINK, RTM_DELLINK. False also for those about something else than the device: bridge ports, wireless
// events.
bool decode_link(nlmsghdr* message, LinkEntry& out);
// RTM_NEWADDR, RTM_DELADDR of IPv4.
bool decode_address(nlmsghdr* message, AddressEntry& out);
// RTM_NEWNEIGH, RTM_DELNEIGH of IPv4; false for proxy entries.
bool decode_neighbour(nlmsghdr* message, NeighbourEntry& out);
// The RTM_NEWROUTE that answers RTM_GETROUTE. `mtu` is 0 when the route has none of its own. Never allocates.
bool decode_route(nlmsghdr* message, Route& out);
// A route of a table dump, as far as the way back to a source is concerned.
struct RouteEntry {
    in_addr_t destination = 0;
    std::uint8_t length = 0;
    std::uint32_t table = 0, metric = 0;
    bool unicast = false, tos = false;  // tos: it is for some packets only
    std::vector<int> interfaces;        // its next hops'
};
// RTM_NEWROUTE of IPv4 from a dump. False: it is nothing the kernel would find now (a cached or dead one).
bool decode_route_entry(nlmsghdr* message, RouteEntry& out);
// RTM_NEWRULE: is it one of the three rules that are there from the start?
bool rule_is_default(nlmsghdr* message);
// Is this announcement (RTM_NEWROUTE, RTM_DELROUTE) about an IPv4 route?
bool is_ipv4_route(nlmsghdr* message);
// RTM_NEWRULE: does the policy rule select by protocol or port? True also for what cannot be read.
bool rule_looks_at_ports(nlmsghdr* message);

}  // namespace vma::net
