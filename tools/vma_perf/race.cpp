// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/race.h"

#include <fmt/format.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/common/json.h"
#include "tools/vma_perf/arena.h"
#include "tools/vma_perf/bootstrap.h"
#include "tools/vma_perf/child.h"
#include "tools/vma_perf/compare.h"
#include "tools/vma_perf/files.h"
#include "tools/vma_perf/plot.h"
#include "tools/vma_perf/progress.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;

constexpr double kKernelMay =
    0.1;  // part of the messages that may pass the kernel's protocol when libvma has the socket
constexpr std::uint64_t kLargestSegment = 65536;  // bytes the kernel moves as one TCP segment, at most
constexpr std::uint16_t kPort = 18600;
const char* const kStacks[] = {"kernel", "libvma"};

std::filesystem::path own_path() {
    std::error_code error;
    auto path = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) throw Failure(kFailed, "/proc/self/exe cannot be read");
    return path;
}

// Beside the program, as it is built, as it is installed.
std::string find_library(const std::string& given) {
    std::vector<std::filesystem::path> places;
    if (!given.empty()) {
        places.emplace_back(given);
    } else {
        const auto here = own_path().parent_path();
        places = {here / "libvma.so", here / "../../libvma/libvma.so", here / "../lib/libvma.so",
                  VMA_LIBRARY_DIRECTORY "/libvma.so"};
    }
    for (const auto& place : places) {
        std::error_code error;
        if (std::filesystem::is_regular_file(place, error)) return std::filesystem::canonical(place).string();
    }
    throw Failure(kUsage, given.empty() ? "libvma.so is neither beside vma_perf nor installed: --library FILE"
                                        : given + ": no such file");
}

// The client's options, tried before anything is started.
ClientOptions check_arguments(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv{"vma_perf"};
    for (const std::string& word : arguments) argv.push_back(word.c_str());
    argv.push_back(Arena::address(Arena::server));
    const Parsed parsed = parse_options(static_cast<int>(argv.size()), argv.data());
    const auto* const client = std::get_if<ClientOptions>(&parsed.command);
    if (client == nullptr)
        throw Failure(kUsage,
                      "race takes pingpong or throughput with its options, without HOST, after --" +
                          (parsed.err.empty() ? "" : ": " + parsed.err.substr(0, parsed.err.find('\n'))));
    if (client->json || client->csv || client->stages || !client->log.empty() || !client->plot.empty())
        throw Failure(
            kUsage,
            "race: outputs are race's own; --json, --csv, --stages, --log and --plot do not go behind --");
    for (const Params& params : client->runs)
        if (params.transport != "udp" && params.transport != "tcp")
            throw Failure(kUsage,
                          "race: only sockets can be the kernel's and libvma's: --transport udp or tcp");
    return *client;
}

class Race {
  public:
    Race(const RaceOptions& options, const std::atomic<bool>& interrupted)
        : options_(options),
          interrupted_(interrupted),
          client_(check_arguments(options.arguments)),
          library_(find_library(options.library)),
          progress_(options.quiet) {}

    int run() {
        if (!options_.json.empty()) json_.emplace(options_.json);
        if (!options_.plot.empty()) plot_.emplace(options_.plot);
        for (unsigned round = 0; round < options_.rounds; ++round) {
            results_.emplace_back();
            for (unsigned i = 0; i < 2; ++i) {
                const bool with_library = (round % 2 == 0) == (i == 1);
                progress_.show(
                    fmt::format("round {} of {}: {}", round + 1, options_.rounds, kStacks[with_library]),
                    true);
                results_.back()[with_library] = one(with_library);
            }
        }
        progress_.clear();
        print_table();
        write_outputs();
        return kOk;
    }

  private:
    using Results = std::vector<nlohmann::json>;  // one for each size

    // Runs both sides once.
    Results one(bool with_library) {
        arena_.wait_until_free();
        const bool on_server = with_library && options_.sides != Sides::client;
        const bool on_client = with_library && options_.sides != Sides::server;
        const std::string self = own_path().string();
        std::uint64_t before[2];
        for (const auto side : {Arena::client, Arena::server})
            before[side] = arena_.kernel_packets(side, tcp());
        Child server({.arguments = {self, "server", "--clients", "1", "--port", std::to_string(kPort)},
                      .netns = arena_.netns(Arena::server),
                      .preload = on_server ? library_ : ""});
        if (!server.wait_for_output("listens", 10s))
            throw Failure(kFailed, "the server did not start: " + server.err());
        Start start{
            .arguments = {self}, .netns = arena_.netns(Arena::client), .preload = on_client ? library_ : ""};
        start.arguments.insert(start.arguments.end(), options_.arguments.begin(), options_.arguments.end());
        for (const char* word : {Arena::address(Arena::server), "--port", "", "--json", "-"})
            start.arguments.emplace_back(*word != '\0' ? word : std::to_string(kPort));
        Child client(start);
        const int status = client.wait(interrupted_);
        if (interrupted_.load()) throw Failure(kInterrupted, "interrupted");
        if (status != kOk) {
            std::string text = client.err();
            while (text.ends_with('\n')) text.pop_back();
            throw Failure(
                status <= kNotOffloaded ? static_cast<Status>(status) : kFailed,
                fmt::format("the client on {} failed: {}", on_client ? "libvma" : "the kernel", text));
        }
        const auto json = nlohmann::json::parse(client.out(), nullptr, false);
        if (json.is_discarded()) throw Failure(kFailed, "the client printed no result");
        const Results results = json.contains("results") ? json["results"].get<Results>() : Results{json};
        server.wait(interrupted_);
        if (on_client) check_offloaded(Arena::client, before[Arena::client], results);
        if (on_server) check_offloaded(Arena::server, before[Arena::server], results);
        return results;
    }

    bool tcp() const { return client_.runs.front().transport == "tcp"; }

    // Throws if the library silently left the work to the kernel.
    void check_offloaded(Arena::Side side, std::uint64_t before, const Results& results) const {
        const std::uint64_t used = arena_.kernel_packets(side, tcp()) - before;
        std::uint64_t messages = 0, bytes = 0;
        for (const nlohmann::json& r : results) {
            const auto received = r.value("received", std::uint64_t{0});
            messages += received;
            bytes += received * r.at("params").value("min_size", std::uint64_t{0});
        }
        // The least that the kernel would have counted: many messages may share a segment.
        const double least =
            static_cast<double>(tcp() ? std::min(messages, bytes / kLargestSegment) : messages);
        if (static_cast<double>(used) > std::max(least * kKernelMay, 100.0))
            throw Failure(
                kNotOffloaded,
                fmt::format("not offloaded: {} packets went through the kernel's {} on the {}, which had "
                            "libvma (VMA_TRACELEVEL=debug tells why)",
                            used, tcp() ? "TCP" : "UDP", side == Arena::client ? "client" : "server"));
    }

    void print_table() const {
        const char* const where = options_.sides == Sides::both     ? "both sides"
                                  : options_.sides == Sides::client ? "the client only"
                                                                    : "the server only";
        std::string out = fmt::format(
            "race: {}; libvma on {}; medians of {} round{}, ratios within a round\n",
            fmt::join(options_.arguments, " "), where, options_.rounds, options_.rounds == 1 ? "" : "s");
        for (std::size_t size = 0; size < client_.runs.size(); ++size) {
            out += fmt::format("{} bytes{:>20}{:>12}{:>14}   95 % confidence\n", size_of(size), "kernel",
                               "libvma", "times better");
            for (const Metric& metric : kMetrics) {
                const auto values = [&](bool with_library) {
                    std::vector<double> v;
                    for (const auto& round : results_)
                        v.push_back(metric_value(round[with_library][size], metric));
                    return v;
                };
                const std::vector<double> kernel = values(false), libvma = values(true);
                if (std::ranges::min(kernel) <= 0 || std::ranges::min(libvma) <= 0) continue;
                std::vector<double> better;
                for (std::size_t i = 0; i < kernel.size(); ++i)
                    better.push_back(metric.latency ? kernel[i] / libvma[i] : libvma[i] / kernel[i]);
                const Interval interval = median_of_ratios(better, {});
                out += fmt::format("  {:<14}{:>12}{:>12}{:>14.2f}", metric.title, significant(median(kernel)),
                                   significant(median(libvma)), interval.ratio);
                if (interval.low < interval.high)
                    out += fmt::format("   {:.2f} to {:.2f}", interval.low, interval.high);
                out += "\n";
            }
        }
        fputs(out.c_str(), stdout);
        fflush(stdout);
    }
    std::string size_of(std::size_t index) const { return results_.front()[0][index].value("size", "?"); }

    void write_outputs() {
        if (json_) {
            nlohmann::json json{
                {"tool", "vma_perf"}, {"race", options_.arguments}, {"rounds", nlohmann::json::array()}};
            for (const auto& round : results_)
                json["rounds"].push_back({{"kernel", round[0]}, {"libvma", round[1]}});
            json_->write(tools::json_text(json, 1));
            json_->close();
        }
        if (!plot_) return;
        std::vector<Curve> curves;
        for (std::size_t size = 0; size < client_.runs.size(); ++size)
            for (const bool with_library : {false, true})
                curves.push_back(curve_of(middle_round(size, with_library), "race"));
        plot_->write(draw(curves));
        plot_->close();
    }

    // The result of the round whose median latency is in the middle.
    const nlohmann::json& middle_round(std::size_t size, bool with_library) const {
        std::vector<const nlohmann::json*> all;
        for (const auto& round : results_) all.push_back(&round[with_library][size]);
        const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
        std::nth_element(all.begin(), middle, all.end(),
                         [](const nlohmann::json* a, const nlohmann::json* b) {
                             return metric_value(*a, kMetrics[0]) < metric_value(*b, kMetrics[0]);
                         });
        return **middle;
    }

    const RaceOptions& options_;
    const std::atomic<bool>& interrupted_;
    const ClientOptions client_;
    const std::string library_;
    Progress progress_;
    Arena arena_;
    std::optional<OutputFile> json_, plot_;
    std::vector<std::array<Results, 2>> results_;  // of each round: kernel, libvma
};

}  // namespace

int run_race(const RaceOptions& options, const std::atomic<bool>& interrupted) {
    if (options.arguments.empty() || (!options.plot.empty() && options.arguments.front() == "throughput"))
        throw Failure(kUsage, "--plot: a throughput test has no latencies to draw");
    return Race(options, interrupted).run();
}

}  // namespace vma_perf
