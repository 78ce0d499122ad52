// SPDX-License-Identifier: BSD-2-Clause
// The handshake: what this end's SYN announced, how it went, and what follows when it is done.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct Handshake;
struct Tcb;

class Opening {
  public:
    explicit Opening(Tcb& tcb) noexcept;

    // An active open: makes the PCB and sends the SYN. 0 or ENOBUFS.
    int start() noexcept;
    // A PCB that lwIP made of a SYN, whose answer has been sent already.
    void adopt(lwip::Pcb* pcb, const Handshake& handshake) noexcept;
    // Both ends sent a SYN (RFC 9293 section 3.5, figure 7).
    void simultaneous_open(const lwip::ReceivedHeader& header, unsigned option_bytes) noexcept;
    // A SYN came again, or the timer says so: this end's is repeated.
    void repeat() noexcept;
    // The peer has acknowledged this end's SYN. Called by lwIP.
    void established() noexcept;

    // A SYN with the window `window` leaves at the time `now`.
    void syn_sent(std::uint32_t window, Time now) noexcept {
        if (sent_at_ == kNoTime) sent_at_ = now;
        if (window > syn_window_) syn_window_ = window;
    }
    void note_repeated() noexcept { repeated_ = true; }
    // The round trip of the SYN, unless it was repeated.
    void measure(Time now) noexcept;
    Time sent_at() const noexcept { return sent_at_; }
    Time done_at() const noexcept { return done_at_; }  // of the handshake; kNoTime: it is not
    bool simultaneous() const noexcept { return simultaneous_; }
    std::uint8_t own_scale() const noexcept { return own_scale_; }
    bool begun() const noexcept { return own_window_ != 0; }

    // The time stamp that a segment sent at `now` carries: one a millisecond.
    std::uint32_t timestamp(Time now) const noexcept { return milliseconds(now) + ts_offset_; }
    // What lwIP reads of this connection; and of that the full window alone.
    inline lwip::Parameters parameters() const noexcept;
    inline std::uint32_t full_window() const noexcept;

  private:
    inline lwip::Parameters negotiated() const noexcept;

    Tcb& tcb_;
    std::uint32_t own_window_ = 0;  // what lwIP takes for the full window until the SYN is answered
    std::uint32_t syn_window_ = 0;  // the largest window that a SYN announced
    std::uint32_t ts_offset_;       // of the time stamps
    std::uint8_t own_scale_ = 0;    // of the window, as the SYN announces it; options may change later
    bool simultaneous_ = false;
    bool repeated_ = false;  // so the SYN's round trip is not measured
    Time sent_at_, done_at_;
};

}  // namespace vma::tcp
