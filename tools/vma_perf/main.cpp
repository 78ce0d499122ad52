// SPDX-License-Identifier: BSD-2-Clause
// vma_perf: measures round trips and rates. docs/vma_perf.md tells how it is used.
//
//   options    the command line           transport  what carries messages: sockets/, raw/, rdma/
//   client     pingpong, throughput       load       what is sent when (pingpong, throughput)
//   run        one measurement            drain      the server's side of it
//   server     all clients                control    the connection on which both sides agree
//   latency, recorder, result, stages     the results and their forms
//   plot, compare, race                   pictures, ratios, kernel against libvma
#include <signal.h>
#include <stdio.h>

#include <atomic>
#include <exception>

#include "tools/common/signals.h"
#include "tools/vma_perf/client.h"
#include "tools/vma_perf/compare.h"
#include "tools/vma_perf/options.h"
#include "tools/vma_perf/race.h"
#include "tools/vma_perf/server.h"

namespace {

std::atomic<bool> g_interrupted{false};

// The first signal ends the current work in order; the second one ends the program.
void catch_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { g_interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (const int signal : tools::kEndSignals) tools::handle_unless_ignored(signal, action);
    signal(SIGPIPE, SIG_IGN);
}

int run(const vma_perf::Parsed& parsed) {
    using namespace vma_perf;
    if (const auto* const server = std::get_if<ServerOptions>(&parsed.command)) {
        serve(*server, g_interrupted);
        return kOk;
    }
    if (const auto* const client = std::get_if<ClientOptions>(&parsed.command))
        return run_client(*client, g_interrupted);
    if (const auto* const compare = std::get_if<CompareOptions>(&parsed.command))
        return run_compare(*compare);
    if (const auto* const race = std::get_if<RaceOptions>(&parsed.command))
        return run_race(*race, g_interrupted);
    return parsed.status;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const vma_perf::Parsed parsed = vma_perf::parse_options(argc, argv);
        parsed.print();
        catch_signals();
        return run(parsed);
    } catch (const vma_perf::Failure& failure) {
        fprintf(stderr, "vma_perf: %s\n", failure.what());
        return failure.status();
    } catch (const std::exception& error) {
        // Memory may be missing.
        fprintf(stderr, "vma_perf: %s\n", error.what());
        return vma_perf::kFailed;
    }
}
