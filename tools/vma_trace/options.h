// SPDX-License-Identifier: BSD-2-Clause
// The options in the environment. One table, kOptions, is the source of reading and documentation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace vma_trace {

struct Options {
    // Files; empty: not wanted. A %d in them becomes the process id.
    std::string file, json, csv;
    std::size_t records = 1024;       // finished requests kept for each queue
    std::size_t lines = 0;            // of those, printed for each queue
    std::size_t outstanding = 16384;  // requests followed at once in queues whose size is unknown
    bool hardware_time = true;        // CQs get time stamps where the device has them
    bool signals = true;              // the report is written as well when a signal ends the process
    bool quiet = false;               // no report for people
};

struct OptionRow {
    const char* name;
    const char* meaning;
    std::string Options::*text;
    std::size_t Options::*number;
    bool Options::*flag;
    std::size_t most;
};
std::span<const OptionRow> option_table() noexcept;

// Reads all options by `get` (getenv or its like). An option with a wrong value keeps its default, and
// `complaints` says so.
Options read_options(const char* (*get)(const char*), std::vector<std::string>& complaints);

}  // namespace vma_trace
