// SPDX-License-Identifier: BSD-2-Clause
// Which multicast datagrams the kernel gives to a UDP socket: its memberships with their source filters
// (RFC 3376, section 3), IP_MULTICAST_ALL, its names and its device.
//
// The kernel keeps the truth. The library gives it each option first; afterwards read_group_filter() asks
// what the socket is a member of, and the answer comes in here. So limits, interfaces and errors are the
// kernel's. Pure values but for that one function; addresses and ports in network byte order.
#pragma once

#include <netinet/in.h>

#include <memory>
#include <optional>
#include <vector>

#include "libvma/net/address.h"
#include "libvma/stats/group_counters.h"

namespace vma::sockets {

// Sources of a group that a socket listens to: all but those of the list, or those of the list alone.
struct GroupFilter {
    bool exclude = true;
    std::vector<in_addr_t> sources;

    bool allows(in_addr_t source) const noexcept;
    bool allows_all() const noexcept { return exclude && sources.empty(); }
    bool allows_none() const noexcept { return !exclude && sources.empty(); }
    friend bool operator==(const GroupFilter&, const GroupFilter&) = default;
};

// From whom a socket takes datagrams to a group.
struct GroupSenders {
    in_addr_t peer = 0;  // of a connected socket, 0: any
    in_port_t peer_port = 0;
    GroupFilter filter;

    bool include(in_addr_t address, in_port_t port) const noexcept {
        return (peer == 0 || peer == address) && (peer_port == 0 || peer_port == port) &&
               filter.allows(address);
    }
};

// Which group a socket option is about, and where.
struct GroupRequest {
    in_addr_t group = 0;
    in_addr_t interface = 0;  // by its address, 0: not named so
    int ifindex = 0;          // 0: not named so

    // Of an option of level IPPROTO_IP. Nothing: it is none about memberships.
    static std::optional<GroupRequest> read(int name, const void* value, socklen_t length) noexcept;
};

class Memberships {
  public:
    struct Entry {
        in_addr_t group;
        int ifindex;
        GroupFilter filter;
        std::shared_ptr<stats::GroupCounters> counters;
    };
    // The socket is a member of the group on that interface, by this filter. May throw std::bad_alloc.
    void set(in_addr_t group, int ifindex, GroupFilter filter);
    void erase(in_addr_t group, int ifindex) noexcept;
    // Null: the socket is no member there.
    const Entry* find(in_addr_t group, int ifindex) const noexcept;
    const std::vector<Entry>& all() const noexcept { return entries_; }

  private:
    std::vector<Entry> entries_;  // in order of group and ifindex
};

// What of a UDP socket decides which datagrams to groups come to it.
struct GroupListener {
    net::Endpoints ends;  // as bound and connected; port 0: not bound
    int device = 0;       // SO_BINDTODEVICE, 0: any
    bool all = true;      // IP_MULTICAST_ALL
    Memberships memberships;

    // Can it receive from any group at all? A socket that is bound to an address of the host cannot.
    bool listens() const noexcept {
        return ends.local.port != 0 && (ends.local.address.is_any() || ends.local.address.is_multicast());
    }
    // Does it receive from some source what arrives by the interface for group:port?
    bool wants(in_addr_t group, in_port_t port, int ifindex) const noexcept;
    // From whom, if it wants() the group. The interface must have let the datagram in, see ip_mc_sf_allow()
    // and __udp_is_mcast_sock() of Linux. May throw std::bad_alloc.
    GroupSenders senders(in_addr_t group, int ifindex) const;
};

// Is the socket behind `fd` a member of the group on the interface, and by which filter? Asks the kernel
// (MCAST_MSFILTER, ip(7)). May throw std::bad_alloc. errno stays.
std::optional<GroupFilter> read_group_filter(int fd, in_addr_t group, int ifindex);

}  // namespace vma::sockets
