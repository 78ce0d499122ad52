// SPDX-License-Identifier: BSD-2-Clause
// The UDP sockets of the network namespace, as the kernel lists them (sock_diag(7)).
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <vector>

#include "libvma/net/address.h"
#include "libvma/net/netlink.h"
#include "libvma/runtime/error.h"

namespace vma::net {

// A bound UDP socket that may receive multicast of IPv4: its local address is none or a group.
struct UdpListener {
    in_port_t port = 0;        // network order
    in_addr_t address = 0;     // of IPv4, network order; 0: any. An IPv6 socket may receive IPv4, too.
    int device = 0;            // SO_BINDTODEVICE, 0: any
    std::uint64_t cookie = 0;  // SO_COOKIE
    friend bool operator==(const UdpListener&, const UdpListener&) = default;
};

// All such sockets of the network namespace of `socket`, which is of NETLINK_SOCK_DIAG. Some hundred
// microseconds, more with many sockets. Errors: of the kernel, ENOENT where it has no udp_diag. May throw
// std::bad_alloc.
Result<std::vector<UdpListener>> udp_listeners(NetlinkSocket& socket);

}  // namespace vma::net
