// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sizes.h"

#include <fmt/format.h>

#include "tools/common/numbers.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

constexpr std::size_t kMostRuns = 1000;

class Parser {
  public:
    explicit Parser(const std::string& text) : text_(text), scanner_(text) {}

    std::vector<SizeRange> parse() {
        do entry();
        while (skip(','));
        if (!scanner_.at_end()) bad();
        return std::move(sizes_);
    }

  private:
    [[noreturn]] void bad() const {
        throw Failure(
            kUsage, fmt::format("--size: {} is none of 64, 64,256, 64:1024, 64:1024:*2, 64:1024:+64, 64-1024",
                                text_));
    }
    bool skip(char c) { return scanner_.skip(c); }
    std::uint32_t number() {
        const auto value = scanner_.number<std::uint32_t>();
        if (!value) bad();
        return *value;
    }
    void add(std::uint32_t min, std::uint32_t max) {
        if (sizes_.size() == kMostRuns)
            throw Failure(kUsage, fmt::format("--size: {} is more than {} runs", text_, kMostRuns));
        sizes_.push_back({min, max});
    }
    void entry() {
        const std::uint32_t first = number();
        if (skip('-')) {
            const std::uint32_t last = number();
            if (last < first) bad();
            add(first, last);
        } else if (skip(':')) {
            const std::uint32_t last = number();
            if (last < first) bad();
            std::uint64_t factor = 2, step = 0;
            if (skip(':')) {
                if (skip('*')) {
                    factor = number();
                } else if (skip('+')) {
                    factor = 1;
                    step = number();
                } else {
                    bad();
                }
            }
            if (factor * first + step <= first) bad();  // it would never end
            for (std::uint64_t size = first; size < last; size = size * factor + step)
                add(static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(size));
            add(last, last);
        } else {
            add(first, first);
        }
    }

    const std::string& text_;
    tools::Scanner scanner_;
    std::vector<SizeRange> sizes_;
};

}  // namespace

std::vector<SizeRange> parse_sizes(const std::string& text) { return Parser(text).parse(); }

}  // namespace vma_perf
