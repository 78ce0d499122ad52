// SPDX-License-Identifier: BSD-2-Clause
// The checks in front of lwIP: whether a received segment is taken (RFC 9293 section 3.10.7, RFC 5961, PAWS),
// and whether the window it announces is news.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/lwip/types.h"

namespace vma::ring {
struct RxBuffer;
}

namespace vma::tcp {

struct Tcb;

class Acceptance {
  public:
    explicit Acceptance(Tcb& tcb) noexcept;

    // Called by lwIP with the header's numbers in host byte order. False: lwIP is not to see the segment.
    bool check(lwip::ReceivedHeader& header, unsigned option_bytes, const lwip::Piece& p) noexcept;
    // The handshake is done: the peer's window came with the segment `window_seq`.
    void start(std::uint32_t window_seq) noexcept {
        window_seq_ = window_seq;
        last_ack_rx_ns_ = last_rx_ns_;
    }
    // In TIME_WAIT: does this frame begin a new connection? Then reopen() takes it.
    bool reopens(const ring::RxBuffer& buffer) const noexcept;
    void reopen(ring::RxBuffer* buffer) noexcept;

    // A segment has come; when the last one came; and the last acceptable ACK.
    void arrived(std::uint64_t now) noexcept { last_rx_ns_ = now; }
    std::uint64_t last_rx_ns() const noexcept { return last_rx_ns_; }
    std::uint64_t last_ack_rx_ns() const noexcept { return last_ack_rx_ns_; }

  private:
    struct Said;  // by the segment's options
    enum class Answer : std::uint8_t { no, yes, open };

    inline void read_options(const lwip::ReceivedHeader& header, unsigned option_bytes, Said& said) noexcept;
    Answer check_by_state(lwip::ReceivedHeader& header, unsigned option_bytes, std::uint32_t length) noexcept;
    inline void keep_stamp(const Said& said, std::uint32_t seq, std::uint32_t end) noexcept;
    inline void take_ack(const lwip::ReceivedHeader& header, std::uint32_t length, const Said& said) noexcept;
    inline void choose_window(std::uint32_t seq, std::uint32_t ack, std::uint32_t window) noexcept;
    bool urgent_wanted(const lwip::ReceivedHeader& header) noexcept;
    void challenge() noexcept;

    Tcb& tcb_;
    std::uint64_t last_rx_ns_;
    std::uint64_t last_ack_rx_ns_ = 0;
    std::uint64_t ts_recent_ns_ = 0;  // when the last time stamp came
    std::uint32_t window_seq_ = 0;    // SND.WL1: the segment that the peer's window was last taken from
    unsigned challenges_ = 0;         // ACKs since challenges_since_ns_
    std::uint64_t challenges_since_ns_ = 0;
};

}  // namespace vma::tcp
