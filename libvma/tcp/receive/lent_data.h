// SPDX-License-Identifier: BSD-2-Clause
// Received data of a connection that the program itself keeps (the extra API): pieces in sequence, where they
// arrived.
//
// What is lent counts against the connection's window until it is given back. It may be given back by any
// thread, after the connection has ended, too. Pieces beyond the program's share of a ring's buffers are
// copies.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "libvma/net/address.h"
#include "libvma/runtime/clock.h"
#include "libvma/tcp/lwip/types.h"

namespace vma::tcp {

class Connection;
class Receiver;

class LentData {
  public:
    LentData() = default;
    LentData(LentData&& other) noexcept { *this = std::move(other); }
    LentData& operator=(LentData&& other) noexcept;
    ~LentData() {
        if (__builtin_expect(first_ != nullptr, 0)) release();
    }

    explicit operator bool() const noexcept { return first_ != nullptr; }
    std::size_t bytes() const noexcept { return bytes_; }
    // Puts at most `room` iovecs at `out`, one for each piece; returns how many pieces there are.
    unsigned iovecs(iovec* out, unsigned room) const noexcept;
    // When the first piece arrived; none unless a socket wants arrival times.
    clock::WallTime arrived() const noexcept;
    const net::Endpoints& ends() const noexcept;
    bool of(const Connection& connection) const noexcept { return connection_ == &connection; }
    // Gives it back and opens the window.
    void release() noexcept;
    // In a forked child, which has neither the buffers nor the connection.
    void forget() noexcept { first_ = nullptr; }

  private:
    friend class Connection;
    friend class Receiver;

    // What a piece costs beside its bytes, as for datagrams.
    static constexpr std::uint32_t kPieceCost = 256;

    void add(lwip::Piece* piece) noexcept;

    lwip::Piece* first_ = nullptr;
    lwip::Piece* last_ = nullptr;
    Connection* connection_ = nullptr;  // with a reference
    std::size_t bytes_ = 0;
    std::uint32_t charge_ = 0;  // bytes of the window
};

}  // namespace vma::tcp
