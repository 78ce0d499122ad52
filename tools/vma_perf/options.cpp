// SPDX-License-Identifier: BSD-2-Clause
// See options.h.
#include "tools/vma_perf/options.h"

#include <fmt/format.h>

#include <map>

#include "tools/common/cli.h"
#include "tools/vma_perf/client_options.h"
#include "tools/vma_perf/cpus.h"

namespace vma_perf {
namespace {

void add_server_options(CLI::App& app, ServerOptions& o, std::string& cpus) {
    add_port(app, o.port);
    app.add_option("--bind", o.bind,
                   "Address to listen on, and for the data (default: all, and where the client came in)")
        ->check(tools::quiet(CLI::ValidIPV4))
        ->type_name("ADDRESS");
    app.add_option("--clients", o.clients, "Ends after so many clients")
        ->check(tools::in_range(1u, 1u << 30))
        ->type_name("NUMBER");
    app.add_option("--cpus", cpus, "Processors for the threads of a run, in turn: 0,2-4")->type_name("LIST");
    app.add_flag("-q,--quiet", o.quiet, "Prints nothing about clients");
}

CLI::Option* add_compare_options(CLI::App& app, CompareOptions& o, std::string& json) {
    app.add_option("FILES", o.files,
                   "Results written by --json; the first is what the others are compared with")
        ->required()
        ->expected(2, 20)
        ->type_name("");
    app.add_option("--confidence", o.confidence, "Of the interval, per cent")
        ->check(tools::in_range(50.0, 99.9))
        ->type_name("PERCENT")
        ->capture_default_str();
    app.add_option("--resamples", o.resamples, "Of the bootstrap")
        ->check(tools::in_range(100u, 1000000u))
        ->type_name("NUMBER")
        ->capture_default_str();
    app.add_option("--seed", o.seed, "Of its random numbers")
        ->check(tools::quiet(CLI::NonNegativeNumber))
        ->type_name("NUMBER")
        ->capture_default_str();
    app.add_option("--plot", o.plot, "Draws the percentile curves in one picture")->type_name("FILE.svg");
    return app.add_option("--json", json, "Writes the ratios there; without FILE, or -, to standard output")
        ->expected(0, 1)
        ->type_name("[FILE]");
}

void add_race_options(CLI::App& app, RaceOptions& o) {
    app.add_option("ARGS", o.arguments, "pingpong or throughput with its options, without HOST, after --")
        ->required()
        ->type_name("");
    app.add_option("--rounds", o.rounds, "Runs of each")
        ->check(tools::in_range(1u, 1000u))
        ->type_name("NUMBER")
        ->capture_default_str();
    app.add_option("--library", o.library,
                   "libvma.so (default: beside this program, or where it is installed)")
        ->type_name("FILE");
    app.add_option("--sides", o.sides, "Where libvma is: both, client or server")
        ->transform(CLI::CheckedTransformer(std::map<std::string, Sides>{{"both", Sides::both},
                                                                         {"client", Sides::client},
                                                                         {"server", Sides::server}})
                        .description(""))
        ->type_name("WHERE")
        ->default_str("both");
    app.add_option("--json", o.json, "Writes all results there")->type_name("FILE");
    app.add_option("--plot", o.plot, "Draws the percentile curves of both, each of the round with the median")
        ->type_name("FILE.svg");
    app.add_flag("-q,--quiet", o.quiet, "No progress");
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
    CLI::App app(
        "Measures round trips and rates between two machines, or two programs, over sockets or verbs.\n",
        "vma_perf");
    const std::string version = "vma_perf " VMA_VERSION;
    tools::add_usual_flags(app, version, 36, true);
    app.require_subcommand(1);
    app.footer(
        "\nExit status: 0 in order, 1 failed, 2 wrong usage, 3 no server there, 4 the other side ended, 5 "
        "versions do not match,\n"
        "6 wrong data, 7 not supported here, 8 not offloaded (race), 130 interrupted. See vma_perf(1).");

    ServerOptions server;
    ClientWords pingpong, throughput;
    CompareOptions compare;
    RaceOptions race;
    std::string server_cpus, compare_json;
    CLI::App* const server_app = app.add_subcommand("server", "Answers clients until it is interrupted");
    add_server_options(*server_app, server, server_cpus);
    CLI::App* const pingpong_app = app.add_subcommand("pingpong", "Measures round trips to a server");
    add_client_options(*pingpong_app, pingpong, false);
    CLI::App* const throughput_app =
        app.add_subcommand("throughput", "Measures what a server receives, one way");
    add_client_options(*throughput_app, throughput, true);
    CLI::App* const compare_app =
        app.add_subcommand("compare", "Ratios of results, with confidence intervals");
    const CLI::Option* const compare_to = add_compare_options(*compare_app, compare, compare_json);
    CLI::App* const race_app =
        app.add_subcommand("race", "Kernel against libvma, in two network namespaces of its own");
    add_race_options(*race_app, race);

    Parsed result;
    const auto parse = [&] {
        app.parse(argc, argv);
        if (server_app->parsed()) {
            if (!server_cpus.empty()) server.cpus = parse_cpus(server_cpus, "--cpus");
            result.command = std::move(server);
        } else if (pingpong_app->parsed()) {
            result.command = finish_client(pingpong);
        } else if (throughput_app->parsed()) {
            result.command = finish_client(throughput);
        } else if (compare_app->parsed()) {
            if (compare_to->count() != 0) compare.json = compare_json.empty() ? "-" : compare_json;
            result.command = std::move(compare);
        } else {
            result.command = std::move(race);
        }
    };
    try {
        static_cast<tools::Said&>(result) = tools::parse_with(
            app, version, "vma_perf", "Try vma_perf --help, or vma_perf COMMAND --help.", parse);
    } catch (const Failure& error) {
        result.status = error.status();
        result.err = fmt::format("vma_perf: {}\n", error.what());
    }
    return result;
}

}  // namespace vma_perf
