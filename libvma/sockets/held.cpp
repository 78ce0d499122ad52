// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/held.h"

#include <algorithm>
#include <new>

#include "libvma/sockets/extra_socket.h"

namespace vma::sockets {

Held::Held(Ref<Socket> owner, ExtraSocket& socket, ring::RxBuffer* datagram, std::uint64_t charge) noexcept
    : datagram_(datagram), charge_(charge) {
    if (__builtin_expect(datagram->kind == ring::RxBuffer::Kind::ring, 1))
        new (datagram->user) Loan{owner.release(), &socket, charge};
    else
        owner_ = std::move(owner);
}

// All but the datagram.
void Held::take_rest(Held& other) noexcept {
    owner_ = std::move(other.owner_);
    charge_ = other.charge_;
    stream_ = std::move(other.stream_);
}

unsigned Held::iovecs(iovec* out, unsigned room) const noexcept {
    if (datagram_ == nullptr) return stream_.iovecs(out, room);
    unsigned count = 0;
    std::size_t skip = datagram_->payload_offset, left = datagram_->payload_length;
    for (const ring::RxBuffer* b = datagram_; b != nullptr && left != 0; b = b->more) {
        if (skip >= b->length) {
            skip -= b->length;
            continue;
        }
        const std::size_t here = std::min<std::size_t>(b->length - skip, left);
        if (count < room) out[count] = {b->frame + skip, here};
        count++;
        left -= here;
        skip = 0;
    }
    return count;
}

net::Endpoint Held::source() const noexcept {
    if (datagram_ == nullptr) return stream_.ends().remote;
    return {net::Address(datagram_->src_addr), datagram_->src_port};
}

net::Endpoint Held::destination() const noexcept {
    if (datagram_ == nullptr) return stream_.ends().local;
    return {net::Address(datagram_->dst_addr), datagram_->dst_port};
}

void Held::release_loan() noexcept {
    ring::RxBuffer* const datagram = std::exchange(datagram_, nullptr);
    const Loan mine = loan(*datagram);
    datagram->release_lent();
    mine.socket->given_back(mine.charge);
    mine.owner->unref();
}

void Held::release_rest() noexcept {
    ExtraSocket* const extra = owner_->extra();
    if (datagram_ != nullptr) {
        std::exchange(datagram_, nullptr)->release_lent();
        if (extra != nullptr) extra->given_back(charge_);
    }
    if (stream_) {
        const std::size_t bytes = stream_.bytes();
        stream_.release();
        if (extra != nullptr) extra->given_back(bytes);
    }
    owner_ = {};
}

ring::RxBuffer* Held::take_datagram() noexcept {
    ring::RxBuffer* const datagram = std::exchange(datagram_, nullptr);
    datagram->end_datagram_loan();
    if (owner_) {
        if (ExtraSocket* extra = owner_->extra()) extra->given_back(charge_);
        owner_ = {};
    } else {
        const Loan mine = loan(*datagram);
        mine.socket->given_back(mine.charge);
        mine.owner->unref();
    }
    return datagram;
}

}  // namespace vma::sockets
