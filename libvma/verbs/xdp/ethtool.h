// SPDX-License-Identifier: BSD-2-Clause
// What a netdev's driver says of itself (ethtool). Control path; a driver that does not answer says nothing.
#pragma once

#include <string>

namespace vma::verbs::xdp {

// Receive queues that are in use now; 0: not known. The kernel's netlink tells only how many were allocated.
unsigned queues_in_use(const std::string& name) noexcept;
// The driver's name; empty: not known.
std::string driver_of(const std::string& name);
// Does the netdev take TCP frames longer than its MTU (tcp-segmentation-offload)?
bool segments_tcp(const std::string& name) noexcept;

}  // namespace vma::verbs::xdp
