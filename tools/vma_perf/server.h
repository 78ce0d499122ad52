// SPDX-License-Identifier: BSD-2-Clause
// vma_perf server: serves any number of clients, several at once, each on threads of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace vma_perf {

struct ServerOptions {
    std::string bind;  // IPv4 address; empty: all
    std::uint16_t port = 0;
    unsigned clients = 0;        // end after so many; 0: never
    std::vector<unsigned> cpus;  // for the threads of a run, in turn; empty: wherever
    bool quiet = false;
};

// Serves until `stop` is set or enough clients were there. Throws Failure when it cannot begin. A client's
// errors are printed and end that client only.
void serve(const ServerOptions& options, const std::atomic<bool>& stop);

}  // namespace vma_perf
