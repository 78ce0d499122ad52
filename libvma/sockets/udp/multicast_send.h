// SPDX-License-Identifier: BSD-2-Clause
// Sending to a group: what the program has set for it, and whether a ring may do it.
// docs/multicast-sending.md tells the rules.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string_view>

#include "libvma/net/frame.h"
#include "libvma/net/path_options.h"
#include "libvma/net/view.h"

namespace vma::sockets {

class Stack;
struct SendAttributes;

inline bool is_group(in_addr_t address) noexcept { return IN_MULTICAST(ntohl(address)); }

// The Ethernet address of a group: 01:00:5e and its low 23 bits (RFC 1112, 6.4).
inline net::MacAddress group_mac(in_addr_t group) noexcept {
    const std::uint32_t bits = ntohl(group);
    return {0x01,
            0x00,
            0x5e,
            static_cast<std::uint8_t>(bits >> 16 & 0x7f),
            static_cast<std::uint8_t>(bits >> 8),
            static_cast<std::uint8_t>(bits)};
}

// The socket's options for groups. The kernel tells all but the interface, so that is kept here as it was
// given.
struct MulticastOptions {
    int ifindex = 0;        // of IP_MULTICAST_IF; 0: not set
    in_addr_t address = 0;  // of IP_MULTICAST_IF; 0: the route's
    std::uint8_t ttl = 1;   // IP_MULTICAST_TTL
    bool loops = true;      // IP_MULTICAST_LOOP
    bool known = true;      // ifindex is what the kernel has

    // setsockopt() of IP_MULTICAST_IF, _TTL or _LOOP has succeeded on `fd`.
    void learn(Stack& stack, int fd, int name, const void* value, socklen_t length) noexcept;

  private:
    void learn_interface(Stack& stack, const void* value, socklen_t length) noexcept;
};

// IP_PKTINFO of one send call: it takes the place of what is bound.
struct PacketInfo {
    int ifindex = 0;    // 0: as without it
    in_addr_t src = 0;  // 0: as if none were bound
    bool given = false;
    friend bool operator==(const PacketInfo&, const PacketInfo&) = default;
    // Reads the control messages of `message`. False: they are not one IP_PKTINFO and nothing else, or
    // unreadable.
    bool read(const msghdr& message) noexcept;
};

// By which interface and from which address: what is asked for, before the route is known. As udp_sendmsg()
// of Linux has it: what is bound comes before IP_MULTICAST_IF.
struct GroupPath {
    in_addr_t src = 0;  // 0: the route's
    net::PathOptions path;
};
GroupPath group_path(const SendAttributes& from) noexcept;

// Why the kernel sends to a group by this route; empty: a ring may. `members`: there may be receivers on this
// host, which get a copy if `loops`.
std::string_view kernel_sends_group(const net::Route& route, bool loops, bool members) noexcept;

}  // namespace vma::sockets
