// SPDX-License-Identifier: BSD-2-Clause
// The Internet checksum (RFC 1071), UDP and TCP pseudo headers (RFC 768, RFC 9293), incremental update
// (RFC 1624).
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

namespace vma::net {

// The one's complement sum of `length` bytes added to `sum`, not folded. Bytes are taken in memory order, so
// callers can store the folded result without byte swapping. Any alignment; odd lengths are padded with zero,
// so only the last piece of a chain may be odd.
std::uint64_t checksum_add(const void* data, std::size_t length, std::uint64_t sum) noexcept;

// Folds to 16 bits (not complemented).
inline std::uint16_t checksum_fold(std::uint64_t sum) noexcept {
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
}

// Sum over the pseudo header; addresses in network order, length of the UDP or TCP part in bytes. Not folded.
inline std::uint64_t pseudo_header_sum(in_addr_t src, in_addr_t dst, std::uint8_t protocol,
                                       std::uint32_t length) noexcept {
    return static_cast<std::uint64_t>(src) + dst + htons(protocol) +
           htons(static_cast<std::uint16_t>(length));
}

// Copies `length` bytes and returns their sum added to `sum` (as checksum_add).
std::uint64_t checksum_copy(void* to, const void* from, std::size_t length, std::uint64_t sum) noexcept;

}  // namespace vma::net
