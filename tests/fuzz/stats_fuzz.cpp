// SPDX-License-Identifier: BSD-2-Clause
// Any bytes as a statistics file: they must be read to an end, and all that vma_stats makes of them is plain
// text. Two readings, of the bytes and of the bytes with some changed, give differences.
#include <string>
#include <vector>

#include "tests/fuzz/input.h"
#include "tools/vma_stats/formats.h"
#include "tools/vma_stats/reader.h"
#include "tools/vma_stats/sampler.h"

using namespace vma_stats;

namespace {

class Bytes : public Source {
  public:
    Bytes(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> changes)
        : bytes_(bytes), changes_(changes) {}
    std::uint64_t size() const override { return bytes_.size(); }
    // Every third read sees a byte that has changed, as a writer would do it.
    std::int64_t read(std::uint64_t offset, std::span<std::byte> to) override {
        if (offset >= bytes_.size()) return 0;
        const std::size_t count = std::min<std::size_t>(to.size(), bytes_.size() - offset);
        fuzz::Exact copy(bytes_.subspan(offset, count));
        if (reads_++ % 3 == 2 && !changes_.empty() && count != 0)
            copy.data()[changes_[0] % count] ^= changes_.back();
        if (count != 0) memcpy(to.data(), copy.data(), count);
        return static_cast<std::int64_t>(count);
    }

  private:
    std::span<const std::uint8_t> bytes_, changes_;
    int reads_ = 0;
};

void check(const std::string& text) {
    for (const char c : text) FUZZ_CHECK(c == '\n' || (c >= ' ' && c <= '~'));
}

// One of the outputs, as the input wants it: all of them would take long.
void show(const Frame& frame, const Shape& shape, unsigned which) {
    switch (which % 9) {
        case 0:
            return check(BasicView(shape, false).report(frame));
        case 1:
            return check(BasicView(shape, true).report(frame));
        case 2:
            return check(full_view(frame, shape));
        case 3:
            return check(groups_view(frame.now, shape));
        case 4:
            return check(netstat_view({&frame.now}, shape));
        case 5:
            return check(parameters_view(frame.now));
        case 6:
            return check(explain_view(frame.now, shape));
        case 7:
            return check(json_line(frame, shape));
        default:
            return check(prometheus_text({&frame.now}, shape));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span<const std::uint8_t> whole(data, size);
    const std::span<const std::uint8_t> changes = whole.last(std::min<std::size_t>(size, 2));
    Bytes steady(whole, {}), changing(whole, changes);
    Snapshot one, two;
    if (read_snapshot(steady, one)) return 0;
    one.taken_ns = 0;
    Sampler sampler;
    Shape shape;
    const unsigned which = changes.empty() ? 0 : changes.back();
    show(sampler.next(one), shape, which);
    if (read_snapshot(changing, two)) return 0;
    two.taken_ns = changes.empty() ? 0 : std::int64_t{changes[0]} * 10'000'000;
    shape.deltas = true;
    show(sampler.next(two), shape, which / 9);
    return 0;
}
