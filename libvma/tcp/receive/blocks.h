// SPDX-License-Identifier: BSD-2-Clause
// Pieces of received data: pbufs whose bytes lie in a buffer of the ring, or in a block of our own memory
// that is filled bit by bit.
//
// What a piece costs is all the memory that it keeps from others, not its bytes: a buffer of the ring is 2
// KiB and more, whatever it holds. The queues of received data bound the sum of these.
#pragma once

#include <cstddef>
#include <cstdint>

struct pbuf;

namespace vma::tcp::blocks {

// What a block costs beside its bytes: two headers.
inline constexpr std::uint32_t kOverhead = 40;
// The bytes that fill the largest block of the pool (lwip/memory.h).
inline constexpr std::uint32_t kLargest = 4096 - kOverhead;

// An empty block with room for `bytes` at least. Null without memory.
pbuf* make(std::uint32_t bytes) noexcept;
// Is it a block (and not a buffer of the ring)?
bool is_block(const pbuf& piece) noexcept;
// How many bytes can be appended to a block.
std::uint32_t room(const pbuf& block) noexcept;
// Appends `length` bytes, at most room(block).
void append(pbuf& block, const void* data, std::uint32_t length) noexcept;
// Takes `length` bytes off the front.
void remove(pbuf& piece, std::uint32_t length) noexcept;
// Bytes of memory that the piece keeps.
std::size_t cost(const pbuf& piece) noexcept;
// Frees a piece that has been taken out of its chain.
void free_one(pbuf* piece) noexcept;

}  // namespace vma::tcp::blocks
