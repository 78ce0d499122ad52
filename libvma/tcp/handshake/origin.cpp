// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/origin.h"

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/listener.h"

namespace vma::tcp {

Origin::~Origin() {
    if (listener_ != nullptr) listener_->unref();
}

void Origin::adopt(Listener& listener, bool reuse_address) noexcept {
    listener.ref();
    listener_ = &listener;
    counted_reuse_ = reuse_address;
    listener.joined(reuse_address);
}

bool Origin::completed(Connection& connection) noexcept {
    handed_out_ = listener_->completed(connection);
    return handed_out_;
}

void Origin::reuse_changed(bool reuse_address) noexcept {
    if (listener_ == nullptr || counted_reuse_ == reuse_address) return;
    listener_->left(counted_reuse_);
    counted_reuse_ = reuse_address;
    listener_->joined(counted_reuse_);
}

void Origin::gone(Connection& connection) noexcept {
    if (listener_ == nullptr) return;
    if (!handed_out_) listener_->lost(connection);
    listener_->left(counted_reuse_);
}

bool Origin::hold_up() noexcept { return listener_ != nullptr && listener_->hold_up(); }
bool Origin::deliver(ring::RxBuffer* buffer) noexcept { return listener_->deliver(buffer); }
bool Origin::deliver_again(ring::RxBuffer* buffer, std::uint32_t iss) noexcept {
    return listener_->deliver_again(buffer, iss);
}

}  // namespace vma::tcp
