// SPDX-License-Identifier: BSD-2-Clause
// See options.h.
#include "tools/vma_trace/options.h"

#include <fmt/format.h>

#include <string_view>

#include "tools/common/numbers.h"

namespace vma_trace {
namespace {

constexpr OptionRow text(const char* name, std::string Options::*member, const char* meaning) {
    return {name, meaning, member, nullptr, nullptr, 0};
}
constexpr OptionRow number(const char* name, std::size_t Options::*member, std::size_t most,
                           const char* meaning) {
    return {name, meaning, nullptr, member, nullptr, most};
}
constexpr OptionRow flag(const char* name, bool Options::*member, const char* meaning) {
    return {name, meaning, nullptr, nullptr, member, 1};
}

constexpr OptionRow kOptions[] = {
    text("VMA_TRACE_FILE", &Options::file, "file for the report, instead of standard error"),
    text("VMA_TRACE_JSON", &Options::json, "file for the report as a JSON object"),
    text("VMA_TRACE_CSV", &Options::csv, "file for the kept requests, one on a line"),
    number("VMA_TRACE_RECORDS", &Options::records, std::size_t{1} << 24,
           "finished requests kept for each queue"),
    number("VMA_TRACE_LINES", &Options::lines, std::size_t{1} << 24,
           "of those, how many the report lists for each queue"),
    number("VMA_TRACE_OUTSTANDING", &Options::outstanding, std::size_t{1} << 24,
           "requests followed at once in queues whose size is unknown"),
    flag("VMA_TRACE_HARDWARE_TIME", &Options::hardware_time,
         "completion queues get time stamps where the device has them"),
    flag("VMA_TRACE_SIGNALS", &Options::signals,
         "the report is written as well when a signal ends the process"),
    flag("VMA_TRACE_QUIET", &Options::quiet, "no report for people"),
};

std::string set(Options& options, const OptionRow& row, std::string_view value) {
    if (row.text != nullptr) {
        options.*row.text = value;
        return {};
    }
    const auto parsed = tools::whole_number<std::size_t>(value);
    if (!parsed || *parsed > row.most)
        return fmt::format("{}={}: expected a number from 0 to {}; {} is used", row.name, value, row.most,
                           row.number != nullptr ? options.*row.number
                           : options.*row.flag   ? 1
                                                 : 0);
    if (row.number != nullptr)
        options.*row.number = *parsed;
    else
        options.*row.flag = *parsed != 0;
    return {};
}

}  // namespace

std::span<const OptionRow> option_table() noexcept { return kOptions; }

Options read_options(const char* (*get)(const char*), std::vector<std::string>& complaints) {
    Options options;
    for (const OptionRow& row : kOptions) {
        const char* value = get(row.name);
        if (value == nullptr) continue;
        if (std::string complaint = set(options, row, value); !complaint.empty())
            complaints.push_back(std::move(complaint));
    }
    return options;
}

}  // namespace vma_trace
