// SPDX-License-Identifier: BSD-2-Clause
// The ways of TCP connections, from the network view: route, interface, its ring, next hop's link address.
//
// The kernel keeps the neighbour table. It is asked to resolve and to confirm (net::KernelView::solicit), at
// most once a second for one address, because a connection that waits asks often and many connections share a
// gateway.
#pragma once

#include <array>
#include <atomic>

#include "libvma/runtime/clock.h"
#include "libvma/tcp/path.h"

namespace vma::sockets {

class Stack;

class TcpPaths final : public tcp::PathSource {
  public:
    explicit TcpPaths(Stack& stack) noexcept : stack_(stack) {}

    int find(const net::Endpoints& ends, const net::PathOptions& options, tcp::Path& out) noexcept override;
    std::uint32_t generation() const noexcept override;
    void confirm(const tcp::Path& path, in_addr_t remote) noexcept override;
    void doubt(const tcp::Path& path, in_addr_t remote) noexcept override;

  private:
    // The two halves of find(): ring, addresses and MTU as the kernel's route has them; and the link address.
    int find_route(const net::Endpoints& ends, const net::PathOptions& options, tcp::Path& out) noexcept;
    int find_neighbour(const net::Endpoints& ends, tcp::Path& out) noexcept;
    void ask(int ifindex, in_addr_t next_hop) noexcept;
    // Since when the connection waits for its neighbour. Time{}: it did not yet; from now on it does.
    clock::Time waits_since(const net::Endpoints& ends) noexcept;
    void waits_no_more(const net::Endpoints& ends) noexcept;

    Stack& stack_;
    // When an address was asked for last, by a hash of it: two that share a slot only ask more often.
    struct Asked {
        std::atomic<std::uint64_t> key{0};
        std::atomic<clock::Time> at{};
    };
    std::array<Asked, 256> asked_{};
    // Connections that wait for an answer. A failure is the answer for those, and says nothing to later
    // ones. Those that share a slot may wait for a second failure.
    std::array<Asked, 256> waiting_{};
};

}  // namespace vma::sockets
