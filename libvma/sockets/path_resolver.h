// SPDX-License-Identifier: BSD-2-Clause
// How a packet leaves the host, as the network view knows it: route, link, ring, next hop. For UDP
// destinations and TCP connections.
#pragma once

#include <string>

#include "libvma/net/address.h"
#include "libvma/net/path_options.h"
#include "libvma/net/view.h"
#include "libvma/ring/ring.h"

namespace vma::sockets {

class Stack;

// `mtu` of a link or route, or VMA_MTU where that is less.
std::uint32_t limit_mtu(std::uint32_t mtu) noexcept;

class PathResolver {
  public:
    explicit PathResolver(Stack& stack) noexcept : stack_(stack) {}

    // `protocol`: IPPROTO_*. A local address or port of 0 is not chosen yet. May throw bad_alloc.
    Result<net::Route> route(int protocol, const net::Endpoints& ends, const net::PathOptions& options);
    // False: there is none, or it is down.
    bool link(const net::Route& route, net::Link& out);
    // The ring of the route's interface for a socket of `lane`, opened if need be. Never waits for
    // Stack::control(), whose holder may wait for a lock of the caller: `busy`: it is held, so try again
    // soon. Null otherwise: there is none, and `why`, if given, tells.
    ring::Ring* ring(const net::Route& route, unsigned lane, bool& busy, std::string* why = nullptr) noexcept;
    static in_addr_t next_hop(const net::Route& route, in_addr_t remote) noexcept {
        return route.gateway != 0 ? route.gateway : remote;
    }
    // What fits: the route's MTU, at most the link's.
    static std::uint32_t mtu(const net::Route& route, const net::Link& link) noexcept;

  private:
    Stack& stack_;
};

}  // namespace vma::sockets
