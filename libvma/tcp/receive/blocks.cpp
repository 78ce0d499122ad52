// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/blocks.h"

#include <cstring>

#include "libvma/ring/ring.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/memory.h"

namespace vma::tcp::blocks {

static_assert(lwip::kHeaderBytes + LWIP_MEM_ALIGN_SIZE(sizeof(pbuf)) == kOverhead);

pbuf* make(std::uint32_t bytes) noexcept {
    pbuf* p = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(bytes), PBUF_RAM);
    if (p != nullptr) p->len = p->tot_len = 0;
    return p;
}

bool is_block(const pbuf& piece) noexcept { return (piece.flags & PBUF_FLAG_IS_CUSTOM) == 0; }

std::uint32_t room(const pbuf& block) noexcept {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(&block);
    const auto* end = begin + lwip::room_of(&block);
    return static_cast<std::uint32_t>(end - (static_cast<const std::uint8_t*>(block.payload) + block.len));
}

void append(pbuf& block, const void* data, std::uint32_t length) noexcept {
    std::memcpy(static_cast<std::uint8_t*>(block.payload) + block.len, data, length);
    block.len = block.tot_len = static_cast<u16_t>(block.len + length);
}

void remove(pbuf& piece, std::uint32_t length) noexcept {
    piece.payload = static_cast<std::uint8_t*>(piece.payload) + length;
    piece.len = piece.tot_len = static_cast<u16_t>(piece.len - length);
}

std::size_t cost(const pbuf& piece) noexcept {
    if (is_block(piece)) return lwip::room_of(&piece) + lwip::kHeaderBytes;
    const auto* at = reinterpret_cast<const std::byte*>(&piece) - offsetof(ring::RxBuffer, user);
    const auto& buffer = *reinterpret_cast<const ring::RxBuffer*>(at);
    return sizeof(ring::RxBuffer) + buffer.ring->attr().chunk_size;
}

void free_one(pbuf* piece) noexcept {
    piece->next = nullptr;
    piece->tot_len = piece->len;
    pbuf_free(piece);
}

}  // namespace vma::tcp::blocks
