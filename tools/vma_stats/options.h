// SPDX-License-Identifier: BSD-2-Clause
// The command line: the manual's table 11 and what came since.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/common/options.h"
#include "tools/vma_stats/commands.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {

enum class Output { view, json, prometheus, serve, top, explain, parameters };

struct Options {
    std::string directory;  // where the files are
    std::optional<pid_t> pid;
    std::string name;   // of the program; empty: any
    bool clean = true;  // remove files that processes left behind
    bool wait = false;  // until there is a process to watch
    Output output = Output::view;
    int view = 1;
    Shape shape;
    double interval = 1;  // seconds
    long cycles = 0;      // 0: for ever
    std::vector<Instruction> instructions;
    bool only_instructions = false;  // nothing was said about watching
    std::string listen;              // where to serve /metrics
};

// What the command line asks for. Without that, the caller prints what was said and exits with its status.
struct Parsed : tools::Said {
    std::optional<Options> options;
};
Parsed parse_options(int argc, const char* const* argv);

// Level names and numbers as VMA_TRACELEVEL takes them; 7 is the manual's highest and means all.
std::optional<int> log_level(const std::string& text);
const char* log_level_name(int level);

}  // namespace vma_stats
