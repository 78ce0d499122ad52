// SPDX-License-Identifier: BSD-2-Clause
// What the simulated adapter knows of Ethernet frames: headers, sums, cutting large sends. Pure functions
// over bytes, written without the library's own code, which they are there to check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/mlx5_sim/nic/nic.h"

namespace mlx5_sim {

// Where a frame's headers are; offsets from its first byte. Fields of headers that are absent or cut off are
// 0.
struct Headers {
    bool tagged = false;           // one 802.1Q tag
    std::uint16_t tci = 0;         // network order
    std::uint16_t ether_type = 0;  // network order; behind the tag
    std::size_t l3 = 0;            // 0: neither IPv4 nor IPv6
    std::size_t l3_bytes = 0;
    unsigned ip_version = 0;
    bool fragment = false;  // of IPv4: more follow, or it is not the first
    std::uint8_t protocol = 0;
    std::size_t l4 = 0;  // 0: neither UDP nor TCP, or a fragment
    std::size_t l4_header_bytes = 0;
    std::size_t l4_bytes = 0;  // header and payload, as IP says, without padding
};
Headers parse(std::span<const std::uint8_t> frame);

bool matches(const Match& match, std::span<const std::uint8_t> frame, const Headers& headers);
inline bool is_multicast(std::span<const std::uint8_t> frame) {
    return !frame.empty() && (frame[0] & 1) != 0;
}

// Puts right sums into the IPv4 header (l3) and the UDP or TCP header (l4), whatever was there. Absent
// headers and fragments are left.
void complete_checksums(Frame& frame, bool l3, bool l4);

// The two bytes of a receive completion that tell of headers and sums.
struct ReceiveBits {
    std::uint8_t hds_ip_ext = 0;
    std::uint8_t l4_hdr_type_etc = 0;
};
ReceiveBits receive_bits(std::span<const std::uint8_t> frame);

// Cuts `payload` into frames of at most `mss` bytes behind copies of `header`, which must be that of a TCP
// segment: lengths, IPv4 identifications, sequence numbers and flags follow; sums do not. Empty: the header
// is not one of TCP.
std::vector<Frame> cut(std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                       std::size_t mss);

}  // namespace mlx5_sim
