// SPDX-License-Identifier: BSD-2-Clause
// Mirrors of the kernel's links, IPv4 addresses and neighbours. They are small and change rarely, so each is
// a map under a lock, which readers hold while they copy one value out. Any thread may read; one thread at a
// time changes. In a signal handler that interrupted a reader, readers find nothing.
#pragma once

#include <linux/netlink.h>
#include <netinet/in.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "libvma/net/decode.h"
#include "libvma/net/view.h"
#include "libvma/runtime/lock.h"

namespace vma::net {

using Links = std::map<int, LinkEntry>;
using Addresses = std::vector<AddressEntry>;
using Neighbours = std::unordered_map<std::uint64_t, Neighbour>;

std::uint64_t neighbour_key(int ifindex, in_addr_t address);

// The changes of one process(). The listener gets them when all tables are consistent again.
struct Changes {
    bool any = false;         // moves the generation, and that of routes
    bool neighbours = false;  // moves the generation
    bool addresses = false;
    bool reread_addresses = false;
    bool reread_rules = false;
    bool routes = false;   // or rules, or next hops
    bool sources = false;  // rp_filter of an interface
    std::map<int, Link> links;
};

class NetworkTables {
  public:
    // An announcement, RTM_{NEW,DEL}LINK or RTM_{NEW,DEL}NEIGH.
    void apply_link(nlmsghdr* message, Changes& changes);
    void apply_neighbour(nlmsghdr* message, Changes& changes);
    // What was read from the kernel takes the place of what was known.
    void replace(Addresses&& addresses, Changes& changes);
    void replace(Links&& links, Addresses&& addresses, Neighbours&& neighbours, Changes& changes);

    // As KernelView's.
    Neighbour neighbour(int ifindex, in_addr_t address) const;
    bool link(int ifindex, Link& out) const;
    std::vector<Link> links() const;
    std::vector<LocalAddress> addresses() const;
    bool is_local(in_addr_t address, int* ifindex) const;
    std::uint32_t link_mtu(int ifindex) const noexcept;  // 0: no such link
    // Is the kernel to find out the neighbour's link address? Its entry is incomplete then.
    bool to_solicit(int ifindex, in_addr_t address) noexcept;

  private:
    mutable Lock table_lock_;  // links and addresses
    Links links_;
    Addresses addresses_;
    mutable Lock neighbour_lock_;
    Neighbours neighbours_;
};

}  // namespace vma::net
