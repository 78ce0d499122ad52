// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/compare.h"

#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/common/json.h"
#include "tools/vma_perf/bootstrap.h"
#include "tools/vma_perf/files.h"
#include "tools/vma_perf/plot.h"

namespace vma_perf {
namespace {

struct Loaded {
    std::string path;
    std::vector<nlohmann::json> results;
};

Loaded load(const std::string& path) {
    const nlohmann::json json = read_json(path);
    Loaded loaded{path, {}};
    if (json.is_object() && json.contains("results") && json["results"].is_array())
        loaded.results = json["results"].get<std::vector<nlohmann::json>>();
    else
        loaded.results.push_back(json);
    for (const nlohmann::json& result : loaded.results)
        for (const char* field : {"tool", "label", "test", "transport", "size"})
            if (!result.is_object() || !result.contains(field) || !result[field].is_string() ||
                result["tool"] != "vma_perf")
                throw Failure(kFailed, fmt::format("{}: no result of vma_perf", path));
    return loaded;
}

std::string text(const nlohmann::json& result, const char* field) {
    return result.at(field).get<std::string>();
}

// Results can be compared only if the same was asked: ping-pong with ping-pong, halves with halves.
void check_alike(const Loaded& a, const nlohmann::json& of_a, const Loaded& b, const nlohmann::json& of_b) {
    const auto word = [](const nlohmann::json& r, const char* field) {
        const auto found = r.find(field);
        return found != r.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    for (const char* field : {"test", "latency_of"})
        if (word(of_a, field) != word(of_b, field))
            throw Failure(kUsage, fmt::format("{} and {} cannot be compared: {} is {} and {}", a.path, b.path,
                                              field, word(of_a, field), word(of_b, field)));
}

std::vector<double> pieces(const nlohmann::json& result, const Metric& metric) {
    std::vector<double> values;
    const auto blocks = result.find("blocks");
    if (!metric.in_blocks || blocks == result.end() || !blocks->is_array()) return values;
    for (const nlohmann::json& block : *blocks) {
        const auto value = block.find(metric.key);
        if (value != block.end() && value->is_number() && value->get<double>() > 0)
            values.push_back(value->get<double>());
    }
    return values;
}

std::string line(const Metric& metric, double a, double b, const std::optional<Interval>& interval) {
    std::string cells = fmt::format("  {:<14}{:>12}{:>12}", metric.title, significant(a), significant(b));
    if (interval && interval->low < interval->high)
        cells += fmt::format("{:>10.3f}   {:.3f} to {:.3f}", interval->ratio, interval->low, interval->high);
    else
        cells += fmt::format("{:>10.3f}", b / a);
    return cells + "\n";
}

}  // namespace

double metric_value(const nlohmann::json& result, const Metric& metric) {
    const nlohmann::json* in = &result;
    if (metric.latency) {
        const auto latency = result.find("latency_us");
        if (latency == result.end()) return -1;
        in = &*latency;
    }
    const auto value = in->find(metric.key);
    return value != in->end() && value->is_number() ? value->get<double>() : -1;
}

std::string significant(double value) {
    return value >= 10000 ? fmt::format("{:.0f}", value)
           : value >= 100 ? fmt::format("{:.1f}", value)
                          : fmt::format("{:.3f}", value);
}

int run_compare(const CompareOptions& options) {
    std::vector<Loaded> files;
    for (const std::string& path : options.files) files.push_back(load(path));
    const Loaded& first = files.front();
    const Resampling resampling{options.resamples, options.confidence, options.seed};
    std::string out;
    nlohmann::json json = nlohmann::json::array();
    for (std::size_t f = 1; f < files.size(); ++f) {
        const Loaded& other = files[f];
        if (other.results.size() != first.results.size())
            throw Failure(kUsage,
                          fmt::format("{} has {} results, {} has {}: they cannot be compared", first.path,
                                      first.results.size(), other.path, other.results.size()));
        for (std::size_t i = 0; i < first.results.size(); ++i) {
            const nlohmann::json &a = first.results[i], &b = other.results[i];
            check_alike(first, a, other, b);
            out += fmt::format("A: {} ({})\nB: {} ({})\n  {:<14}{:>12}{:>12}{:>10}   {:g} % confidence\n",
                               text(a, "label"), first.path, text(b, "label"), other.path, "", "A", "B",
                               "B/A", options.confidence);
            nlohmann::json ratios = nlohmann::json::object();
            for (const Metric& metric : kMetrics) {
                const double value_a = metric_value(a, metric), value_b = metric_value(b, metric);
                if (value_a <= 0 || value_b <= 0) continue;
                const std::vector<double> pieces_a = pieces(a, metric), pieces_b = pieces(b, metric);
                std::optional<Interval> interval;
                if (!pieces_a.empty() && !pieces_b.empty())
                    interval = ratio_of_medians(pieces_a, pieces_b, resampling);
                out += line(metric, value_a, value_b, interval);
                ratios[metric.key] = {{"a", value_a},
                                      {"b", value_b},
                                      {"ratio", interval ? interval->ratio : value_b / value_a}};
                if (interval) ratios[metric.key].update({{"low", interval->low}, {"high", interval->high}});
            }
            if (ratios.empty())
                throw Failure(kFailed, fmt::format("{} and {}: nothing to compare", first.path, other.path));
            json.push_back({{"a", first.path}, {"b", other.path}, {"ratios", ratios}});
        }
    }
    if (!options.plot.empty()) {
        std::vector<Curve> curves;
        for (const std::string& path : options.files) read_curves(path, curves);
        OutputFile picture(options.plot);
        picture.write(draw(curves));
        picture.close();
    }
    if (options.json) {
        OutputFile file(*options.json);
        file.write(tools::json_text(json, 1));
        file.close();
    }
    if (options.json != "-") fputs(out.c_str(), stdout);
    return kOk;
}

}  // namespace vma_perf
