// SPDX-License-Identifier: BSD-2-Clause
// Any bytes as a statistics file, with a hostile writer beside the reader: between two reads it changes
// bytes, shortens the file and makes it longer again. It must be read to an end, and all that vma_stats makes
// of it is plain text. Two readings give differences.
//
// Input: the file; its last bytes are what the writer does: records of four bytes (after how many reads,
// what, where), and in the last byte how many records there are.
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
    // The file, with what the writer does to it; `steady`: nothing.
    Bytes(std::span<const std::uint8_t> bytes, bool steady) : bytes_(bytes.begin(), bytes.end()) {
        length_ = bytes_.size();
        const std::size_t records = bytes_.empty() ? 0 : bytes_.back() % 16;
        if (steady || bytes_.size() < 1 + 4 * records) return;
        script_ = bytes.last(1 + 4 * records).first(4 * records);
    }
    std::uint64_t size() const override { return length_; }
    std::int64_t read(std::uint64_t offset, std::span<std::byte> to) override {
        write();
        if (offset >= length_) return 0;
        const std::size_t count = std::min<std::size_t>(to.size(), length_ - offset);
        fuzz::Exact copy(std::span<const std::uint8_t>(bytes_).subspan(offset, count));
        if (count != 0) memcpy(to.data(), copy.data(), count);
        return static_cast<std::int64_t>(count);
    }

  private:
    void write() {
        reads_++;
        for (std::size_t i = 0; i + 4 <= script_.size() && !bytes_.empty(); i += 4) {
            const unsigned when = script_[i] % 32, what = script_[i] / 32;
            if (when != reads_ % 32) continue;
            const std::size_t at = (std::size_t{script_[i + 1]} << 8 | script_[i + 2]) % bytes_.size();
            if (what == 0)
                length_ = at;
            else if (what == 1)
                length_ = bytes_.size();
            else if (what == 2)
                memset(&bytes_[at], script_[i + 3], std::min<std::size_t>(8, bytes_.size() - at));
            else
                bytes_[at] ^= script_[i + 3];
        }
    }

    std::vector<std::uint8_t> bytes_;
    std::size_t length_;
    std::span<const std::uint8_t> script_;
    unsigned reads_ = 0;
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
            return check(groups_view(frame, shape));
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
    Bytes steady(whole, true), changing(whole, false);
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
