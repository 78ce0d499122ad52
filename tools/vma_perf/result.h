// SPDX-License-Identifier: BSD-2-Clause
// The result of a run and its forms: JSON (which compare and --plot read), CSV, text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/vma_perf/groups.h"
#include "tools/vma_perf/latency.h"
#include "tools/vma_perf/params.h"
#include "tools/vma_perf/recorder.h"

namespace vma_perf {

// A short piece of the run, for comparisons: how far a value moves within a run tells how precise the value
// is.
struct Block {
    double p50 = 0, p90 = 0, p99 = 0, p999 = 0,
           average = 0;  // latency, ns of the whole round trip; 0: no latencies
    double received_per_s = 0;
};

struct Result {
    Params params;
    std::string label;
    std::string client_stack, server_stack;  // "kernel" or "libvma"
    double seconds = 0;                      // of the measured part
    Counters counters;                       // of the client
    Distribution latency;                    // ns, whole round trips; with a schedule from when they were due
    Distribution sent_latency;               // the same from when they were sent; only with a schedule
    nlohmann::json server;                   // its report
    std::vector<GroupResult> groups;         // one for each of --group
    nlohmann::json transport;                // counters of the transport, of the client
    std::vector<Block> blocks;
    std::uint64_t log_dropped = 0;
    bool whole_round_trip = false;  // --rtt: print that, not half of it
    bool interrupted = false;

    // Half, or all, of a round trip in microseconds.
    double us(double ns) const noexcept { return ns / (whole_round_trip ? 1000 : 2000); }
    // Ping-pong: answers the client received. Throughput: messages the server received.
    double received_per_s() const;
    std::uint64_t lost() const;
    std::uint64_t corrupt() const;
    // Payload bytes per second, one way, in units of 10^6.
    double megabytes_per_s() const;
};

// The percentiles that are printed, with their names in JSON.
struct NamedPercentile {
    const char* name;
    double percent;
};
inline constexpr NamedPercentile kPercentiles[] = {{"p25", 25},     {"p50", 50},       {"p75", 75},
                                                   {"p90", 90},     {"p95", 95},       {"p99", 99},
                                                   {"p99.9", 99.9}, {"p99.99", 99.99}, {"p99.999", 99.999}};

nlohmann::json to_json(const Result& result);
std::string csv_header();
std::string csv_line(const Result& result);
// Several lines for people.
std::string summary(const Result& result);
// A table of one line for each, for a run over several sizes.
std::string sizes_table(const std::vector<Result>& results);
// "64" or "64-1024".
std::string size_text(const Params& params);

}  // namespace vma_perf
