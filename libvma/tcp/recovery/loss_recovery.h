// SPDX-License-Identifier: BSD-2-Clause
// What is lost, how much may be in flight, and how long the way takes.
//
// Under the connection's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "libvma/tcp/recovery/congestion.h"
#include "libvma/tcp/recovery/rtt.h"

namespace vma::tcp {

struct SegmentBoard;

struct LossRecovery {
    Congestion cc;
    RttEstimator rtt;
    std::uint32_t rtt_seq = 0;       // segment being timed ends here
    std::uint64_t rtt_start_ns = 0;  // 0: none
    bool app_limited = false;        // the program has written less than might be sent
    std::unique_ptr<SegmentBoard> scoreboard;
    bool tail_probed = false;   // since the last ACK
    std::uint32_t retries = 0;  // timeouts in a row
    std::uint64_t first_retry_ns = 0;
};

}  // namespace vma::tcp
