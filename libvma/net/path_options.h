// SPDX-License-Identifier: BSD-2-Clause
// What of a socket's options decides the way of its packets.
#pragma once

#include <cstdint>

namespace vma::net {

struct PathOptions {
    int oif = 0;             // SO_BINDTODEVICE
    std::uint32_t mark = 0;  // SO_MARK
    unsigned lane = 0;       // whose ring (ring/lanes.h)
    std::uint8_t tos = 0, ttl = 64;
    bool dont_fragment = true;
};

}  // namespace vma::net
