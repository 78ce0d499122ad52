// SPDX-License-Identifier: BSD-2-Clause
// A received packet that the program itself keeps (the extra API): a datagram, or a part of a stream.
//
// It counts against its socket's receive buffer, and keeps the socket's object, until it is given back. That
// may be done by any thread, after the program has closed the socket, too: the memory is the ring's, and
// rings live as long as the process.
//
// A datagram in a buffer of its ring is the fast case: all that belongs to it lies in RxBuffer::user, so the
// object is one pointer. Copies, buffers that sinks share, and streams have the rest of the object.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "libvma/net/address.h"
#include "libvma/ring/packet_regions.h"
#include "libvma/ring/rx_buffer.h"
#include "libvma/runtime/clock.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/tcp/receive/lent_data.h"

namespace vma::sockets {

class ExtraSocket;

class Held {
  public:
    Held() = default;
    // Takes over a datagram that its ring has lent (RxBuffer::lend_datagram), or lent data. `charge`: what
    // the socket gets back with it.
    Held(Ref<Socket> owner, ExtraSocket& socket, ring::RxBuffer* datagram, std::uint64_t charge) noexcept;
    Held(Ref<Socket> owner, tcp::LentData&& stream) noexcept
        : owner_(std::move(owner)), stream_(std::move(stream)) {}
    Held(Held&& other) noexcept : datagram_(std::exchange(other.datagram_, nullptr)) {
        if (__builtin_expect(static_cast<bool>(other.owner_), 0)) take_rest(other);
    }
    Held& operator=(Held&& other) noexcept {
        if (this == &other) return *this;
        release();
        datagram_ = std::exchange(other.datagram_, nullptr);
        if (__builtin_expect(static_cast<bool>(other.owner_), 0)) take_rest(other);
        return *this;
    }
    ~Held() { release(); }

    explicit operator bool() const noexcept { return datagram_ != nullptr || static_cast<bool>(stream_); }
    const Socket* owner() const noexcept { return owner_ ? owner_.get() : loan(*datagram_).owner; }
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
    void release() noexcept {
        if (__builtin_expect(static_cast<bool>(owner_), 0)) return release_rest();
        if (datagram_ != nullptr) release_loan();
    }

    // ---- the fast case, by the place of the buffer (RxBuffer::place) ----
    // kNowhere: another case.
    std::uint64_t place() const noexcept {
        return datagram_ != nullptr && !owner_ ? datagram_->place() : ring::PacketRegions::kNowhere;
    }
    // The program has it from now on: a tenure of the buffer, whose number is the result.
    std::uint32_t hand_over() noexcept { return std::exchange(datagram_, nullptr)->tenure.begin(); }
    // Takes it back, if may(owner) says so. `owner`: only to compare.
    enum class Found { taken, refused, unknown };
    template <class May>
    Found take_back(ring::RxBuffer& buffer, std::uint32_t tenure, May&& may) noexcept {
        if (!buffer.tenure.is(tenure)) return Found::unknown;
        const Socket* owner = std::atomic_ref(loan(buffer).owner).load(std::memory_order_acquire);
        // Another thread may have been quicker, and then what was read is anything; else it is the owner.
        if (!buffer.tenure.is(tenure)) return Found::unknown;
        if (!may(owner)) return Found::refused;
        if (!buffer.tenure.end(tenure)) return Found::unknown;
        release();
        datagram_ = &buffer;
        return Found::taken;
    }
    // For the owner: takes out what it gave. The loan of a datagram has ended then.
    ring::RxBuffer* take_datagram() noexcept;
    tcp::LentData& stream() noexcept { return stream_; }

  private:
    // What the fast case has in RxBuffer::user.
    struct Loan {
        Socket* owner;  // with a reference
        ExtraSocket* socket;
        std::uint64_t charge;
    };
    static Loan& loan(ring::RxBuffer& b) noexcept {
        static_assert(sizeof(Loan) <= sizeof b.user);
        return *std::launder(reinterpret_cast<Loan*>(b.user));
    }
    void take_rest(Held& other) noexcept;
    void release_loan() noexcept;
    void release_rest() noexcept;

    ring::RxBuffer* datagram_ = nullptr;
    Ref<Socket> owner_;         // empty: the fast case
    std::uint64_t charge_ = 0;  // of the datagram, for its socket
    tcp::LentData stream_;
};

}  // namespace vma::sockets
