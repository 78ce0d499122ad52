// SPDX-License-Identifier: BSD-2-Clause
// Which sources the kernel accepts on an interface: martians, rp_filter, accept_local. It follows
// fib_validate_source() and ip_route_input_slow() of the kernel. Any thread may call it.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libvma/net/netlink.h"
#include "libvma/net/sources.h"
#include "libvma/net/view.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"

namespace vma::net {

class SourceRoutes {
  public:
    // The filter of an interface. `addresses`: all of this host. `own_rules`: there are policy rules beside
    // the kernel's three. No prefix is certain where the routes are unknown.
    SourceFilter filter(const Link& link, const std::vector<LocalAddress>& addresses, bool own_rules);
    // Has a filter depended on routes?
    bool matter() const noexcept { return matter_.load(std::memory_order_relaxed); }

  private:
    long setting(const std::string& name);
    bool routed(int ifindex, bool strict, std::vector<SourcePrefix>& out);

    Lock lock_;
    // Kept open: a new descriptor would take, for a moment, the number that the program expects for its own
    // next one.
    std::map<std::string, InternalFd> settings_;
    std::optional<NetlinkSocket> socket_;
    std::atomic<bool> matter_{false};
};

}  // namespace vma::net
