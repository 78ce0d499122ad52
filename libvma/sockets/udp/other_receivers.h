// SPDX-License-Identifier: BSD-2-Clause
// Who else on this host receives multicast: UDP sockets of the network namespace, and the kernel itself where
// it routes multicast on. What is known is as old as the last look.
//
// Under Stack::control(), but see().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libvma/net/netlink.h"
#include "libvma/net/udp_sockets.h"
#include "libvma/net/view.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"

namespace vma::sockets {

class Stack;

class OtherReceivers {
  public:
    explicit OtherReceivers(Stack& stack) noexcept : stack_(stack) {}

    using Seen = Result<std::vector<net::UdpListener>>;
    // Looks now; any thread, no lock needed. May throw std::bad_alloc.
    Seen see();
    // What see() saw counts from now on.
    void take(Seen seen);
    // Looks unless the last look is younger.
    void look(clock::Msec age);
    // The next look() looks.
    void outdate() noexcept { looked_at_ = {}; }
    // The socket is about to be closed: it receives no more, though the kernel lists it for a moment.
    void forget(std::uint64_t cookie) noexcept;

    // Sockets on the port that may receive multicast, ours among them.
    std::span<const net::UdpListener> at(in_port_t port) const noexcept;
    // Why nobody can tell; empty: it is known.
    const std::string& blind() const noexcept { return blind_; }
    // Does the kernel forward multicast that comes by the link (ip-sysctl: mc_forwarding)?
    bool forwards(const net::Link& link);
    // Asks anew about all links that were asked about. True: an answer is another one.
    bool review_forwarding();

  private:
    Stack& stack_;
    Lock lock_;  // of see(): the socket stays open, since a new descriptor takes a number for a moment
    std::optional<net::NetlinkSocket> socket_;
    std::vector<net::UdpListener> listeners_;  // in order of ports
    std::string blind_;
    clock::Time looked_at_{};
    std::map<int, bool> forwards_;  // by ifindex
    // Cookies of sockets that were closed last, in a circle.
    std::array<std::uint64_t, 256> closed_{};
    std::size_t closed_next_ = 0;
};

}  // namespace vma::sockets
