// SPDX-License-Identifier: BSD-2-Clause
// The checks in front of lwIP: whether a received segment is taken (RFC 9293 section 3.10.7, RFC 5961, PAWS),
// and whether the window it announces is news.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/timers/time.h"

namespace vma::net {
struct TcpHeader;
}
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
    // Header prediction: does without lwIP for the segment that is expected. That is, in ESTABLISHED, an ACK
    // with or without data, next in sequence and within the window, with no option but a time stamp. Takes
    // its ACK and its window. False: it is another one, and nothing has changed. `length`: bytes of data.
    bool take_expected(const net::TcpHeader& header, unsigned option_bytes, std::uint32_t length) noexcept;
    // The handshake is done: the peer's window came with the segment `window_seq`.
    void start(std::uint32_t window_seq) noexcept {
        window_seq_ = window_seq;
        last_ack_rx_ = last_rx_;
    }
    // In TIME_WAIT: does this frame begin a new connection? Then reopen() takes it.
    bool reopens(const ring::RxBuffer& buffer) const noexcept;
    void reopen(ring::RxBuffer* buffer) noexcept;

    // A segment has come; when the last one came; and the last acceptable ACK.
    void arrived(Time now) noexcept { last_rx_ = now; }
    Time last_rx() const noexcept { return last_rx_; }
    Time last_ack_rx() const noexcept { return last_ack_rx_; }
    // When the peer has last shown that it is there: by data or an ACK that was taken. What is refused may be
    // anybody's.
    Time last_heard() const noexcept;

    // Of the segment that lwIP processes: has it an ACK, and what does that acknowledge?
    bool has_ack() const noexcept { return has_ack_; }
    std::uint32_t seg_ack() const noexcept { return seg_ack_; }

  private:
    struct Said;  // by the segment's options
    enum class Answer : std::uint8_t { no, yes, open };

    inline void read_options(const lwip::ReceivedHeader& header, unsigned option_bytes, Said& said) noexcept;
    Answer check_by_state(lwip::ReceivedHeader& header, unsigned option_bytes, std::uint32_t length) noexcept;
    Answer check_syn_sent(lwip::ReceivedHeader& header, unsigned option_bytes) noexcept;
    void check_time_wait(const lwip::ReceivedHeader& header, unsigned option_bytes,
                         std::uint32_t length) noexcept;
    bool ends_early_data(std::uint32_t seq) const noexcept;
    bool too_old(std::uint32_t ack) const noexcept;
    inline void keep_stamp(const Said& said, std::uint32_t seq, std::uint32_t end) noexcept;
    inline std::uint32_t take_ack(std::uint32_t seq, std::uint32_t ack, std::uint16_t window, bool data,
                                  const Said& said, std::uint8_t ecn_flags) noexcept;
    inline void take_data(std::uint32_t length, std::uint32_t end) noexcept;
    inline void choose_window(std::uint32_t seq, std::uint32_t ack, std::uint32_t window) noexcept;
    bool urgent_wanted(const lwip::ReceivedHeader& header) noexcept;
    void refuse(std::uint8_t flags, std::uint32_t length, std::uint32_t seq) noexcept;
    bool old_stamp_counts(const lwip::ReceivedHeader& header, std::uint32_t stamp) const noexcept;
    void challenge() noexcept;

    Tcb& tcb_;
    Time last_rx_;
    Time last_ack_rx_;
    Time ts_recent_at_;             // when the last time stamp came
    std::uint32_t window_seq_ = 0;  // SND.WL1: the segment that the peer's window was last taken from
    std::uint32_t seg_ack_ = 0;     // SEG.ACK
    bool has_ack_ = false;
    Time challenged_at_;  // when challenge() sent its last ACK; kNoTime: never
};

}  // namespace vma::tcp
