// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/stages.h"

#include <fmt/format.h>

namespace vma_perf {
namespace {

constexpr const char* kRule =
    "+--------------+--------------+----------------------------------+-------------------------+------------"
    "-------------+\n";

double per_second(std::uint64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::string StageTable::head() const {
    return kRule +
           fmt::format("|{:14}|{:14}|{:^34}|{:^25}|{:^25}|\n", "", "", "latency (us)", "bandwidth (MB/s)",
                       "message rate (1/s)") +
           kRule +
           fmt::format("|{:^14}|{:^14}|{:^10}|{:^11}|{:^11}|{:^12}|{:^12}|{:^12}|{:^12}|\n", "stage",
                       "# messages", fmt::format("{:g}%", percentile_), "average", "overall", "average",
                       "overall", "average", "overall") +
           kRule;
}

std::string StageTable::row(const std::string& name, std::uint64_t messages, const Distribution& piece,
                            const Distribution& all, double bytes_per_s, double all_bytes_per_s, double rate,
                            double all_rate) const {
    const auto us = [&](const Distribution& d, double ns) {
        return throughput_ || d.count() == 0 ? std::string("-") : fmt::format("{:.3f}", ns / divisor_);
    };
    return fmt::format("{:<15}{:>14} {:>10} {:>11} {:>11} {:>12.2f} {:>12.2f} {:>12.0f} {:>12.0f}\n", name,
                       messages, us(piece, piece.percentile(percentile_)), us(piece, piece.average()),
                       us(all, all.average()), bytes_per_s / 1e6, all_bytes_per_s / 1e6, rate, all_rate);
}

std::string StageTable::line(const Stage& s) const {
    return row(fmt::format("[{:.1f} s]", s.at), s.all_messages, s.latency, s.all_latency,
               per_second(s.bytes, s.length), per_second(s.all_bytes, s.at), per_second(s.messages, s.length),
               per_second(s.all_messages, s.at));
}

std::string StageTable::last_line(const Result& r) const {
    const double bytes = r.megabytes_per_s() * 1e6, rate = r.received_per_s();
    const auto messages =
        r.params.throughput ? r.server.value("received", std::uint64_t{0}) : r.counters.received;
    return row("Final:", messages, r.latency, r.latency, bytes, bytes, rate, rate);
}

}  // namespace vma_perf
