// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/lent_data.h"

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/piece.h"

namespace vma::tcp {

using lwip::Piece;

LentData& LentData::operator=(LentData&& other) noexcept {
    if (this == &other) return *this;
    release();
    first_ = std::exchange(other.first_, nullptr);
    last_ = other.last_;
    connection_ = other.connection_;
    bytes_ = other.bytes_;
    charge_ = other.charge_;
    return *this;
}

void LentData::add(Piece* piece) noexcept {
    (first_ != nullptr ? last_->set_next(piece) : void(first_ = piece));
    last_ = piece;
    bytes_ += piece->size();
    charge_ += piece->size() + kPieceCost;
}

unsigned LentData::iovecs(iovec* out, unsigned room) const noexcept {
    unsigned count = 0;
    for (const Piece* p = first_; p != nullptr; p = p->next(), count++)
        if (count < room) out[count] = {p->data(), p->size()};
    return count;
}

clock::WallTime LentData::arrived() const noexcept {
    const ring::RxBuffer* buffer = first_ != nullptr ? first_->buffer() : nullptr;
    return buffer != nullptr ? buffer->arrived : clock::WallTime{};
}

const net::Endpoints& LentData::ends() const noexcept { return connection_->endpoints(); }

void LentData::release() noexcept {
    if (first_ == nullptr) return;
    for (Piece* p = std::exchange(first_, nullptr); p != nullptr;) {
        Piece* next = p->next();
        if (ring::RxBuffer* buffer = p->buffer()) buffer->end_loan(1);
        p->free();
        p = next;
    }
    connection_->given_back(charge_);
    std::exchange(connection_, nullptr)->unref();
}

}  // namespace vma::tcp
