// SPDX-License-Identifier: BSD-2-Clause
// Where a datagram goes: route, neighbour and ready-made headers for one peer, resolved once and kept until
// the network view's generation moves.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/net/frame.h"
#include "libvma/net/path_options.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/udp/multicast_send.h"

namespace vma::sockets {

class Stack;

// What of a socket's state decides where and how its datagrams leave.
struct SendAttributes {
    in_addr_t src_addr = 0;  // bound address, 0: the route's
    in_port_t src_port = 0;  // network order
    net::PathOptions path;   // SO_BINDTODEVICE, SO_MARK, IP_TOS, IP_TTL
    int pmtu_discover = 1;   // IP_PMTUDISC_*
    MulticastOptions multicast;
};

struct Destination {
    in_addr_t addr = 0;
    in_port_t port = 0;
    std::uint32_t generation = 0;  // of the view when this was resolved; 0: never
    std::uint32_t routes = 0;      // the same without the neighbours
    std::uint32_t options = 0;     // of the socket's attributes
    ring::Ring* ring = nullptr;    // null: the kernel sends, and `why` says why
    Why why;
    bool conditional = false;      // one of the two below: a datagram looks at more than the ring
    bool stale = false;            // the kernel wants to see traffic to confirm the neighbour
    bool follows_members = false;  // a group: right for the version `members` of HostMemberships only
    std::uint32_t members = 0;
    std::uint32_t max_payload = 0;  // longer datagrams are fragmented by the kernel
    in_addr_t src_addr = 0;
    int ifindex = 0;          // of the ring
    in_addr_t next_hop = 0;   // whose link address is in the headers; 0: none's
    clock::Ticks confirm_at;  // next datagram through the kernel while `stale`
    alignas(8) std::uint8_t headers[net::kUdpHeaders]{};
    PacketInfo info;  // of the call, to a group
};

// Fills `d` (addr and port are set) from the view; opens the interface's ring if there is none yet.
void resolve(Stack& stack, const SendAttributes& from, Destination& d) noexcept;
// The same where nothing but neighbours has changed: the kernel is not asked. False: it is to be resolved.
bool follow_neighbour(Stack& stack, Destination& d) noexcept;

}  // namespace vma::sockets
