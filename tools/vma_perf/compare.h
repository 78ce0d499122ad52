// SPDX-License-Identifier: BSD-2-Clause
// vma_perf compare: ratios of results.
#pragma once

#include "tools/vma_perf/options.h"

namespace vma_perf {

// A value that compare sets side by side. `key`: in "latency_us", in the result itself and in its blocks.
struct Metric {
    const char* key;
    const char* title;
    bool latency;    // less is better; else more is
    bool in_blocks;  // the pieces of a run know it
};
inline constexpr Metric kMetrics[] = {
    {"p50", "p50, us", true, true},         {"p90", "p90, us", true, true},
    {"p99", "p99, us", true, true},         {"p99.9", "p99.9, us", true, true},
    {"p99.99", "p99.99, us", true, false},  {"max", "max, us", true, false},
    {"average", "average, us", true, true}, {"received_per_s", "received/s", false, true}};

// Value of a metric in a result; negative: it has none.
double metric_value(const nlohmann::json& result, const Metric& metric);
// Three digits and more only where they mean something.
std::string significant(double value);

// Prints; returns the exit status. Throws Failure.
int run_compare(const CompareOptions& options);

}  // namespace vma_perf
