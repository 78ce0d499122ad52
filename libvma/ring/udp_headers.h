// SPDX-License-Identifier: BSD-2-Clause
// What completes the headers of a UDP datagram that was copied to a send buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/net/udp_headers.h"

namespace vma::ring {

// For TxQueue::post_frame().
struct UdpSums {
    std::size_t length;
    void operator()(std::uint8_t* frame, std::uint64_t sum, bool offload) const noexcept {
        net::finish_udp_frame(frame, length, sum, offload);
    }
};

}  // namespace vma::ring
