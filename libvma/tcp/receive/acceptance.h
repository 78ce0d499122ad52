// SPDX-License-Identifier: BSD-2-Clause
// What decides whether a received segment is taken, and when the last ones came.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

namespace vma::tcp {

struct Acceptance {
    std::uint64_t last_rx_ns = 0;      // the last segment
    std::uint64_t last_ack_rx_ns = 0;  // the last acceptable ACK
    std::uint64_t ts_recent_ns = 0;    // the last time stamp
    std::uint32_t window_seq = 0;      // SND.WL1: the segment that the peer's window was last taken from
    unsigned challenges = 0;           // ACKs since challenge_window_start
    std::uint64_t challenge_window_start = 0;
};

}  // namespace vma::tcp
