// SPDX-License-Identifier: BSD-2-Clause
// What a ring asks of a receiver of frames.
#pragma once

#include <cstdint>

#include "libvma/ring/rx_buffer.h"

namespace vma::ring {

// What ICMP said about a segment that was sent (RFC 792): the errno it means to a socket, the next hop's MTU
// (0: not the matter, or not told), and the quoted sequence number.
struct IcmpError {
    int error = 0;
    std::uint32_t mtu = 0;
    std::uint32_t seq = 0;
};

// How long a sink waits for a ring without frames: RingConfig::idle, or what a program may need that has
// other events at hand.
enum class Idle : unsigned char { soon, later };

// The receiver of a flow's frames. Each method is called with the ring's receive lock held.
class FrameSink {
  public:
    virtual ~FrameSink() = default;
    // Queues the frame and returns. True: the sink owns the buffer now and will release() it. False: the sink
    // drops the frame (and counts why).
    virtual bool deliver(RxBuffer* buffer) noexcept = 0;
    // The batch is over in which deliver() called Ring::at_batch_end(this). It may send.
    virtual void batch_end(Ring& ring) noexcept { (void)ring; }
    // The time of Ring::when_idle() has come. It may send.
    virtual void idle(Ring& ring, Idle when) noexcept { (void)ring, (void)when; }
    // See Ring::icmp_error().
    virtual void icmp_error(Ring& ring, const IcmpError& error) noexcept { (void)ring, (void)error; }
    // After Ring::detach_soon(): no deliver() will come for that flow.
    virtual void detached(Ring& ring) noexcept { (void)ring; }
};

// How a flow is shared by several sinks with the same rule (SO_REUSEADDR, SO_REUSEPORT), as the kernel does
// it. latest: the last one attached gets all. spread: each peer has one of them. spread_any: for sockets
// bound to INADDR_ANY, which get what no socket bound to the address is there for. only: EEXIST if there is a
// sink.
enum class Share { latest, spread, spread_any, only };

}  // namespace vma::ring
