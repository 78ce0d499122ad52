// SPDX-License-Identifier: BSD-2-Clause
// See views.h.
#include <charconv>

#include "tools/vma_stats/views.h"

namespace vma_stats {

bool FdFilter::parse(const std::string& list) {
    std::vector<std::pair<int, int>> ranges;
    const char* at = list.data();
    const char* const end = at + list.size();
    const auto number = [&](int& value) {
        // from_chars takes a sign, a descriptor has none.
        if (at == end || *at < '0' || *at > '9') return false;
        const auto [next, error] = std::from_chars(at, end, value);
        at = next;
        return error == std::errc();
    };
    while (true) {
        int first = 0;
        if (!number(first)) return false;
        int last = first;
        if (at != end && *at == '-' && (++at, !number(last))) return false;
        if (last < first) return false;
        ranges.emplace_back(first, last);
        if (at == end) break;
        if (*at++ != ',') return false;
    }
    ranges_ = std::move(ranges);
    return true;
}

bool FdFilter::contains(int fd) const {
    if (ranges_.empty()) return true;
    for (const auto& [first, last] : ranges_)
        if (fd >= first && fd <= last) return true;
    return false;
}

}  // namespace vma_stats
