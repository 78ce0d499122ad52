// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/held.h"

#include <algorithm>
#include <new>

#include "libvma/sockets/extra_socket.h"

namespace vma::sockets {

Held& Held::operator=(Held&& other) noexcept {
    if (this == &other) return *this;
    release();
    owner_ = std::move(other.owner_);
    datagram_ = std::exchange(other.datagram_, nullptr);
    charge_ = other.charge_;
    stream_ = std::move(other.stream_);
    return *this;
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

void Held::release() noexcept {
    if (datagram_ != nullptr) {
        ring::RxBuffer* const datagram = std::exchange(datagram_, nullptr);
        datagram->end_datagram_loan();
        datagram->release();
        if (ExtraSocket* extra = owner_->extra()) extra->given_back(charge_);
    }
    if (stream_) {
        const std::size_t bytes = stream_.bytes();
        stream_.release();
        if (ExtraSocket* extra = owner_->extra()) extra->given_back(bytes);
    }
    owner_ = {};
}

void Held::forget() noexcept {
    datagram_ = nullptr;
    stream_.forget();
    new (&owner_) Ref<Socket>();
}

ring::RxBuffer* Held::take_datagram() noexcept {
    ring::RxBuffer* const datagram = std::exchange(datagram_, nullptr);
    datagram->end_datagram_loan();
    if (ExtraSocket* extra = owner_->extra()) extra->given_back(charge_);
    return datagram;
}

}  // namespace vma::sockets
