// SPDX-License-Identifier: BSD-2-Clause
// See options.h.
#include "tools/vma_stats/options.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/common/cli.h"
#include "tools/vma_stats/http.h"

namespace vma_stats {
namespace {

struct LevelName {
    const char* name;
    int level;
};
// The first name of a number is the one that is printed.
constexpr LevelName kLevels[] = {{"none", -1}, {"panic", 0},   {"error", 1},   {"warn", 2}, {"warning", 2},
                                 {"info", 3},  {"details", 3}, {"debug", 4},   {"fine", 5}, {"func", 5},
                                 {"finer", 6}, {"all", 6},     {"func_all", 6}};

// "-i=1", as the manual writes some options: the sign is no part of the value.
std::vector<std::string> arguments(int argc, const char* const* argv) {
    std::vector<std::string> words;
    for (int i = argc - 1; i > 0; i--) {
        std::string word = argv[i];
        if (word.size() > 2 && word[0] == '-' && word[1] != '-' && word[2] == '=') word.erase(2, 1);
        words.push_back(std::move(word));
    }
    return words;  // from the last to the first, as CLI11 takes them
}

// Throws if the command line has more than one of them: the options contradict each other.
void only_one_of(std::initializer_list<const CLI::Option*> options) {
    const CLI::Option* first = nullptr;
    for (const CLI::Option* option : options) {
        if (option->count() == 0) continue;
        if (first != nullptr)
            throw CLI::ValidationError(first->get_name(false, false),
                                       "does not go together with " + option->get_name(false, false));
        first = option;
    }
}

CLI::Validator level_name() {
    return CLI::Validator(
        [](std::string& text) {
            const auto level = log_level(text);
            return level ? std::string()
                         : text +
                               " is none of none, panic, error, warn, info, details, debug, fine, finer, "
                               "all, or 0 to 7";
        },
        "");
}

}  // namespace

std::optional<int> log_level(const std::string& text) {
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    for (const LevelName& known : kLevels)
        if (lower == known.name) return known.level;
    if (lower == "-1") return -1;
    if (lower.size() == 1 && lower[0] >= '0' && lower[0] <= '7') return std::min(lower[0] - '0', 6);
    return std::nullopt;
}

const char* log_level_name(int level) {
    for (const LevelName& known : kLevels)
        if (known.level == level) return known.name;
    return "unknown";
}

Parsed parse_options(int argc, const char* const* argv) {
    Options o;
    const char* from_environment = getenv("VMA_STATS_SHMEM_DIR");
    o.directory = from_environment != nullptr && *from_environment != '\0' ? from_environment
                                                                           : layout::kDefaultDirectory;

    CLI::App app(
        "Shows what libvma does in a running process: which sockets it serves, how much they carry, and why "
        "others are "
        "left to the kernel.\n",
        "vma_stats");
    const std::string version = "vma_stats " VMA_VERSION;
    tools::add_usual_flags(app, version, 38);

    // The code asks for flags with count(); nothing reads the variable that they set.
    bool given = false;
    const auto flag = [&](const std::string& name, const std::string& description) {
        return app.add_flag(name, given, description);
    };
    bool keep = false;
    const auto choose = [&](CLI::Option* option) { return option->group("Process"); };
    pid_t pid = 0;
    auto* const by_pid =
        choose(
            app.add_option("-p,--pid", pid, "Process to show; by default the only one that runs with libvma"))
            ->check(tools::in_range(1, 1 << 30))
            ->type_name("PID");
    auto* const by_name =
        choose(app.add_option("-n,--name", o.name, "Process to show, by the name of its program"))
            ->type_name("PROGRAM");
    auto* const by_finding =
        choose(flag("-f,--find_pid,--find-pid", "Finds the process that runs with libvma (the default)"));
    choose(app.add_option("-k,--directory", o.directory,
                          "Where the files are: VMA_STATS_SHMEM_DIR of the process"))
        ->type_name("DIRECTORY")
        ->capture_default_str();
    choose(app.add_flag("-F,--forbid_clean,--forbid-clean", keep,
                        "Keeps files that dead processes left behind"));
    choose(app.add_flag("--wait", o.wait,
                        "Waits until there is such a process, and for the next one when it ends"));

    const auto show = [&](CLI::Option* option) { return option->group("What to show"); };
    int details = 1;
    std::string sockets;
    auto* const view =
        show(app.add_option(
                 "-v,--view", o.view,
                 "1: counters (default), 2: with receive queues, 3: everything, 4: multicast groups, "
                 "5: sockets of all processes as netstat lists them"))
            ->check(tools::in_range(1, 5))
            ->type_name("1-5");
    auto* const detail =
        show(app.add_option("-d,--details", details, "1: totals (default), 2: what happened in a second"))
            ->check(tools::in_range(1, 2))
            ->type_name("1|2");
    auto* const interval =
        show(app.add_option("-i,--interval", o.interval, "Seconds between reports; fractions are allowed"))
            ->check(tools::in_range(0.01, 1e6))
            ->type_name("SECONDS")
            ->capture_default_str();
    auto* const cycles = show(app.add_option("-c,--cycles", o.cycles, "Number of reports, 0: no end"))
                             ->check(tools::in_range(0L, 1'000'000'000L))
                             ->type_name("NUMBER");
    auto* const list =
        show(app.add_option("-s,--sockets", sockets, "Only sockets with these descriptors: 4-16,9"))
            ->check([&o](const std::string& text) {
                return o.shape.sockets.parse(text)
                           ? std::string()
                           : text + " is no list of descriptors and ranges, as 4-16,9";
            })
            ->type_name("LIST");

    const auto output = [&](CLI::Option* option) { return option->group("Other outputs"); };
    auto* const json = output(flag("--json", "A JSON object for each report and process, one on each line"));
    std::string where;
    auto* const prometheus =
        output(app.add_option("--prometheus", where,
                              "Prometheus' text format, once; with a value serves it under /metrics"))
            ->expected(0, 1)
            ->type_name("[[ADDRESS:]PORT]");
    auto* const listen =
        output(app.add_option("--listen", o.listen, "Serves Prometheus' format under /metrics (127.0.0.1)"))
            ->type_name("[ADDRESS:]PORT");
    auto* const top = output(flag("--top", "Live on the whole screen, sorted by rate"));
    auto* const explain = output(flag("--explain", "Says of each socket which way its data goes, and why"));
    auto* const parameters =
        output(flag("--parameters", "The process's VMA_ parameters and where they come from"));

    const auto act = [&](CLI::Option* option) { return option->group("Commands to the process"); };
    std::string level;
    int details_level = 0;
    std::vector<std::string> dump;
    auto* const zero = act(flag("-z,--zero", "Zeroes its counters"));
    auto* const set_level =
        act(app.add_option("-l,--log_level,--log-level", level,
                           "Sets its log level: none, panic, error, warn, info, details, debug, fine, finer, "
                           "all, or a number"))
            ->check(level_name())
            ->type_name("LEVEL");
    auto* const set_details =
        act(app.add_option("-D,--details_level,--details-level", details_level, "Sets its log details"))
            ->check(tools::in_range(0, 3))
            ->type_name("0-3");
    auto* const dump_socket =
        act(app.add_option("-S,--dump", dump,
                           "Has it write what it knows of a socket (0: of all) to its log, at this level"))
            ->expected(1, 2)
            ->type_name("FD [LEVEL]");
    app.footer(
        "\nExit status: 0 in order, 1 nothing to show or a command failed, 2 wrong usage. See vma_stats(8).");

    Parsed result;
    static_cast<tools::Said&>(result) =
        tools::parse_with(app, version, "vmastat", "Try vma_stats --help.", [&] {
            app.parse(arguments(argc, argv));
            only_one_of({by_pid, by_name});
            only_one_of({by_pid, by_finding});
            only_one_of({view, json, prometheus, listen, top, explain, parameters});
            if (!std::isfinite(o.interval)) throw CLI::ValidationError("--interval", "not a number");
            if (set_level->count() != 0)
                o.instructions.push_back({vma::stats::Command::log_level, *log_level(level)});
            if (set_details->count() != 0)
                o.instructions.push_back({vma::stats::Command::log_details, details_level});
            if (dump_socket->count() != 0) {
                int fd = 0;
                if (!CLI::detail::lexical_cast(dump[0], fd) || fd < 0)
                    throw CLI::ValidationError("--dump", dump[0] + " is no descriptor");
                const auto at = log_level(dump.size() > 1 ? dump[1] : "info");
                if (!at) throw CLI::ValidationError("--dump", dump[1] + " is no log level");
                o.instructions.push_back({vma::stats::Command::dump_socket, fd, *at});
            }
            if (zero->count() != 0) o.instructions.push_back({vma::stats::Command::zero});
            if (prometheus->count() != 0 && !where.empty()) o.listen = where;
            if (!o.listen.empty() && !HttpServer::valid(o.listen))
                throw CLI::ValidationError(listen->count() != 0 ? "--listen" : "--prometheus",
                                           o.listen + ": expected PORT, ADDRESS:PORT or [IPv6 ADDRESS]:PORT");
            if (by_name->count() != 0 && o.name.empty())
                throw CLI::ValidationError("--name", "an empty name");
        });
    if (!result.out.empty() || result.status != 0) return result;

    if (by_pid->count() != 0) o.pid = pid;
    o.clean = !keep;
    o.shape.deltas = details == 2;
    if (json->count() != 0) o.output = Output::json;
    if (prometheus->count() != 0) o.output = Output::prometheus;
    if (!o.listen.empty()) o.output = Output::serve;
    if (top->count() != 0) o.output = Output::top;
    if (explain->count() != 0) o.output = Output::explain;
    if (parameters->count() != 0) o.output = Output::parameters;
    // Lists are printed once, unless an option asks for more reports.
    const bool lists = o.output == Output::explain || o.output == Output::parameters ||
                       o.output == Output::prometheus || (o.output == Output::view && o.view >= 4);
    if (lists && cycles->count() == 0 && interval->count() == 0) o.cycles = 1;
    o.only_instructions = !o.instructions.empty() && o.output == Output::view && view->count() == 0 &&
                          detail->count() == 0 && interval->count() == 0 && cycles->count() == 0 &&
                          list->count() == 0;
    result.options = std::move(o);
    return result;
}

}  // namespace vma_stats
