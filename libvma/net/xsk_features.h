// SPDX-License-Identifier: BSD-2-Clause
// What a driver does for AF_XDP sockets that are bound without copies, as the kernel tells it (the generic
// netlink family "netdev"). Of a socket that copies, the kernel itself does it.
#pragma once

#include <linux/netlink.h>

#include <optional>

namespace vma::net {

struct XskFeatures {
    bool zero_copy;  // may a socket be bound without copies? Linux 6.3
    bool checksum;   // does the driver sum what a frame's metadata asks for? Linux 6.8
};

// Of an answer of the family's NETDEV_CMD_DEV_GET. Nothing, if it is malformed or about another interface.
std::optional<XskFeatures> decode_xsk_features(nlmsghdr* message, int ifindex) noexcept;

// What the kernel says of the interface now. Nothing where it cannot be asked.
std::optional<XskFeatures> xsk_features(int ifindex);

}  // namespace vma::net
