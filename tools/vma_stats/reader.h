// SPDX-License-Identifier: BSD-2-Clause
// Takes a statistics file apart and trusts nothing in it. The reader checks sizes and offsets against the
// file. It copies bytes out before it looks at them, so a writer that changes or truncates the file meanwhile
// does no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tools/vma_stats/snapshot.h"

namespace vma_stats {

// Where the bytes come from: a file, or memory in tests.
class Source {
  public:
    virtual ~Source() = default;
    virtual std::uint64_t size() const = 0;
    // Fills `to` from `offset` on. Bytes read, fewer at the end of the file; -1 with errno set on failure.
    virtual std::int64_t read(std::uint64_t offset, std::span<std::byte> to) = 0;
};

// Above these limits the reader refuses a file. The library's own files have a few hundred blocks in a
// megabyte or two.
inline constexpr std::uint64_t kMaxFileSize = 256u << 20;
inline constexpr std::uint32_t kMaxBlockSize = 64u << 10;
inline constexpr std::uint32_t kMaxBlocks = 16384;

enum class Fault { unreadable, foreign, version, truncated, malformed };
struct ReadError {
    Fault fault;
    std::string text;  // to go on after the file's name: "is no statistics file of libvma"
};

// Reads and checks the header; fields that a shorter header lacks are zero.
std::optional<ReadError> read_header(Source& source, layout::Header& header);

// Reads everything; `into` is replaced, its times are left to the caller. Sections of kinds that are not
// known are skipped.
std::optional<ReadError> read_snapshot(Source& source, Snapshot& into);

}  // namespace vma_stats
