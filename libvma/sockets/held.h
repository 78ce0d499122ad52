// SPDX-License-Identifier: BSD-2-Clause
// A received packet that the program itself keeps (the extra API): a datagram, or a part of a stream.
//
// It counts against its socket's receive buffer, and keeps the socket's object, until it is given back. That
// may be done by any thread, after the program has closed the socket, too: the memory is the ring's, and
// rings live as long as the process.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "libvma/net/address.h"
#include "libvma/ring/rx_buffer.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/tcp/receive/lent_data.h"

namespace vma::sockets {

class Held {
  public:
    Held() = default;
    // Takes over a datagram that its ring has lent (RxBuffer::lend_datagram), or lent data.
    Held(Ref<Socket> owner, ring::RxBuffer* datagram, std::uint64_t charge) noexcept
        : owner_(std::move(owner)), datagram_(datagram), charge_(charge) {}
    Held(Ref<Socket> owner, tcp::LentData&& stream) noexcept
        : owner_(std::move(owner)), stream_(std::move(stream)) {}
    Held(Held&& other) noexcept { *this = std::move(other); }
    Held& operator=(Held&& other) noexcept;
    ~Held() { release(); }

    explicit operator bool() const noexcept { return datagram_ != nullptr || static_cast<bool>(stream_); }
    const Socket* owner() const noexcept { return owner_.get(); }
    std::size_t bytes() const noexcept {
        return datagram_ != nullptr ? datagram_->payload_length : stream_.bytes();
    }
    // Puts at most `room` iovecs at `out`, none of them empty; returns how many there are.
    unsigned iovecs(iovec* out, unsigned room) const noexcept;
    net::Endpoint source() const noexcept;
    net::Endpoint destination() const noexcept;
    // None unless a socket wants arrival times.
    clock::WallTime arrived() const noexcept {
        return datagram_ != nullptr ? datagram_->arrived : stream_.arrived();
    }

    // The same by the device's clock.
    clock::DeviceTime arrived_at_device() const noexcept {
        return datagram_ != nullptr ? datagram_->arrived_at_device : clock::DeviceTime{};
    }

    // Gives it back. Nothing is left.
    void release() noexcept;
    // In a forked child, which has neither the buffers nor the socket.
    void forget() noexcept;
    // For the owner: takes out what it gave. The loan of a datagram has ended then.
    ring::RxBuffer* take_datagram() noexcept;
    tcp::LentData& stream() noexcept { return stream_; }

  private:
    Ref<Socket> owner_;
    ring::RxBuffer* datagram_ = nullptr;
    std::uint64_t charge_ = 0;  // of the datagram, for its socket
    tcp::LentData stream_;
};

}  // namespace vma::sockets
