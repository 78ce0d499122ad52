// SPDX-License-Identifier: BSD-2-Clause
// See views.h.
#include <climits>

#include "tools/common/numbers.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {

bool FdFilter::parse(const std::string& list) {
    auto ranges = tools::parse_ranges(list, INT_MAX);
    if (!ranges) return false;
    ranges_ = std::move(*ranges);
    return true;
}

bool FdFilter::contains(int fd) const {
    if (ranges_.empty()) return true;
    for (const auto& [first, last] : ranges_)
        if (fd >= first && fd <= last) return true;
    return false;
}

}  // namespace vma_stats
