// SPDX-License-Identifier: BSD-2-Clause
// Pieces of received data: lwIP's pbufs, which form chains.
//
// The bytes of a piece lie in a buffer of the ring, or in a block of the library's own memory that is filled
// bit by bit. What a piece costs is all the memory that it keeps from others, not its bytes: a buffer of the
// ring is 2 KiB and more, whatever it holds. The queues of received data bound the sum of these.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "libvma/ring/ring.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/memory.h"

namespace vma::tcp::lwip {

class Piece : pbuf {
  public:
    // What a block costs beside its bytes: two headers.
    static constexpr std::uint32_t kOverhead = 40;
    // The bytes that fill the largest block of the pool (memory.h).
    static constexpr std::uint32_t kLargest = kLargestBlock - kOverhead;

    // For the sources of this folder: the same piece as lwIP knows it.
    static Piece* of(pbuf* piece) noexcept { return static_cast<Piece*>(piece); }
    static pbuf* raw(Piece* piece) noexcept { return piece; }

    // An empty block with room for `bytes` at least, which is the caller's. Null without memory.
    static Piece* block(std::uint32_t bytes) noexcept;
    // A block of these bytes; the same.
    static Piece* copy_of(const void* data, std::uint32_t length) noexcept;
    // The bytes of a ring's buffer from `offset` on. Takes the buffer.
    static Piece* of_buffer(ring::RxBuffer* buffer, std::uint32_t offset, std::uint32_t length) noexcept;

    Piece* next() const noexcept { return of(pbuf::next); }
    void set_next(Piece* piece) noexcept { pbuf::next = piece; }
    std::uint8_t* data() const noexcept { return static_cast<std::uint8_t*>(payload); }
    // Bytes of this piece; and of a received segment's chain from this piece on.
    std::uint32_t size() const noexcept { return len; }
    std::uint32_t total() const noexcept { return tot_len; }
    void set_total(std::uint32_t bytes) noexcept { tot_len = static_cast<u16_t>(bytes); }

    // Is it a block (and not a buffer of the ring)?
    bool is_block() const noexcept { return (flags & PBUF_FLAG_IS_CUSTOM) == 0; }
    // The buffer of the ring that it lies in; null for a block.
    ring::RxBuffer* buffer() const noexcept {
        if (is_block()) return nullptr;
        auto* at = reinterpret_cast<std::byte*>(const_cast<Piece*>(this)) - offsetof(ring::RxBuffer, user);
        return reinterpret_cast<ring::RxBuffer*>(at);
    }
    // How many bytes can be appended to a block.
    std::uint32_t room() const noexcept {
        const auto* end = reinterpret_cast<const std::uint8_t*>(this) + room_of(this);
        return static_cast<std::uint32_t>(end - (data() + len));
    }
    // Appends `length` bytes, at most room().
    void append(const void* bytes, std::uint32_t length) noexcept {
        std::memcpy(data() + len, bytes, length);
        len = tot_len = static_cast<u16_t>(len + length);
    }
    // Takes the header, `length` bytes which this piece has, off the front of a segment's chain.
    void remove_header(std::uint32_t length) noexcept {
        payload = data() + length;
        len = static_cast<u16_t>(len - length);
        tot_len = static_cast<u16_t>(tot_len - length);
    }
    // Takes `length` bytes off the front.
    void remove(std::uint32_t length) noexcept {
        payload = data() + length;
        len = tot_len = static_cast<u16_t>(len - length);
    }
    // Cuts a segment's chain down to `bytes`.
    void shorten(std::uint32_t bytes) noexcept { pbuf_realloc(this, static_cast<u16_t>(bytes)); }
    // Copies the first `bytes` of a segment's chain.
    void copy_to(void* out, std::uint32_t bytes) const noexcept {
        pbuf_copy_partial(this, out, static_cast<u16_t>(bytes), 0);
    }
    // Bytes of memory that the piece keeps.
    std::size_t cost() const noexcept {
        if (is_block()) return room_of(this) + kHeaderBytes;
        const ring::RxBuffer& from = *buffer();  // of a stray segment it may be longer than the ring's
        return sizeof(ring::RxBuffer) + std::max(from.ring->attr().chunk_size, from.length);
    }
    // Frees a segment's chain.
    void free_chain() noexcept { pbuf_free(this); }
    // Frees a piece that has been taken out of its chain. There is one reference to each.
    void free() noexcept {
        if (ring::RxBuffer* const from = buffer(); from != nullptr) {
            from->more = nullptr;
            from->release();
            return;
        }
        pbuf::next = nullptr;
        tot_len = len;
        pbuf_free(this);
    }
};
static_assert(sizeof(Piece) == sizeof(pbuf) && std::is_standard_layout_v<Piece> && std::is_trivial_v<Piece>);

}  // namespace vma::tcp::lwip
