// SPDX-License-Identifier: BSD-2-Clause
// Prometheus' text format 0.0.4. See formats.h. All samples of a metric stand together, and no two have the
// same labels, even if the files are wrong. Otherwise a scraper refuses the whole answer.
#include <fmt/format.h>

#include <set>
#include <string_view>

#include "tools/vma_stats/fields.h"
#include "tools/vma_stats/formats.h"
#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

// name="value", escaped as the format demands.
std::string label(std::string_view name, std::string_view value) {
    std::string out = fmt::format("{}=\"", name);
    for (const char c : value) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n')
            out += "\\n";
        else
            out += c;
    }
    return out + '"';
}

// A block as a series: its labels, and its process.
template <class Block>
struct Series {
    std::string labels;
    const Block* block;
};

class Exposition {
  public:
    Exposition(const std::vector<const Snapshot*>& processes, const Shape& shape)
        : processes_(processes), shape_(shape) {}

    std::string text() {
        about_processes();
        about_sockets();
        emit(series(&Snapshot::rings, [](const auto& row) {
            return label("ring", std::to_string(row.number)) + "," +
                   label("interface", vma_stats::text(row.block.interface)) + "," +
                   label("device", vma_stats::text(row.block.device));
        }));
        emit(series(&Snapshot::pools, [](const auto& row) {
            return label("pool", std::to_string(row.number)) + "," +
                   label("ring", std::to_string(row.block.ring)) + "," +
                   label("direction", row.block.direction == 0 ? "receive" : "send");
        }));
        emit(series(&Snapshot::muxes, [](const auto& row) {
            return label("mux", std::to_string(row.number)) + "," + label("kind", mux_name(row.block.kind)) +
                   "," + label("fd", row.block.fd >= 0 ? std::to_string(row.block.fd) : "");
        }));
        // The blocks of a membership's sources have the same labels and numbers: one sample.
        emit(series(&Snapshot::groups, [](const auto& row) {
            return label("group", host(row.block.group)) + "," +
                   label("interface", vma_stats::text(row.block.interface)) + "," +
                   label("socket", std::to_string(row.block.socket_id)) + "," +
                   label("fd", std::to_string(row.block.fd));
        }));
        emit(series(&Snapshot::totals, [](const auto& row) {
            return label("protocol", row.number == layout::kTotalsUdp   ? "UDP"
                                     : row.number == layout::kTotalsTcp ? "TCP"
                                                                        : std::to_string(row.number));
        }));
        return std::move(out_);
    }

  private:
    static std::string of_process(const Snapshot& snapshot) {
        return label("pid", std::to_string(snapshot.header.pid)) + "," +
               label("program", vma_stats::text(snapshot.header.program));
    }

    template <class Block, class Labels>
    std::vector<Series<Block>> series(std::vector<Row<Block>> Snapshot::*rows, Labels labels) {
        std::vector<Series<Block>> out;
        for (const Snapshot* snapshot : processes_)
            for (const auto& row : snapshot->*rows)
                out.push_back({of_process(*snapshot) + "," + labels(row), &row.block});
        return out;
    }

    void declare(std::string_view name, Kind kind, std::string_view help) {
        out_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help,
                            kind == Kind::counter ? "counter" : "gauge");
    }

    // A sample, unless there is one with these labels already.
    template <class Value>
    void sample(std::string_view name, const std::string& labels, Value value) {
        if (given_.insert(fmt::format("{}{{{}}}", name, labels)).second)
            out_ += fmt::format("{}{{{}}} {}\n", name, labels, value);
    }

    // Each metric of the table with all its series.
    template <class Block>
    void emit(const std::vector<Series<Block>>& all) {
        if (all.empty()) return;
        const auto fields = fields_of<Block>();
        std::set<std::string_view> done;
        for (const Field& first : fields) {
            if (!done.insert(first.metric).second) continue;
            const std::string name =
                fmt::format("vma_{}{}", first.metric, first.kind == Kind::counter ? "_total" : "");
            declare(name, first.kind, first.help);
            for (const Series<Block>& one : all)
                for (const Field& field : fields) {
                    if (std::string_view(field.metric) != first.metric) continue;
                    const std::string labels =
                        *field.label == '\0' ? one.labels : one.labels + "," + field.label;
                    const std::uint64_t value = get(*one.block, field);
                    if (field.scale == 1)
                        sample(name, labels, value);
                    else
                        sample(name, labels, fmt::format("{:.9g}", static_cast<double>(value) * field.scale));
                }
            given_.clear();
        }
    }

    void about_processes() {
        declare("vma_processes", Kind::gauge, "Processes that run with libvma and could be read");
        out_ += fmt::format("vma_processes {}\n", processes_.size());
        const auto each = [&](const char* name, Kind kind, const char* help, auto value) {
            declare(name, kind, help);
            for (const Snapshot* snapshot : processes_) sample(name, of_process(*snapshot), value(*snapshot));
            given_.clear();
        };
        if (processes_.empty()) return;
        declare("vma_process_info", Kind::gauge, "The library's version in the process; always 1");
        for (const Snapshot* snapshot : processes_)
            sample("vma_process_info",
                   of_process(*snapshot) + "," + label("library", vma_stats::text(snapshot->header.library)),
                   1);
        given_.clear();
        each("vma_process_start_time_seconds", Kind::gauge, "When the process's statistics began, since 1970",
             [](const Snapshot& s) {
                 return fmt::format("{:.3f}", static_cast<double>(s.header.started_ns) / 1e9);
             });
        each("vma_process_log_level", Kind::gauge, "VMA_TRACELEVEL as it now is",
             [](const Snapshot& s) { return s.header.log_level; });
        each("vma_sockets_unseen", Kind::gauge,
             "Sockets that found no room for statistics of their own (VMA_STATS_FD_NUM)",
             [](const Snapshot& s) { return s.header.sockets_unseen; });
    }

    void about_sockets() {
        std::vector<Series<layout::SocketBlock>> all;
        std::vector<std::string> infos;
        for (const Snapshot* snapshot : processes_)
            for (const auto& row : snapshot->sockets) {
                const layout::SocketBlock& s = row.block;
                if (!shape_.sockets.contains(s.fd)) continue;
                std::string labels = of_process(*snapshot) + "," + label("socket", std::to_string(s.id)) +
                                     "," + label("fd", std::to_string(s.fd)) + "," +
                                     label("protocol", protocol(s));
                infos.push_back(
                    labels + "," + label("local", endpoint(s.local)) + "," + label("peer", endpoint(s.peer)) +
                    "," + label("state", tcp_state(s.tcp_state)) + "," + label("rx_path", path(s.rx_path)) +
                    "," + label("rx_reason", reason(s.rx_reason)) + "," + label("tx_path", path(s.tx_path)) +
                    "," + label("tx_reason", reason(s.tx_reason)) + "," +
                    label("rule", vma_stats::text(s.rule)) + "," +
                    label("detail", vma_stats::text(s.detail)) + "," +
                    label("ring", s.ring >= 0 ? std::to_string(s.ring) : "") + "," +
                    label("interface", vma_stats::text(s.device)));
                all.push_back({std::move(labels), &s});
            }
        if (all.empty()) return;
        declare("vma_socket_info", Kind::gauge,
                "What a socket is and why it is or is not offloaded; always 1");
        for (const std::string& labels : infos) sample("vma_socket_info", labels, 1);
        given_.clear();
        emit(all);
    }

    const std::vector<const Snapshot*>& processes_;
    const Shape& shape_;
    std::set<std::string> given_;  // of the metric at hand
    std::string out_;
};

}  // namespace

std::string prometheus_text(const std::vector<const Snapshot*>& processes, const Shape& shape) {
    return Exposition(processes, shape).text();
}

}  // namespace vma_stats
