// SPDX-License-Identifier: BSD-2-Clause
// What a driver does for AF_XDP sockets that are bound without copies, as the kernel tells it (the generic
// netlink family "netdev", Linux 6.8). Of a socket that copies, the kernel itself does it.
#pragma once

#include <linux/netlink.h>

namespace vma::net {

// Of an answer of the family's NETDEV_CMD_DEV_GET: does the driver sum what a frame's metadata asks for?
// False for an answer about another interface, or without features.
bool decode_xsk_checksum(nlmsghdr* message, int ifindex) noexcept;

// What the kernel says of the interface now. False where it cannot be asked: older kernels, whose drivers may
// ignore the metadata.
bool xsk_checksum(int ifindex);

}  // namespace vma::net
