// SPDX-License-Identifier: BSD-2-Clause
// Puts headers and options in front of segments and gives the frames to the ring.
//
// Under the connection's lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct Path;
struct Tcb;

class SegmentWriter {
  public:
    explicit SegmentWriter(Tcb& tcb) noexcept : tcb_(tcb) {}

    // From here on frames go this way, with the IP options that the program has set.
    void use(const Path& path) noexcept;
    // Sends a segment of the queue with an ACK in it, as a super-frame if it is longer than a frame; `again`:
    // it was sent before. False: the device's queue is full, or there is no way.
    bool send(lwip::Segment* segment, bool again) noexcept;
    // Sends an ACK. `back`: how far before SND.NXT it is; 1 makes it a probe, which the peer must answer
    // because it is old.
    void send_ack(std::uint32_t back = 0) noexcept;
    // Connection::network_header(), or -ENOTCONN before there is a path.
    int headers(void* out, std::size_t room) const noexcept;
    // Sends what lwIP has made itself: RST, keep-alive, ACKs of out-of-order segments.
    void send_control(const lwip::Piece& segment) noexcept;
    // A RST in answer to a segment that acknowledges `ack` (RFC 9293 section 3.10.7.1).
    void refuse(std::uint32_t ack) noexcept;

  private:
    void send_reset() noexcept;
    bool forbids_fragments() const noexcept;
    bool transmit(std::uint8_t* tcp_header, std::size_t header_length, const iovec* iov, std::size_t count,
                  std::size_t length, std::uint32_t frames = 1, std::uint8_t ecn = 0) noexcept;
    std::size_t put_options(std::uint8_t* at, const lwip::Segment* segment, Time now) noexcept;

    Tcb& tcb_;
    alignas(8) std::uint8_t ip_headers_[34]{};
};

}  // namespace vma::tcp
