// SPDX-License-Identifier: BSD-2-Clause
// Asks the kernel for routes, and remembers what it said. No function allocates, and any thread may call all
// but open(). A signal handler that interrupted one of them gets Kind::other, and remembers nothing.
#pragma once

#include <array>
#include <cstdint>

#include "libvma/net/netlink.h"
#include "libvma/net/view.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"

namespace vma::net {

class RouteAnswers {
  public:
    // Before all others. Error: of socket().
    Result<void> open();
    // The kernel's answer, without the interface's MTU. Error: the errno that a send would get.
    Result<Route> ask(const RouteQuery& query);
    // The answer to `question` (whose ports are 0) that was remembered at `generation` (of routes), for up to
    // a second: announcements do not tell all. False: none.
    bool recall(const RouteQuery& question, std::uint32_t generation, Route& out) noexcept;
    // `generation`: read, and not 0, before the kernel was asked, at `asked_at`.
    void remember(const RouteQuery& question, const Route& answer, std::uint32_t generation,
                  clock::Time asked_at) noexcept;
    // Has the kernel find out a neighbour's link address.
    void solicit(int ifindex, in_addr_t address) noexcept;

  private:
    // By the whole question but its ports: a program that connects again and again repeats it.
    struct Known {
        RouteQuery query;
        Route route;
        std::uint32_t generation = 0;  // 0: empty
        clock::Time asked_at;
    };
    Known& place(const RouteQuery& query) noexcept;

    Lock socket_lock_;
    NetlinkSocket socket_;
    Lock known_lock_;
    std::array<Known, 16> known_;
};

}  // namespace vma::net
