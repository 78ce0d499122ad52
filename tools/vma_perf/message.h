// SPDX-License-Identifier: BSD-2-Clause
// The messages of all transports: a header of 16 bytes, then zeros or, with --verify, bytes that depend on
// the number.
//
// Both sides run on the same architecture or at least the same byte order: numbers are in host order, and the
// hello of the control connection refuses a peer of the other one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace vma_perf {

struct Header {
    std::uint32_t length = 0;      // of the whole message: TCP needs it, and datagrams are checked against it
    std::uint16_t connection = 0;  // number among all of the run
    std::uint16_t flags = 0;
    std::uint64_t sequence =
        0;  // counts the measured messages of a connection from 0; warm-up has its own count

    static constexpr std::uint16_t kWarmUp = 1;   // not measured
    static constexpr std::uint16_t kPattern = 2;  // the rest is fill_pattern()'s
};
static_assert(sizeof(Header) == 16);

inline constexpr std::size_t kMinSize = sizeof(Header);

inline Header read_header(const std::byte* message) noexcept {
    Header header;
    memcpy(&header, message, sizeof header);
    return header;
}
inline void write_header(std::byte* message, const Header& header) noexcept {
    memcpy(message, &header, sizeof header);
}

// Fills what follows the header with bytes that depend on the connection, the sequence number and the
// position.
void fill_pattern(std::span<std::byte> message) noexcept;
// Does the message hold the bytes that fill_pattern() writes?
bool has_pattern(std::span<const std::byte> message) noexcept;

}  // namespace vma_perf
