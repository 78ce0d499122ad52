// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/transport.h"

#include "libvma/ring/ring.h"

namespace vma::sockets {
namespace {

constinit thread_local const tcp::Connection* t_inside = nullptr;

}  // namespace

ConnectionScope::ConnectionScope(const tcp::Connection& c) noexcept : before_(t_inside) { t_inside = &c; }
ConnectionScope::~ConnectionScope() { t_inside = before_; }

bool ConnectionScope::interrupted(const tcp::Connection& c) noexcept {
    if (t_inside == &c) return true;
    const ring::Ring* ring = c.ring();
    return ring != nullptr && ring->rx_owned_by_me();
}

TcpTransport::~TcpTransport() {
    if (tcp::Connection* c = connection_.load(std::memory_order_relaxed)) c->unref();
    if (tcp::Listener* l = listener_.load(std::memory_order_relaxed)) l->unref();
    release_retired();
}

void TcpTransport::retire(Retired retired) noexcept {
    if (retired.connection == nullptr && retired.listener == nullptr) return;
    try {
        retired_.push_back(retired);
    } catch (...) {
        // Without memory for the note the object stays for ever, which is better than too short.
    }
    release_retired();
}

void TcpTransport::release_retired() noexcept {
    if (retired_.empty() || users_.load(std::memory_order_seq_cst) != 0) return;
    for (Retired& r : retired_) {
        if (r.connection != nullptr) r.connection->unref();
        if (r.listener != nullptr) r.listener->unref();
    }
    retired_.clear();
}

bool TcpTransport::close(bool reset, bool now) noexcept {
    reset_ = reset;
    close_pending_.store(true, std::memory_order_seq_cst);
    if (!now && users_.load(std::memory_order_seq_cst) != 0) return false;
    finish_close();
    return true;
}

void TcpTransport::finish_close() const noexcept {
    if (!close_pending_.exchange(false, std::memory_order_seq_cst)) return;
    tcp::Connection* c = connection();
    if (c == nullptr) return;
    ConnectionScope here(*c);
    c->close(reset_);
}

}  // namespace vma::sockets
