// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/rx_buffer.h"

#include <algorithm>
#include <cstring>

#include "libvma/ring/ring.h"

namespace vma::ring {

std::size_t RxBuffer::copy_to(const iovec* iov, std::size_t count, std::size_t from) const noexcept {
    std::size_t left = payload_length > from ? payload_length - from : 0, copied = 0;
    const RxBuffer* piece = this;
    std::size_t at = payload_offset + from;  // from the start of the frame
    while (piece != nullptr && at >= piece->length) {
        at -= piece->length;
        piece = piece->more;
    }
    for (std::size_t i = 0; i < count && left != 0; i++) {
        std::size_t room = iov[i].iov_len, put = 0;
        while (put < room && left != 0 && piece != nullptr) {
            std::size_t n = std::min({room - put, left, static_cast<std::size_t>(piece->length) - at});
            std::memcpy(static_cast<std::uint8_t*>(iov[i].iov_base) + put, piece->frame + at, n);
            put += n;
            left -= n;
            at += n;
            if (at == piece->length) {
                piece = piece->more;
                at = 0;
            }
        }
        copied += put;
    }
    return copied;
}

std::uint32_t RxBuffer::chunks() const noexcept {
    if (kind != Kind::ring) return kind == Kind::share ? 1 : 0;
    std::uint32_t n = 0;
    for (const RxBuffer* b = this; b != nullptr; b = b->more) n++;
    return n;
}

bool RxBuffer::lend(std::uint32_t chunks) noexcept {
    return chunks == 0 || kind == Kind::copy || ring->rx_.queue().lend(chunks);
}

void RxBuffer::end_loan(std::uint32_t chunks) noexcept {
    if (chunks != 0 && kind != Kind::copy) ring->rx_.queue().end_loan(chunks);
}

RxBuffer* RxBuffer::lend_datagram() noexcept {
    if (lend(chunks())) return this;
    RxBuffer* copied = copy();
    if (copied != nullptr) release();
    return copied;
}

RxBuffer* RxBuffer::copy() const noexcept { return ring->rx_.queue().copy_of(*this); }

void RxBuffer::release_lent() noexcept {
    if (__builtin_expect(kind == Kind::ring, 1))
        for (RxBuffer* b = this; b != nullptr; b = b->more) b->lent = true;
    else
        end_datagram_loan();
    release();
}

std::uint64_t RxBuffer::place() const noexcept {
    if (kind != Kind::ring) return PacketRegions::kNowhere;
    PacketMemory& memory = ring->memory_;
    return PacketRegions::place_of(memory.number(),
                                   static_cast<std::uint64_t>(this - memory.rx_buffers().data()));
}

RxBuffer* RxBuffer::at(std::uint64_t place) noexcept { return PacketRegions::buffer(place); }

[[gnu::noinline]] void RxBuffer::release_other() noexcept {
    RxQueue& home = ring->rx_.queue();
    kind == Kind::copy ? home.free_copy(this) : home.shares().release(this);
}

void RxBuffer::release() noexcept {
    if (__builtin_expect(kind != Kind::ring, 0)) return release_other();
    // A chain becomes a list of single buffers; the whole list is pushed at once.
    RxBuffer* last = this;
    for (RxBuffer* b = this; b != nullptr; b = b->more) {
        b->next = b->more;
        last = b;
    }
    ring->rx_.queue().release(this, last);
}

}  // namespace vma::ring
