// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/piece.h"

#include <new>

#include "libvma/tcp/lwip/glue.h"

namespace vma::tcp::lwip {
namespace {

static_assert(kHeaderBytes + LWIP_MEM_ALIGN_SIZE(sizeof(pbuf)) == Piece::kOverhead);
static_assert(sizeof(pbuf_custom) <= sizeof(ring::RxBuffer::user));

// The last reference to a buffer's piece is gone.
void release_buffer(pbuf* p) {
    auto* storage = reinterpret_cast<std::byte*>(p);
    auto* buffer = reinterpret_cast<ring::RxBuffer*>(storage - offsetof(ring::RxBuffer, user));
    buffer->more = nullptr;
    buffer->release();
}

}  // namespace

Piece* Piece::block(std::uint32_t bytes) noexcept {
    Piece* made = of(pbuf_alloc(PBUF_RAW, static_cast<u16_t>(bytes), PBUF_RAM));
    if (made != nullptr) made->len = made->tot_len = 0;
    return made;
}

Piece* Piece::copy_of(const void* data, std::uint32_t length) noexcept {
    Piece* made = block(length);
    if (made != nullptr) made->append(data, length);
    return made;
}

Piece* Piece::of_buffer(ring::RxBuffer* buffer, std::uint32_t offset, std::uint32_t length) noexcept {
    auto* storage = new (buffer->user) pbuf_custom{};
    return of(received(*storage, &release_buffer, buffer->frame + offset, static_cast<u16_t>(length)));
}

}  // namespace vma::tcp::lwip
