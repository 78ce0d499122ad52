// SPDX-License-Identifier: BSD-2-Clause
// The UDP sockets of the network namespace, as the kernel lists them (sock_diag(7)).
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <vector>

#include "libvma/net/address.h"
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

// All such sockets of the calling thread's network namespace. Some hundred microseconds, more with many
// sockets; takes no lock. Errors: of socket() and of the kernel, ENOENT where it has no udp_diag. May throw
// std::bad_alloc.
Result<std::vector<UdpListener>> udp_listeners();

}  // namespace vma::net
