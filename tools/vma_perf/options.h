// SPDX-License-Identifier: BSD-2-Clause
// The command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tools/common/options.h"
#include "tools/vma_perf/params.h"
#include "tools/vma_perf/server.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {

struct ClientOptions {
    std::string host;
    std::uint16_t port = 0;
    std::vector<Params> runs;  // one for each size
    std::vector<unsigned> cpus;
    bool whole_round_trip = false;
    bool stages = false;
    double interval = 1;                   // seconds of a stage
    double percentile = 50;                // that stages show
    std::optional<std::string> json, csv;  // file; "-": standard output in place of the summary
    std::string log, plot;                 // files; empty: none
    std::vector<std::string> plot_with;
    std::string label;   // empty: made from what was measured
    bool quiet = false;  // no progress
};

struct CompareOptions {
    std::vector<std::string> files;  // the first is what the others are compared with
    unsigned resamples = 2000;
    double confidence = 95;  // per cent
    std::uint64_t seed = 1;
    std::string plot;
    std::optional<std::string> json;
};

enum class Sides { both, client, server };

struct RaceOptions {
    std::vector<std::string> arguments;  // of the client, without HOST
    unsigned rounds = 5;
    std::string library;        // empty: found beside the program or where it is installed
    Sides sides = Sides::both;  // that libvma is on
    std::string json, plot;
    bool quiet = false;
};

// What the command line asks for. Without that, the caller prints what was said and exits with its status.
struct Parsed : tools::Said {
    std::variant<std::monostate, ServerOptions, ClientOptions, CompareOptions, RaceOptions> command;
};
Parsed parse_options(int argc, const char* const* argv);

}  // namespace vma_perf
