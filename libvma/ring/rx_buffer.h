// SPDX-License-Identifier: BSD-2-Clause
// One receive buffer's descriptor, which a sink gets with each frame.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "libvma/ring/tenure.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {

class Ring;

// A frame in several buffers is a chain over `more`, the first one describes it. Everything but the time
// stamp lies in one cache line; the second line is the sink's, as long as the sink has the buffer.
struct alignas(64) RxBuffer {
    RxBuffer* next = nullptr;  // list the buffer is on
    RxBuffer* more = nullptr;  // continuation of the frame
    Ring* ring = nullptr;
    std::uint8_t* frame = nullptr;  // first byte of the frame (or of its continuation)
    std::uint32_t length = 0;       // bytes in this buffer; 0: posted, or free to be posted
    std::uint32_t payload_offset = 0;
    std::uint32_t payload_length = 0;
    in_addr_t src_addr = 0, dst_addr = 0;
    in_port_t src_port = 0, dst_port = 0;
    std::uint8_t tos = 0, ttl = 0;
    // ring: a buffer of the ring. copy: memory of its own, in one piece (Ring::swap_for_copy). share: another
    // sink has the frame, too (Ring::share).
    enum class Kind : std::uint8_t { ring, copy, share };
    Kind kind = Kind::ring;
    bool lent = false;               // released with its loan, which the ring ends (release_lent)
    std::uint32_t drops_before = 0;  // the socket's drop count when this was queued (SO_RXQ_OVFL)
    // When it arrived; none unless a socket wants arrival times (Ring::want_timestamps).
    clock::WallTime arrived;
    // The same by the device's own clock; none if that has no time. Meaningful where `arrived` is set.
    clock::DeviceTime arrived_at_device;
    std::uint16_t l4_offset = 0;      // of the UDP or TCP header, from the start of the frame
    Tenure tenure;                    // of the program: see below
    alignas(8) std::byte user[40]{};  // whatever the sink that holds the buffer needs with it

    // Copies up to the iovecs' room from payload byte `from` on. Returns bytes copied.
    std::size_t copy_to(const iovec* iov, std::size_t count, std::size_t from = 0) const noexcept;
    // Gives the whole chain back to its ring. Any thread.
    void release() noexcept;

    // ---- what the program itself keeps (the extra API). Any thread ----
    // The program keeps `chunks` buffers of the ring with this one. False: it has its share of the ring's
    // buffers (RxQueue::lend), so it needs a copy. Copies count as none, and always may be kept.
    bool lend(std::uint32_t chunks) noexcept;
    void end_loan(std::uint32_t chunks) noexcept;
    // The same for a whole datagram: the one to keep is this one, or a copy of it, and then this one is
    // released. Null: there is no memory for the copy, and this one stays the caller's.
    RxBuffer* lend_datagram() noexcept;
    // A copy of it in memory of its own; null: there is none, or copies take up RingConfig::max_copied.
    RxBuffer* copy() const noexcept;
    void end_datagram_loan() noexcept { end_loan(chunks()); }
    // release() of a lent datagram. The ring ends the loans of a ring's own buffers when it takes them back,
    // many at once.
    void release_lent() noexcept;

    // The program has a datagram in a ring's own buffer, which is found by a number (place(), at()), and has
    // a tenure. Whatever the sink needs with the datagram lies in `user` then. kNowhere: it has no number.
    std::uint64_t place() const noexcept;
    static RxBuffer* at(std::uint64_t place) noexcept;  // null: there is none

  private:
    void release_other() noexcept;          // no buffer of the ring
    std::uint32_t chunks() const noexcept;  // of the ring, that this frame keeps
};

}  // namespace vma::ring
