// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace vma_perf {
namespace {

// A percentile curve has this many points for each halving of what is above: as dense in the tail as at the
// median.
constexpr int kPointsPerHalf = 5;

nlohmann::json latency_json(const Result& r, const Distribution& d) {
    nlohmann::json json{{"min", r.us(d.min())},
                        {"average", r.us(d.average())},
                        {"stddev", r.us(d.deviation())},
                        {"max", r.us(d.max())}};
    for (const NamedPercentile& p : kPercentiles) json[p.name] = r.us(d.percentile(p.percent));
    return json;
}

nlohmann::json curve(const Result& r) {
    nlohmann::json points = nlohmann::json::array();
    const double samples = static_cast<double>(r.latency.count());
    for (int i = 0;; ++i) {
        const double above = std::pow(0.5, static_cast<double>(i) / kPointsPerHalf);  // part of the samples
        if (above * samples < 1) break;
        points.push_back({100 * (1 - above), r.us(r.latency.percentile(100 * (1 - above)))});
    }
    points.push_back({100.0, r.us(r.latency.max())});
    return points;
}

nlohmann::json blocks_json(const Result& r) {
    nlohmann::json blocks = nlohmann::json::array();
    for (const Block& b : r.blocks) {
        nlohmann::json block{{"received_per_s", b.received_per_s}};
        if (b.p50 > 0)
            block.update({{"p50", r.us(b.p50)},
                          {"p90", r.us(b.p90)},
                          {"p99", r.us(b.p99)},
                          {"p99.9", r.us(b.p999)},
                          {"average", r.us(b.average)}});
        blocks.push_back(std::move(block));
    }
    return blocks;
}

// Of the server's report; 0 when it says nothing of the kind.
std::uint64_t reported(const Result& r, const char* field) {
    const auto found = r.server.find(field);
    return found != r.server.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

std::uint64_t duplicates(const Result& r) { return r.counters.duplicates + reported(r, "duplicates"); }
std::uint64_t reordered(const Result& r) { return r.counters.reordered + reported(r, "reordered"); }
double server_rate(const Result& r) {
    const auto found = r.server.find("received_per_s");
    return found != r.server.end() && found->is_number() ? found->get<double>() : 0;
}
std::uint64_t received(const Result& r) {
    return r.params.throughput ? reported(r, "received") : r.counters.received;
}

}  // namespace

double Result::received_per_s() const {
    if (!params.throughput) return seconds > 0 ? static_cast<double>(counters.received) / seconds : 0;
    return server_rate(*this);
}

std::uint64_t Result::lost() const {
    if (!params.throughput) return counters.lost;
    const std::uint64_t arrived = reported(*this, "received");
    const std::uint64_t expected = counters.sent * params.sockets.group_sockets;
    return expected > arrived ? expected - arrived : 0;
}

std::uint64_t Result::corrupt() const { return counters.corrupt + reported(*this, "corrupt"); }

double Result::megabytes_per_s() const {
    const std::uint64_t messages = received(*this);
    if (messages == 0) return 0;
    const std::uint64_t bytes = params.throughput ? reported(*this, "bytes") : counters.bytes_received;
    return received_per_s() * (static_cast<double>(bytes) / static_cast<double>(messages)) / 1e6;
}

std::string size_text(const Params& params) {
    return params.min_size == params.max_size ? std::to_string(params.min_size)
                                              : fmt::format("{}-{}", params.min_size, params.max_size);
}

nlohmann::json to_json(const Result& r) {
    nlohmann::json json{{"tool", "vma_perf"},
                        {"version", VMA_VERSION},
                        {"label", r.label},
                        {"test", r.params.throughput ? "throughput" : "pingpong"},
                        {"transport", r.params.transport},
                        {"size", size_text(r.params)},
                        {"client", r.client_stack},
                        {"server", r.server_stack},
                        {"params", to_json(r.params)},
                        {"seconds", r.seconds},
                        {"sent", r.counters.sent},
                        {"received", received(r)},
                        {"lost", r.lost()},
                        {"late", r.counters.late},
                        {"duplicates", duplicates(r)},
                        {"reordered", reordered(r)},
                        {"corrupt", r.corrupt()},
                        {"sent_per_s", r.seconds > 0 ? static_cast<double>(r.counters.sent) / r.seconds : 0},
                        {"received_per_s", r.received_per_s()},
                        {"megabytes_per_s", r.megabytes_per_s()},
                        {"interrupted", r.interrupted},
                        {"blocks", blocks_json(r)},
                        {"server_report", r.server},
                        {"transport_report", r.transport}};
    if (!r.params.throughput) {
        json["latency_of"] = r.whole_round_trip ? "round trip" : "half";
        json["samples"] = r.latency.count();
        json["latency_us"] = latency_json(r, r.latency);
        json["curve"] = curve(r);
        if (r.sent_latency.count() > 0) json["latency_from_sending_us"] = latency_json(r, r.sent_latency);
    }
    if (!r.groups.empty()) json["groups"] = groups_json(r.groups, server_rate(r));
    if (r.log_dropped > 0) json["log_dropped"] = r.log_dropped;
    return json;
}

std::string csv_header() {
    std::string line =
        "label,test,transport,size,client,server,seconds,sent,received,lost,duplicates,reordered,corrupt,"
        "received_per_s,megabytes_per_s,samples,min_us,average_us,stddev_us";
    for (const NamedPercentile& p : kPercentiles) line += fmt::format(",{}_us", p.name);
    return line + ",max_us\n";
}

std::string csv_line(const Result& r) {
    std::string label = r.label;
    // A comma or a quotation mark in a field: RFC 4180, section 2.
    if (label.find_first_of(",\"\r\n") != label.npos) {
        for (std::size_t at = 0; (at = label.find('"', at)) != label.npos; at += 2) label.insert(at, 1, '"');
        label = '"' + label + '"';
    }
    std::string line = fmt::format("{},{},{},{},{},{},{:.3f},{},{},{},{},{},{},{:.1f},{:.3f},{}", label,
                                   r.params.throughput ? "throughput" : "pingpong", r.params.transport,
                                   size_text(r.params), r.client_stack, r.server_stack, r.seconds,
                                   r.counters.sent, received(r), r.lost(), duplicates(r), reordered(r),
                                   r.corrupt(), r.received_per_s(), r.megabytes_per_s(), r.latency.count());
    const bool has = r.latency.count() > 0;
    const auto cell = [&](double ns) { return has ? fmt::format(",{:.3f}", r.us(ns)) : std::string(","); };
    line += cell(r.latency.min()) + cell(r.latency.average()) + cell(r.latency.deviation());
    for (const NamedPercentile& p : kPercentiles) line += cell(r.latency.percentile(p.percent));
    return line + cell(r.latency.max()) + "\n";
}

std::string summary(const Result& r) {
    std::string text =
        fmt::format("{} {}, {} bytes, {} connection{}, client on {}, server on {}{}\n", r.params.transport,
                    r.params.throughput ? "throughput" : "ping-pong", size_text(r.params),
                    r.params.connections, r.params.connections == 1 ? "" : "s", r.client_stack,
                    r.server_stack, r.interrupted ? " (interrupted)" : "");
    text += fmt::format("  sent {}, received {} in {:.3f} s; lost {}, duplicates {}, out of order {}{}{}\n",
                        r.counters.sent, received(r), r.seconds, r.lost(), duplicates(r), reordered(r),
                        r.counters.late > 0 ? fmt::format(", late {}", r.counters.late) : "",
                        r.params.verify ? fmt::format(", corrupt {}", r.corrupt()) : "");
    text += fmt::format("  {} {:.0f} messages/s, {:.2f} MB/s\n",
                        r.params.throughput ? "received by the server:" : "round trips:", r.received_per_s(),
                        r.megabytes_per_s());
    text += groups_text(r.groups, server_rate(r));
    if (r.params.throughput) return text;
    if (r.latency.count() == 0) return text + "  no answers, so no latencies\n";
    text += fmt::format("  {} in us, {} samples{}\n",
                        r.whole_round_trip ? "round trip" : "latency (half of the round trip)",
                        r.latency.count(), r.sent_latency.count() > 0 ? ", from when each was due" : "");
    const auto line = [&](const char* name, double ns) {
        text += fmt::format("    {:<9}{:>12.3f}\n", name, r.us(ns));
    };
    line("average", r.latency.average());
    line("stddev", r.latency.deviation());
    line("min", r.latency.min());
    for (const NamedPercentile& p : kPercentiles) line(p.name, r.latency.percentile(p.percent));
    line("max", r.latency.max());
    if (r.sent_latency.count() > 0)
        text += fmt::format(
            "  from when they were sent, which hides stalls: p50 {:.3f}, p99 {:.3f}, p99.9 {:.3f}, max "
            "{:.3f}\n",
            r.us(r.sent_latency.percentile(50)), r.us(r.sent_latency.percentile(99)),
            r.us(r.sent_latency.percentile(99.9)), r.us(r.sent_latency.max()));
    if (r.log_dropped > 0)
        text += fmt::format("  the log lacks {} samples: it could not be written as fast\n", r.log_dropped);
    return text;
}

std::string sizes_table(const std::vector<Result>& results) {
    if (results.empty()) return {};
    const Result& first = results.front();
    std::string text = fmt::format("{} {}, client on {}, server on {}{}\n", first.params.transport,
                                   first.params.throughput ? "throughput" : "ping-pong", first.client_stack,
                                   first.server_stack,
                                   first.params.throughput  ? ""
                                   : first.whole_round_trip ? "; round trip in us"
                                                            : "; latency (half of the round trip) in us");
    text +=
        first.params.throughput
            ? fmt::format("{:>13}{:>14}{:>12}{:>12}{:>10}\n", "bytes", "received/s", "MB/s", "sent", "lost")
            : fmt::format("{:>13}{:>14}{:>12}{:>12}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "bytes",
                          "round trips/s", "MB/s", "sent", "lost", "p50", "p99", "p99.9", "max");
    for (const Result& r : results) {
        text += fmt::format("{:>13}{:>14.0f}{:>12.2f}{:>12}{:>10}", size_text(r.params), r.received_per_s(),
                            r.megabytes_per_s(), r.counters.sent, r.lost());
        if (!r.params.throughput)
            text += fmt::format("{:>12.3f}{:>12.3f}{:>12.3f}{:>12.3f}", r.us(r.latency.percentile(50)),
                                r.us(r.latency.percentile(99)), r.us(r.latency.percentile(99.9)),
                                r.us(r.latency.max()));
        text += "\n";
    }
    return text;
}

}  // namespace vma_perf
