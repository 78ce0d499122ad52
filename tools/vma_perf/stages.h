// SPDX-License-Identifier: BSD-2-Clause
// The running table of --stages: a line for each interval, and one for the whole.
//
// Columns: the stage, the number of messages, latency in us (a percentile, average, overall), bandwidth in
// MB/s (average, overall) and messages per second (average, overall).
//
// "average" is of the interval, "overall" of everything so far.
#pragma once

#include <string>

#include "tools/vma_perf/result.h"
#include "tools/vma_perf/run.h"

namespace vma_perf {

class StageTable {
  public:
    // `percentile`: which one the table shows. One-way runs have no latencies: dashes.
    StageTable(double percentile, bool whole_round_trip, bool throughput)
        : percentile_(percentile), divisor_(whole_round_trip ? 1000 : 2000), throughput_(throughput) {}

    std::string head() const;
    std::string line(const Stage& stage) const;
    std::string last_line(const Result& result) const;

  private:
    std::string row(const std::string& name, std::uint64_t messages, const Distribution& piece,
                    const Distribution& all, double bytes_per_s, double all_bytes_per_s, double rate,
                    double all_rate) const;

    const double percentile_;
    const double divisor_;  // ns to what is shown in us
    const bool throughput_;
};

}  // namespace vma_perf
