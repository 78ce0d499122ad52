// SPDX-License-Identifier: BSD-2-Clause
// The way a connection's segments take: ring, link addresses, MTU. Found by the layer above, which knows the
// network view.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/net/address.h"
#include "libvma/net/frame.h"
#include "libvma/net/path_options.h"

namespace vma::ring {
class Ring;
}

namespace vma::tcp {

struct Path {
    ring::Ring* ring = nullptr;
    net::MacAddress src_mac{}, dst_mac{};
    std::uint32_t mtu = 0;         // of the route, at most the link's
    std::uint32_t generation = 0;  // of PathSource when this was found
    std::uint32_t routes = 0;      // the same without the neighbours; 0: not known
    net::PathOptions asked;        // with these it was found
    bool ecn = false;              // the route's feature: as net.ipv4.tcp_ecn of 1, for this one
    bool stale = false;            // the neighbour entry wants to be confirmed
    in_addr_t next_hop = 0;        // whose link address dst_mac is
    int ifindex = 0;               // the interface of both
};

class PathSource {
  public:
    virtual ~PathSource() = default;
    // 0 and `out`, or -errno: -EAGAIN (the neighbour is being asked for, try again soon), -EHOSTUNREACH (it
    // does not answer), -ENETUNREACH and what else a route look-up says, -EOPNOTSUPP (there is a way, but not
    // over a ring). `out` may be what was found for these ends before: the kernel is not asked again while
    // only neighbours have changed. Any thread; callers may hold a connection's lock and a ring's rx_lock.
    virtual int find(const net::Endpoints& ends, const net::PathOptions& options, Path& out) noexcept = 0;
    // Moves when a path found earlier may no longer hold. Cheap.
    virtual std::uint32_t generation() const noexcept = 0;
    // The neighbour answered (forward progress), or is asked for again because it may have gone (a
    // retransmission).
    virtual void confirm(const Path& path, in_addr_t remote) noexcept { (void)path, (void)remote; }
    virtual void doubt(const Path& path, in_addr_t remote) noexcept { (void)path, (void)remote; }
};

}  // namespace vma::tcp
