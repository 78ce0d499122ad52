// SPDX-License-Identifier: BSD-2-Clause
// When an ACK is due: what has come since the last one, and what kind of traffic it is.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

namespace vma::tcp {

struct AckPolicy {
    static constexpr std::uint32_t kBulkSegments = 64;  // a stream, from here on

    std::uint32_t ack_due_bytes = 0;  // received since the last ACK left
    std::uint32_t acked_upto = 0;     // rcv_nxt in the last segment sent
    std::uint32_t quick_acks = 16;    // ACKs to send without delay, as Linux does when a connection begins
    std::uint32_t largest_in = 0;     // the peer's segments, as seen
    std::uint32_t bulk_bytes = 0;     // received without a pause in which the program sent data
    bool ack_when_idle = false;       // the ring is to remind the connection of an ACK that is due soon
    bool pingpong = false;            // requests and answers alternate: an ACK can wait for the answer
    std::uint64_t last_data_rx_ns = 0, last_data_tx_ns = 0;
};

}  // namespace vma::tcp
