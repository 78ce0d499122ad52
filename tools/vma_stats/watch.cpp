// SPDX-License-Identifier: BSD-2-Clause
// See watch.h.
#include "tools/vma_stats/watch.h"

#include <errno.h>
#include <fmt/format.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>

#include "tools/common/clock.h"
#include "tools/common/files.h"
#include "tools/vma_stats/formats.h"
#include "tools/vma_stats/http.h"
#include "tools/vma_stats/stop.h"

namespace vma_stats {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLookAgain = kSecond / 5;  // for a process to appear (--wait)

// Does the output show every process there is?
bool shows_all(const Options& o) {
    return !o.pid && (o.output != Output::view || o.view == 5) && o.output != Output::parameters;
}

void say_all(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) say(line);
}

// Finds the processes to watch; with --wait, waits for one. False: there is none.
bool find(Fleet& fleet, const Options& options) {
    for (bool first = true;; first = false) {
        auto found = fleet.find();
        say_all(fleet.complaints());
        if (found) return true;
        if (!options.wait || !found.error().may_come) {
            say_all(found.error().lines);
            return false;
        }
        if (first) say("waiting for a process...");
        wait_until(tools::now_ns(CLOCK_MONOTONIC) + kLookAgain, {});
        if (stopped()) return false;
    }
}

int instruct(const Attachment& process, const std::vector<Instruction>& instructions) {
    using vma::stats::Command;
    for (const Instruction& what : instructions) {
        const auto said = command(process, what);
        if (!said) {
            say(said.error());
            return kFailed;
        }
        std::string done;
        switch (what.command) {
            case Command::log_level:
                done = fmt::format("log level {} ({})", log_level_name(what.value), what.value);
                break;
            case Command::log_details:
                done = fmt::format("log details {}", what.value);
                break;
            case Command::zero:
                done = "counters zeroed";
                break;
            case Command::dump_socket:
                done = fmt::format("{} written to its log at level {}",
                                   what.value == 0 ? "all sockets" : fmt::format("socket {}", what.value),
                                   log_level_name(what.level));
                break;
            case Command::refresh:
                break;
        }
        say(fmt::format("process {} ({}): {}{}", process.pid(), process.program(), done,
                        said->empty() ? "" : " (" + *said + ")"));
    }
    return kOk;
}

class Reports {
  public:
    explicit Reports(const Options& options) : o_(options) {}

    std::string text(const std::vector<Sample>& samples) {
        std::vector<const Snapshot*> all;
        all.reserve(samples.size());
        for (const Sample& sample : samples) all.push_back(&sample.frame.now);
        if (o_.output == Output::prometheus) return prometheus_text(all, o_.shape);
        if (o_.output == Output::view && o_.view == 5)
            return samples.empty() ? "" : netstat_view(all, o_.shape);
        std::string out;
        for (const Sample& sample : samples) {
            // Differences need a report before.
            if (o_.shape.deltas && counts() && sample.frame.seconds == 0) continue;
            if (sample.ended && !worth_showing(sample)) continue;
            if (!out.empty() && o_.output == Output::explain) out += "\n";
            out += of_process(sample);
        }
        return out;
    }
    // Does delta mode matter?
    bool counts() const { return o_.output == Output::json || (o_.output == Output::view && o_.view <= 3); }

  private:
    // Of a process that has ended: the sockets it closed are gone, and an empty report tells nothing. Totals
    // in JSON do.
    bool worth_showing(const Sample& sample) const {
        return o_.output == Output::json || !sample.frame.now.sockets.empty();
    }

    std::string of_process(const Sample& sample) {
        const Frame& frame = sample.frame;
        switch (o_.output) {
            case Output::json:
                return json_line(frame, o_.shape);
            case Output::explain:
                return explain_view(frame.now, o_.shape);
            case Output::parameters:
                return parameters_view(frame.now);
            default:
                break;
        }
        if (o_.view == 3) {
            // A screen is cleared; a file is not.
            const bool screen = isatty(STDOUT_FILENO) != 0 && o_.cycles != 1;
            return (screen ? "\033[H\033[2J" : "") + full_view(frame, o_.shape);
        }
        if (o_.view == 4) return groups_view(frame, o_.shape);
        return views_.try_emplace(sample.pid, o_.shape, o_.view == 2).first->second.report(frame);
    }

    const Options& o_;
    std::map<pid_t, BasicView> views_;
};

bool print_report(const std::string& text) {
    if (tools::print(text)) return true;
    say(fmt::format("cannot write: {}", strerrordesc_np(errno)));
    return false;
}

// Reports until `options.cycles` reports are out, every process has ended, or a signal comes.
int report(Fleet& fleet, const Options& options) {
    Reports reports(options);
    const auto interval = static_cast<std::int64_t>(options.interval * 1e9);
    long done = 0;
    std::int64_t next = tools::now_ns(CLOCK_MONOTONIC);
    while (!stopped()) {
        const std::vector<Sample> samples = fleet.sample();
        say_all(fleet.complaints());
        const std::string text = reports.text(samples);
        if (!print_report(text)) return kFailed;
        for (const Sample& sample : samples)
            if (sample.ended) say(fmt::format("process {} ({}) has ended", sample.pid, sample.program));
        // The first look of delta mode is no report.
        const bool counted = !text.empty() || !reports.counts();
        if (counted && options.cycles != 0 && ++done >= options.cycles) break;
        if (fleet.empty()) {
            if (fleet.failed()) return kFailed;
            if (!options.wait || options.pid) break;
            if (!find(fleet, options)) return stopped() ? kOk : kFailed;
            continue;
        }
        // Reports keep their rhythm; a report that takes too long replaces those that were due meanwhile.
        next = std::max(next + interval, tools::now_ns(CLOCK_MONOTONIC));
        wait_until(next, fleet.pidfds());
    }
    return fleet.failed() ? kFailed : kOk;
}

int serve(const Options& options) {
    const auto server = HttpServer::listen(options.listen);
    if (!server) {
        say(server.error());
        return kFailed;
    }
    say(fmt::format("serving http://{}/metrics", server->address()));
    Fleet fleet(options, true);
    const auto metrics = [&] {
        // A process that does not run now may run at the next scrape.
        if (options.pid && fleet.empty() && !fleet.find()) return prometheus_text({}, options.shape);
        const std::vector<Sample> samples = fleet.sample();
        say_all(fleet.complaints());
        std::vector<const Snapshot*> all;
        for (const Sample& sample : samples)
            if (!sample.ended) all.push_back(&sample.frame.now);
        return prometheus_text(all, options.shape);
    };
    server->run(metrics, stopped);
    return kOk;
}

}  // namespace

void say(const std::string& line) { fprintf(stderr, "vmastat: %s\n", line.c_str()); }

int watch(const Options& options) {
    catch_signals();
    if (options.output == Output::serve && options.instructions.empty()) return serve(options);
    const bool all = shows_all(options) && options.instructions.empty();
    Fleet fleet(options, all);
    if (!find(fleet, options)) return stopped() ? kOk : kFailed;
    if (!options.instructions.empty()) {
        if (const int status = instruct(fleet.first(), options.instructions); status != kOk) return status;
        if (options.only_instructions) return kOk;
    }
    if (options.output == Output::serve) return serve(options);
    if (options.output == Output::top) return top(options, fleet);
    return report(fleet, options);
}

}  // namespace vma_stats
