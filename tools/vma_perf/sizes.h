// SPDX-License-Identifier: BSD-2-Clause
// The message sizes that --size asks for.
//   64            one size
//   64,256,1400   one run after the other
//   64:1024       doubled until it is larger: 64, 128, ... 1024; the last one is always in
//   64:1024:*4    with another factor, or +100: by steps
//   64-1024       one run; the size of each message is drawn from this range
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vma_perf {

struct SizeRange {
    std::uint32_t min = 0, max = 0;
    friend bool operator==(const SizeRange&, const SizeRange&) = default;
};

// One for each run; at most 1000. Throws Failure with kUsage.
std::vector<SizeRange> parse_sizes(const std::string& text);

}  // namespace vma_perf
