// SPDX-License-Identifier: BSD-2-Clause
// One run of the client: the client tells the server, both sides connect, threads measure, and the client
// collects their results.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tools/vma_perf/control.h"
#include "tools/vma_perf/result.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {

// What happened between two looks, for the running table and the progress line.
struct Stage {
    double at = 0, length = 0;  // seconds since the beginning of the measured part; of this stage
    std::uint64_t messages = 0, bytes = 0, all_messages = 0,
                  all_bytes = 0;        // received, in this stage and so far
    Distribution latency, all_latency;  // ping-pong only
};

struct RunOptions {
    std::vector<unsigned> cpus;  // of the threads, in turn
    double stage_seconds = 0;    // 0: no stages
    std::function<void(const Stage&)> stage;
    // Called some ten times a second with the part that is done (0 to 1; negative: warm-up) and the messages
    // received so far.
    std::function<void(double part, std::uint64_t messages)> progress;
    std::function<void(const Sample&)> log;  // every round trip; from the thread that calls run()
};

// Throws Failure. `interrupted` ends the run early, which the result says.
Result run(Control& control, const Params& params, const Place& place, const RunOptions& options,
           const std::atomic<bool>& interrupted);

}  // namespace vma_perf
