// SPDX-License-Identifier: BSD-2-Clause
// What the wire's device does to frames as a NIC would: sums, and segmentation.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/wire/wire.h"

namespace vma::verbs::wire {

// The frame's UDP or TCP field holds the pseudo-header's sum: completes it.
void complete_sums(Frame& frame);

// Are the sums of IP, and of UDP or TCP, there and right?
bool sums_right(const Frame& frame);

// Cuts `payload` into TCP segments of `mss` bytes. `header`: Ethernet, IPv4 without options, TCP; its
// sequence number is the first segment's; PSH and FIN are left to the last. The TCP sum is the pseudo
// header's, to be completed. Identifications count up, unless the packets may not be fragmented, when they
// mean nothing (RFC 6864).
std::vector<Frame> cut_segments(const Frame& header, const Frame& payload, std::uint32_t mss);

}  // namespace vma::verbs::wire
