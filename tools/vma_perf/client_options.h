// SPDX-License-Identifier: BSD-2-Clause
// The options of the client's commands, pingpong and throughput. options.cpp puts the commands together.
#pragma once

#include <cstdint>
#include <string>

#include "tools/common/cli.h"
#include "tools/vma_perf/options.h"

namespace vma_perf {

// What the options of one client command write to. finish_client() puts it together.
struct ClientWords {
    ClientOptions options;
    Params params;
    std::string sizes, cpus, server_cpus, wait, server_wait, nagle;
    CLI::Option* iterations = nullptr;
    CLI::Option* seconds = nullptr;
    CLI::Option* connections = nullptr;
    CLI::Option* json = nullptr;
    CLI::Option* csv = nullptr;
    CLI::Option* interval = nullptr;
    CLI::Option* percentile = nullptr;
    std::string json_file, csv_file;
};

// -p, of the client and of the server.
void add_port(CLI::App& app, std::uint16_t& port);
// Adds the options of a client's command; `w` must live until finish_client().
void add_client_options(CLI::App& app, ClientWords& w, bool throughput);
// After parsing. Throws Failure with kUsage.
ClientOptions finish_client(ClientWords& w);

}  // namespace vma_perf
