// SPDX-License-Identifier: BSD-2-Clause
// What a ring counts. Each part counts in a struct of its own, under the part's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "libvma/net/frame.h"

namespace vma::ring {

struct RxCounters {
    std::uint64_t rx_frames = 0, rx_bytes = 0;
    std::uint64_t rx_no_socket = 0;    // a rule matched, but its socket has just gone
    std::uint64_t rx_no_buffer = 0;    // datagrams dropped to keep the queue filled
    std::uint64_t rx_copied = 0;       // datagrams copied out of the ring's buffers, since these became few
    std::uint64_t rx_bad_source = 0;   // the kernel would not have taken it either: martians, rp_filter
    std::uint64_t rx_refused = 0;      // the socket's queue was full
    std::uint64_t rx_to_kernel = 0;    // no socket here, given to the kernel (DeviceAttr::coarse_steering)
    std::uint64_t rx_strays = 0;       // TCP segments that came by the kernel (StraySegments)
    std::uint64_t rx_error = 0;        // completions with an error status, without those of flushed requests
    std::uint64_t rx_drained_max = 0;  // most frames taken by one poll, since reset_drained_max()
    std::array<std::uint64_t, static_cast<std::size_t>(net::Drop::count_)> rx_bad{};  // by net::Drop
};

struct TxCounters {
    std::uint64_t tx_frames = 0, tx_bytes = 0;
    std::uint64_t tx_error = 0;        // completions with an error status, without those of flushed requests
    std::uint64_t tx_lost = 0;         // requests that such an error took with it
    std::uint64_t tx_no_buffer = 0;    // a send found no free buffer even after a kick
    std::uint64_t tx_retransmits = 0;  // TCP segments sent again
};

struct RingCounters : RxCounters, TxCounters {
    std::uint64_t recoveries = 0;       // the QP was brought back to work
    std::uint64_t tcp_connections = 0;  // had a rule of their own here
    std::uint64_t rules = 0;            // flow rules now
    std::uint64_t flows_taken = 0;      // flows that moved here from another ring
    // Times a thread found a lock taken: of receiving, of sending, and of what rings share in the device.
    std::uint64_t rx_lock_waits = 0, tx_lock_waits = 0, device_lock_waits = 0;
};

// Where a ring's buffers are. What is in none of these places is held by sinks, or waits in the device's CQ.
struct BufferCounts {
    std::uint32_t rx_total = 0, rx_posted = 0, rx_free = 0;
    std::uint32_t tx_total = 0, tx_free = 0;
};

}  // namespace vma::ring
