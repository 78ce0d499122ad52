// SPDX-License-Identifier: BSD-2-Clause
// rtnetlink(7) messages as values of view.h. Pure functions; a message that is not what it should be gives
// false.
#pragma once

#include <linux/netlink.h>

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
// Is this announcement (RTM_NEWROUTE, RTM_DELROUTE) about an IPv4 route?
bool is_ipv4_route(nlmsghdr* message);
// RTM_NEWRULE: does the policy rule select by protocol or port? True also for what cannot be read.
bool rule_looks_at_ports(nlmsghdr* message);

}  // namespace vma::net
