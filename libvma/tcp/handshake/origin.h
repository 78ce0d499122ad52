// SPDX-License-Identifier: BSD-2-Clause
// The listener that a connection was made by, and what that listener knows of it.
//
// Under the connection's lock, but for the reference itself, which stays the same from adopt() on.
#pragma once

#include <cstdint>

namespace vma::ring {
struct RxBuffer;
}

namespace vma::tcp {

class Connection;
class Listener;

class Origin {
  public:
    Origin() = default;
    ~Origin();
    Origin(const Origin&) = delete;
    Origin& operator=(const Origin&) = delete;

    // Takes a reference; the port has one more connection, with `reuse_address` or without.
    void adopt(Listener& listener, bool reuse_address) noexcept;
    // False: the connection has been opened from here.
    bool passive() const noexcept { return listener_ != nullptr; }

    // The handshake is done. False: the listener does not want the connection.
    bool completed(Connection& connection) noexcept;
    // The program has set SO_REUSEADDR anew.
    void reuse_changed(bool reuse_address) noexcept;
    // The connection has ended.
    void gone(Connection& connection) noexcept;
    // Is the accept queue full, so that the handshake's last ACK must not count?
    bool hold_up() noexcept;
    // Gives a frame to the listener, which takes it when the result is true. `iss`: with a SYN of a peer that
    // begins anew.
    bool deliver(ring::RxBuffer* buffer) noexcept;
    bool deliver_again(ring::RxBuffer* buffer, std::uint32_t iss) noexcept;

  private:
    Listener* listener_ = nullptr;  // a reference
    bool counted_reuse_ = false;    // SO_REUSEADDR as the listener knows it
    bool handed_out_ = false;       // to the listener's queue
};

}  // namespace vma::tcp
