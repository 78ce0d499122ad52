// SPDX-License-Identifier: BSD-2-Clause
// See reader.h.
#include "tools/vma_stats/reader.h"

#include <fmt/format.h>
#include <sched.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

// How often the reader reads a description again before it takes the description as it is. A writer needs
// less than a microsecond for one. So only a stopped or hostile writer reaches this limit.
constexpr int kAttempts = 50;
constexpr std::size_t kChunk = 256u << 10;
constexpr std::size_t kSectionsAt = offsetof(layout::Header, sections);

ReadError truncated(std::uint64_t size, std::uint64_t wanted) {
    return {Fault::truncated, fmt::format("is truncated: it has {} bytes of {}", size, wanted)};
}

std::optional<ReadError> read_exactly(Source& source, std::uint64_t offset, std::span<std::byte> to) {
    const std::int64_t got = source.read(offset, to);
    if (got < 0)
        return ReadError{Fault::unreadable, fmt::format("cannot be read: {}", strerrordesc_np(errno))};
    if (static_cast<std::uint64_t>(got) != to.size())
        return truncated(offset + static_cast<std::uint64_t>(got), offset + to.size());
    return std::nullopt;
}

// Totals and parameters are written once or hold counters only: no sequence, no state.
template <class Block>
constexpr bool kGuarded =
    !std::is_same_v<Block, layout::TotalsBlock> && !std::is_same_v<Block, layout::ParameterBlock>;

template <class Block>
bool in_use(const Block& block) {
    if constexpr (std::is_same_v<Block, layout::ParameterBlock>)
        return block.name[0] != '\0';
    else if constexpr (kGuarded<Block>)
        return block.state != 0;
    else
        return true;
}

template <class Block>
class SectionReader {
  public:
    SectionReader(Source& source, const layout::SectionEntry& entry)
        : source_(source), entry_(entry), known_(std::min<std::size_t>(entry.block_size, sizeof(Block))) {}

    std::optional<ReadError> read(std::vector<Row<Block>>& rows) {
        const auto per_chunk =
            static_cast<std::uint32_t>(std::max<std::size_t>(1, kChunk / entry_.block_size));
        std::vector<std::byte> chunk;
        for (std::uint32_t first = 0; first < entry_.blocks; first += per_chunk) {
            const std::uint32_t count = std::min(per_chunk, entry_.blocks - first);
            chunk.resize(std::size_t{count} * entry_.block_size);
            if (auto error = read_exactly(source_, offset_of(first), chunk)) return error;
            for (std::uint32_t i = 0; i < count; i++) {
                Row<Block> row{.number = first + i};
                memcpy(&row.block, chunk.data() + std::size_t{i} * entry_.block_size, known_);
                if (!in_use(row.block)) continue;
                if constexpr (kGuarded<Block>)
                    if (auto error = settle(row)) return error;
                if (in_use(row.block)) rows.push_back(row);
            }
        }
        return std::nullopt;
    }

  private:
    std::uint64_t offset_of(std::uint32_t block) const {
        return entry_.offset + std::uint64_t{block} * entry_.block_size;
    }

    // Reads the block again until its sequence is even and the same before and after.
    std::optional<ReadError> settle(Row<Block>& row) {
        std::uint32_t before = row.block.sequence;
        for (int attempt = 0; attempt < kAttempts; attempt++) {
            const std::span<std::byte> bytes{reinterpret_cast<std::byte*>(&row.block), known_};
            if (auto error = read_exactly(source_, offset_of(row.number), bytes)) return error;
            std::uint32_t after = 0;
            if (auto error = read_exactly(source_, offset_of(row.number),
                                          std::as_writable_bytes(std::span{&after, 1})))
                return error;
            if (before == after && before % 2 == 0) return std::nullopt;
            before = after;
            if (attempt >= 2) sched_yield();
        }
        row.torn = true;
        return std::nullopt;
    }

    Source& source_;
    layout::SectionEntry entry_;
    std::size_t known_;  // bytes of a block that both sides know
};

std::optional<ReadError> check_section(const layout::SectionEntry& entry, std::uint64_t file_size) {
    const auto malformed = [&](std::string what) {
        return ReadError{Fault::malformed, fmt::format("is damaged: section {} {}", entry.kind, what)};
    };
    // Each has at least sequence and state.
    if (entry.block_size < 8 || entry.block_size > kMaxBlockSize)
        return malformed(fmt::format("has blocks of {} bytes", entry.block_size));
    if (entry.blocks > kMaxBlocks) return malformed(fmt::format("claims {} blocks", entry.blocks));
    const std::uint64_t bytes = std::uint64_t{entry.block_size} * entry.blocks;
    if (entry.offset > file_size || bytes > file_size - entry.offset)
        return malformed(fmt::format("lies outside the file ({} bytes at {})", bytes, entry.offset));
    return std::nullopt;
}

}  // namespace

std::optional<ReadError> read_header(Source& source, layout::Header& header) {
    header = {};
    const std::uint64_t size = source.size();
    const std::size_t have = static_cast<std::size_t>(std::min<std::uint64_t>(size, sizeof header));
    if (auto error = read_exactly(source, 0, {reinterpret_cast<std::byte*>(&header), have})) return error;
    if (have < sizeof header.magic || memcmp(header.magic, layout::kMagic, sizeof header.magic) != 0)
        return ReadError{Fault::foreign, size == 0 ? "is empty" : "is no statistics file of libvma"};
    if (have < offsetof(layout::Header, header_size)) return truncated(size, sizeof header);
    if (header.version != layout::kVersion)
        return ReadError{
            Fault::version,
            fmt::format("has version {} of the layout, and this vma_stats reads version {}: use the "
                        "vma_stats that came with the process's libvma",
                        header.version, layout::kVersion)};
    if (have < kSectionsAt) return truncated(size, sizeof header);
    if (header.header_size < kSectionsAt || header.header_size > kMaxFileSize)
        return ReadError{Fault::malformed,
                         fmt::format("is damaged: a header of {} bytes", header.header_size)};
    if (header.file_size > kMaxFileSize || header.file_size < header.header_size)
        return ReadError{Fault::malformed, fmt::format("is damaged: it claims {} bytes", header.file_size)};
    if (size < header.file_size) return truncated(size, header.file_size);
    // Fields beyond a shorter header are not part of the header.
    if (header.header_size < sizeof header)
        memset(reinterpret_cast<std::byte*>(&header) + header.header_size, 0,
               sizeof header - header.header_size);
    return std::nullopt;
}

std::optional<ReadError> read_snapshot(Source& source, Snapshot& into) {
    into = {};
    if (auto error = read_header(source, into.header)) return error;
    bool seen[8] = {};
    for (const layout::SectionEntry& entry : into.header.sections) {
        if (entry.kind == 0 || entry.kind >= std::size(seen) || seen[entry.kind]) continue;
        seen[entry.kind] = true;
        if (auto error = check_section(entry, into.header.file_size)) return error;
        const auto read = [&](auto& rows) {
            using Block = decltype(rows.front().block);
            return SectionReader<std::remove_cvref_t<Block>>(source, entry).read(rows);
        };
        std::optional<ReadError> error;
        switch (static_cast<layout::Section>(entry.kind)) {
            case layout::Section::sockets:
                error = read(into.sockets);
                break;
            case layout::Section::rings:
                error = read(into.rings);
                break;
            case layout::Section::pools:
                error = read(into.pools);
                break;
            case layout::Section::muxes:
                error = read(into.muxes);
                break;
            case layout::Section::groups:
                error = read(into.groups);
                break;
            case layout::Section::parameters:
                error = read(into.parameters);
                break;
            case layout::Section::totals:
                error = read(into.totals);
                break;
        }
        if (error) return error;
    }
    return std::nullopt;
}

}  // namespace vma_stats
