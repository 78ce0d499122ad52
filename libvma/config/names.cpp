// SPDX-License-Identifier: BSD-2-Clause
// A misspelt variable has no effect, and the user does not notice. So every VMA_ variable in the environment
// that is not in the table gets a line in the log.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "libvma/config/params.h"

namespace vma::config {
namespace {

constexpr std::size_t kFarthest = 2;  // a typing error: one letter wrong, left out, doubled, or two exchanged
constexpr std::size_t kLongest = 64;
// Variables of vma_trace, which may be preloaded as well (docs/vma_trace.md).
constexpr std::string_view kTracers[] = {"VMA_TRACE_CSV",     "VMA_TRACE_FILE",  "VMA_TRACE_HARDWARE_TIME",
                                         "VMA_TRACE_JSON",    "VMA_TRACE_LINES", "VMA_TRACE_OUTSTANDING",
                                         "VMA_TRACE_RECORDS", "VMA_TRACE_QUIET", "VMA_TRACE_SIGNALS"};

// Levenshtein distance; anything above kFarthest may come out as any number above it.
std::size_t distance(std::string_view a, std::string_view b) noexcept {
    std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
    if (gap > kFarthest || b.size() >= kLongest) return kFarthest + 1;
    std::array<std::size_t, kLongest> row{};
    for (std::size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); i++) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); j++) {
            std::size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = above;
        }
    }
    return row[b.size()];
}

}  // namespace

void check_names(const char* const* environment, Complaints& complaints) {
    std::vector<std::string_view> names;
    for (const Parameter& row : table()) names.push_back(row.env);
    for (const OldName& name : old_names()) names.push_back(name.old);
    for (; *environment != nullptr; environment++) {
        std::string_view name = *environment;
        if (!name.starts_with("VMA_")) continue;
        name = name.substr(0, name.find('='));
        if (std::ranges::find(kTracers, name) != std::end(kTracers)) continue;
        if (std::ranges::find(names, name) != names.end())
            continue;  // the distances would cost more than the rest of the function
        std::string_view nearest;
        std::size_t best = kFarthest + 1;
        for (std::string_view candidate : names) {
            const std::size_t d = distance(name, candidate);
            if (d < best) {
                best = d;
                nearest = candidate;
            }
        }
        if (nearest.empty())
            complaints.push_back(fmt::format("{} is not a parameter and has no effect", name));
        else
            complaints.push_back(
                fmt::format("{} is not a parameter and has no effect: is {} meant?", name, nearest));
    }
}

}  // namespace vma::config
