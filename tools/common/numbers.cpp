// SPDX-License-Identifier: BSD-2-Clause
// See numbers.h.
#include "tools/common/numbers.h"

namespace tools {

std::optional<std::vector<Range>> parse_ranges(std::string_view text, int most) {
    std::vector<Range> ranges;
    Scanner scanner(text);
    do {
        const auto first = scanner.number<int>();
        if (!first) return std::nullopt;
        const auto last = scanner.skip('-') ? scanner.number<int>() : first;
        if (!last || *last < *first || *last > most) return std::nullopt;
        ranges.push_back({*first, *last});
    } while (scanner.skip(','));
    if (!scanner.at_end()) return std::nullopt;
    return ranges;
}

}  // namespace tools
