// SPDX-License-Identifier: BSD-2-Clause
// Netlink requests that a send makes. They are made on the stack, because the send may run in a signal
// handler, which must not enter malloc.
#pragma once

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

#include "libvma/net/view.h"

namespace vma::net {

// RTM_NEWNEIGH with NTF_USE: the kernel does what a packet to the neighbour would make it do.
class UseNeighbour {
  public:
    UseNeighbour(int ifindex, in_addr_t address, std::uint32_t sequence) noexcept {
        header_.nlmsg_type = RTM_NEWNEIGH;
        header_.nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE;
        header_.nlmsg_seq = sequence;
        neighbour_.ndm_family = AF_INET;
        neighbour_.ndm_ifindex = ifindex;
        neighbour_.ndm_flags = NTF_USE;
        destination_.rta_type = NDA_DST;
        destination_.rta_len = RTA_LENGTH(sizeof address);
        address_ = address;
        header_.nlmsg_len = sizeof *this;
    }
    const nlmsghdr* message() const noexcept { return &header_; }

  private:
    nlmsghdr header_{};
    ndmsg neighbour_{};
    rtattr destination_{};
    in_addr_t address_ = 0;
};
static_assert(sizeof(UseNeighbour) == NLMSG_LENGTH(sizeof(ndmsg)) + RTA_LENGTH(sizeof(in_addr_t)));

// RTM_GETROUTE.
class RouteRequest {
  public:
    RouteRequest(const RouteQuery& query, std::uint32_t sequence) noexcept {
        header_.nlmsg_type = RTM_GETROUTE;
        header_.nlmsg_flags = NLM_F_REQUEST;
        header_.nlmsg_seq = sequence;
        route_.rtm_family = AF_INET;
        route_.rtm_dst_len = 32;
        route_.rtm_tos = query.tos & 0xfc;  // the two ECN bits never choose a route
        route_.rtm_flags = RTM_F_LOOKUP_TABLE;
        put(RTA_DST, query.dst);
        if (query.src != 0) {
            route_.rtm_src_len = 32;
            put(RTA_SRC, query.src);
        }
        if (query.oif != 0) put(RTA_OIF, query.oif);
        if (query.mark != 0) put(RTA_MARK, query.mark);
        if (query.protocol == IPPROTO_UDP || query.protocol == IPPROTO_TCP) {
            put(RTA_IP_PROTO, query.protocol);
            if (query.src_port != 0) put(RTA_SPORT, query.src_port);
            if (query.dst_port != 0) put(RTA_DPORT, query.dst_port);
        }
        header_.nlmsg_len = static_cast<std::uint32_t>(sizeof header_ + sizeof route_ + used_);
    }
    const nlmsghdr* message() const noexcept { return &header_; }

  private:
    template <class T>
    void put(unsigned short type, T value) noexcept {
        rtattr attribute{static_cast<unsigned short>(RTA_LENGTH(sizeof value)), type};
        memcpy(attributes_ + used_, &attribute, sizeof attribute);
        memcpy(attributes_ + used_ + sizeof attribute, &value, sizeof value);
        used_ += RTA_SPACE(sizeof value);
    }
    nlmsghdr header_{};
    rtmsg route_{};
    std::uint8_t attributes_[8 * RTA_SPACE(4)]{};  // one for each put() above
    std::size_t used_ = 0;
};

}  // namespace vma::net
