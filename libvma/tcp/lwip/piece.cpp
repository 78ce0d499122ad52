// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/lwip/piece.h"

#include <new>

#include "libvma/tcp/lwip/glue.h"

namespace vma::tcp::lwip {
namespace {

static_assert(kHeaderBytes + LWIP_MEM_ALIGN_SIZE(sizeof(pbuf)) == Piece::kOverhead);
static_assert(sizeof(pbuf_custom) <= sizeof(ring::RxBuffer::user));

// lwIP frees a buffer's piece.
void release_buffer(pbuf* p) { Piece::of(p)->free(); }

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
    const auto bytes = static_cast<u16_t>(length);
    auto* made = new (buffer->user) pbuf_custom{.pbuf = {.next = nullptr,
                                                         .payload = buffer->frame + offset,
                                                         .tot_len = bytes,
                                                         .len = bytes,
                                                         .type_internal = PBUF_REF,
                                                         .flags = PBUF_FLAG_IS_CUSTOM,
                                                         .ref = 1,
                                                         .if_idx = NETIF_NO_INDEX},
                                                .custom_free_function = &release_buffer};
    return of(&made->pbuf);
}

}  // namespace vma::tcp::lwip
