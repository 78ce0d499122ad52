// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/client.h"

#include <fmt/format.h>
#include <stdio.h>

#include "tools/common/json.h"
#include "tools/vma_perf/control.h"
#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/files.h"
#include "tools/vma_perf/plot.h"
#include "tools/vma_perf/progress.h"
#include "tools/vma_perf/run.h"
#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/stages.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;

void print(const std::string& text) {
    fputs(text.c_str(), stdout);
    fflush(stdout);
}

std::string label_of(const ClientOptions& o, const Result& r) {
    if (!o.label.empty())
        return o.runs.size() == 1 ? o.label : fmt::format("{}, {} bytes", o.label, size_text(r.params));
    const std::string stack = r.client_stack == r.server_stack
                                  ? r.client_stack
                                  : fmt::format("{} to {}", r.client_stack, r.server_stack);
    return fmt::format("{} {}, {} bytes", stack, r.params.transport, size_text(r.params));
}

// Standard output is the JSON's or the CSV's alone.
bool has_stdout(const ClientOptions& o) { return o.json != "-" && o.csv != "-"; }

class Client {
  public:
    Client(const ClientOptions& options, const std::atomic<bool>& interrupted)
        : options_(options), interrupted_(interrupted), progress_(options.quiet) {}

    int run() {
        check_cpus(options_.cpus, "--cpus");
        // What cannot be written is told before the measurement.
        open_outputs();
        connect();
        for (const Params& params : options_.runs) {
            results_.push_back(one(params));
            Result& result = results_.back();
            result.whole_round_trip = options_.whole_round_trip;
            result.label = label_of(options_, result);
            progress_.clear();
            if (csv_) csv_->write(csv_line(result));
            if (has_stdout(options_) && options_.runs.size() == 1)
                print((options_.stages ? "\n" : "") + summary(result));
            if (result.interrupted) break;
        }
        control_->send({{"bye", true}});
        if (has_stdout(options_) && options_.runs.size() > 1)
            print((options_.stages ? "\n" : "") + sizes_table(results_));
        write_outputs();
        return status();
    }

  private:
    void open_outputs() {
        if (options_.json) json_.emplace(*options_.json);
        if (options_.csv) {
            csv_.emplace(*options_.csv);
            csv_->write(csv_header());
        }
        if (!options_.plot.empty()) {
            plot_.emplace(options_.plot);
            for (const std::string& file : options_.plot_with) read_curves(file, curves_);
        }
        if (!options_.log.empty()) {
            log_.emplace(options_.log);
            log_->write("connection,sequence,size,due_us,sent_us,received_us,latency_us\n");
        }
    }

    void connect() {
        const std::string server = fmt::format("{}:{}", options_.host, options_.port);
        progress_.show("connecting to " + server, true);
        place_.peer = resolve(options_.host);
        const auto limit = std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options_.runs.front().timeout));
        tools::Fd fd =
            connect_to(make_address(place_.peer, options_.port), Clock::now() + limit, &interrupted_);
        place_.local = ip_text(local_address(fd.get()));
        control_.emplace(std::move(fd), "the server " + server);
        control_->hello(Clock::now() + limit, &interrupted_);
    }

    Result one(const Params& params) {
        const StageTable table(options_.percentile, options_.whole_round_trip, params.throughput);
        FILE* const stages_to = has_stdout(options_) ? stdout : stderr;
        const auto say = [&](const std::string& text) {
            progress_.clear();
            fputs(text.c_str(), stages_to);
            fflush(stages_to);
        };
        RunOptions run_options;
        run_options.cpus = options_.cpus;
        if (options_.stages) {
            if (options_.runs.size() > 1) say(fmt::format("{} bytes\n", size_text(params)));
            say(table.head());
            run_options.stage_seconds = options_.interval;
            run_options.stage = [&](const Stage& stage) { say(table.line(stage)); };
        }
        if (progress_.active())
            run_options.progress = [&](double part, std::uint64_t messages) {
                progress_.show(part < 0 ? fmt::format("{} bytes: warming up", size_text(params))
                                        : fmt::format("{} bytes: {:.0f} %, {} messages", size_text(params),
                                                      part * 100, messages));
            };
        if (log_)
            run_options.log = [&](const Sample& s) {
                log_->write(fmt::format(
                    "{},{},{},{:.3f},{:.3f},{:.3f},{:.3f}\n", s.connection, s.sequence, s.size,
                    static_cast<double>(s.due_ns) / 1e3, static_cast<double>(s.sent_ns) / 1e3,
                    static_cast<double>(s.received_ns) / 1e3,
                    static_cast<double>(s.received_ns - s.due_ns) / (options_.whole_round_trip ? 1e3 : 2e3)));
            };
        Result result = vma_perf::run(*control_, params, place_, run_options, interrupted_);
        if (options_.stages) {
            result.whole_round_trip = options_.whole_round_trip;
            say(table.last_line(result));
        }
        return result;
    }

    void write_outputs() {
        if (json_) {
            // One result stands for itself; several are a list in one object.
            nlohmann::json json;
            if (options_.runs.size() == 1) {
                json = to_json(results_.front());
            } else {
                json["tool"] = "vma_perf";
                json["version"] = VMA_VERSION;
                for (const Result& result : results_) json["results"].push_back(to_json(result));
            }
            json_->write(tools::json_text(json, 1));
            json_->close();
        }
        if (csv_) csv_->close();
        if (log_) log_->close();
        if (plot_) {
            for (const Result& result : results_) curves_.push_back(curve_of(to_json(result), "this run"));
            plot_->write(draw(curves_));
            plot_->close();
        }
    }

    int status() const {
        std::uint64_t corrupt = 0;
        for (const Result& result : results_) corrupt += result.corrupt();
        if (corrupt > 0) throw Failure(kData, fmt::format("{} messages were not what was sent", corrupt));
        return results_.back().interrupted ? kInterrupted : kOk;
    }

    const ClientOptions& options_;
    const std::atomic<bool>& interrupted_;
    Progress progress_;
    std::optional<OutputFile> json_, csv_, plot_, log_;
    std::vector<Curve> curves_;
    Place place_;
    std::optional<Control> control_;
    std::vector<Result> results_;
};

}  // namespace

int run_client(const ClientOptions& options, const std::atomic<bool>& interrupted) {
    return Client(options, interrupted).run();
}

}  // namespace vma_perf
