// SPDX-License-Identifier: BSD-2-Clause
// TCP segments that become one request (IBV_WR_TSO), where the device cuts them apart again.
//
// TCP goes on sending segment by segment. While a sender gathers, a segment is not posted but kept, its
// payload behind that of the segment before. The next segment either continues it, or has it sent first. So
// what is on the wire is what TCP made, segment for segment.
//
// One segment follows another if they are of the same connection, its sequence number is the next one, and
// the one before was full. Time stamps, window and acknowledgement must be the same. PSH and FIN end the
// request, since the device leaves them to the last segment.
//
// Payload lies in buffers that Tso takes from TxBuffers. If the device copies it while posting
// (DeviceAttr::tso_copies), payload stays where the sender has it, until the request is posted. So only one
// thread's segments are kept then, and its Gather ends before it lets go of them.
//
// Locks: the caller holds TxQueue's lock.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libvma/ring/tx_buffers.h"

namespace vma::ring {

class Tso {
  public:
    // `max_payload`: bytes of payload in one request, 0: the device has no TSO. `max_sge`: buffers in one
    // request. `in_place`: payload stays where it is. Once. May throw std::bad_alloc.
    void open(std::uint32_t max_payload, std::uint32_t max_sge, bool in_place) {
        max_payload_ = max_payload;
        in_place_ = in_place;
        if (max_payload != 0) sge_.resize(max_sge);
    }
    bool available() const noexcept { return max_payload_ != 0; }
    bool in_place() const noexcept { return in_place_; }
    std::size_t max_pieces() const noexcept { return sge_.size(); }
    // Are segments kept, which have to leave before any other frame?
    bool waiting() const noexcept { return segments_ != 0; }
    std::uint32_t segments() const noexcept { return segments_; }

    // Does the segment, in `count` pieces, follow the kept ones, and are there buffers for it? Only while
    // waiting().
    bool continues(const TxBuffers& buffers, const std::uint8_t* headers, std::size_t header_length,
                   std::size_t count, std::size_t length) const noexcept;
    // Starts a request with the headers of its first segment, whose payload has `length` bytes. Only while
    // not waiting(), and with buffers enough for that segment.
    void begin(TxBuffers& buffers, const std::uint8_t* headers, std::size_t header_length,
               std::size_t length) noexcept;
    // Keeps a segment: the first one after begin(), or one that continues().
    void add(TxBuffers& buffers, const std::uint8_t* headers, const iovec* iov, std::size_t count,
             std::size_t length) noexcept;

    struct Request {
        std::uint32_t segments = 0, pieces = 0;
        std::uint32_t header_length = 0, payload = 0;  // bytes
        const std::uint8_t* headers = nullptr;
    };
    // Makes the kept segments a request: one segment of up to `max_inline` bytes, with headers, an inline
    // one. Nothing is kept afterwards; `wr` is valid until the next begin().
    Request finish(TxBuffers& buffers, std::uint32_t max_inline, ibv_send_wr& wr) noexcept;
    // In place of finish() for a lone segment whose payload is in place: it is to be sent as a frame. Nothing
    // is kept afterwards.
    struct Lone {
        const std::uint8_t* headers = nullptr;
        std::size_t header_length = 0, length = 0;  // bytes of headers, of payload
        std::size_t count = 0;                      // of the pieces that `iov` got
    };
    Lone take_lone(std::span<iovec> iov) noexcept;
    // The kept segments are lost; their buffers are free already.
    void forget() noexcept { segments_ = 0; }

  private:
    void copy(TxBuffers& buffers, const iovec* iov, std::size_t count, std::size_t length) noexcept;
    void refer(const iovec* iov, std::size_t count, std::size_t length) noexcept;

    std::uint32_t segments_ = 0;  // 0: there is none
    std::uint32_t mss_ = 0, payload_ = 0;
    std::uint32_t header_length_ = 0;
    std::uint32_t next_seq_ = 0;
    std::uint32_t pieces_ = 0;     // buffers
    std::uint32_t space_ = 0;      // bytes left in the last one
    std::uint8_t last_flags_ = 0;  // TCP's, of the last segment
    bool complete_ = false;        // nothing may follow: it was short, or had PSH or FIN
    std::uint8_t* headers_ = nullptr;
    std::vector<ibv_sge> sge_;
    std::uint32_t max_payload_ = 0;
    bool in_place_ = false;
    alignas(8) std::array<std::uint8_t, 14 + 20 + 60> own_headers_{};  // in_place_: of the first segment
};

}  // namespace vma::ring
