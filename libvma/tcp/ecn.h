// SPDX-License-Identifier: BSD-2-Clause
// Explicit congestion notification (RFC 3168), as Linux does it: what this end asks and answers in SYNs, the
// bits of the frames that leave, and what those of the frames that arrive mean.
//
// Values in, decisions out. The parts of a connection ask and act; congestion control itself is elsewhere
// (recovery/). To a peer that offers accurate ECN this end gives the older form.
#pragma once

#include <cstdint>

namespace vma::tcp {

class Ecn {
  public:
    // TCP's flags: congestion was experienced; the window was reduced.
    static constexpr std::uint8_t kEcho = 0x40, kReduced = 0x80;
    // The two low bits of IP's type of service.
    static constexpr std::uint8_t kIpBits = 3, kCapable0 = 2, kExperienced = 3;

    // ---- the handshake ----
    // Does a SYN ask for it? `reserved`: the four bits behind TCP's data offset, with those of accurate ECN.
    // A SYN whose frame has marks as well has met something that sets them blindly.
    static bool asked(std::uint8_t flags, std::uint8_t reserved, std::uint8_t tos) noexcept {
        constexpr std::uint8_t both = kEcho | kReduced;
        return (flags & both) == both && ((tos & kIpBits) == 0 || reserved != 0);
    }
    // A passive open: what the SYNs have agreed upon.
    void begin(bool agreed) noexcept { on_ = agreed; }
    // The flags of this end's SYN. `again`: it was sent before. With `fallback` it then asks no more, as
    // something on the way may drop such SYNs; the answer to the first one still counts.
    std::uint8_t syn(bool wanted, bool again, bool fallback) noexcept {
        if (!again) on_ = wanted;
        return on_ && !(again && fallback) ? kEcho | kReduced : 0;
    }
    std::uint8_t syn_ack() const noexcept { return on_ ? kEcho : 0; }
    // The peer's SYN-ACK; or its SYN, where both ends sent one.
    void answered(std::uint8_t flags) noexcept { on_ &= (flags & (kEcho | kReduced)) == kEcho; }
    void met(std::uint8_t flags) noexcept { on_ &= asked(flags, 0, 0); }

    bool on() const noexcept { return on_; }

    // ---- receiving ----
    // The frame of the segment at hand had this type of service.
    void arriving(std::uint8_t tos) noexcept { arriving_ = tos & kIpBits; }
    // The segment has new data. True: it is to be acknowledged at once. That is so when congestion shows, as
    // the sender's window may be small by now; and when a frame is not marked as capable, since then it is
    // probably a retransmission.
    bool take_data() noexcept {
        if (!on_) return false;
        if (arriving_ == 0) {
            if (seen_) at_once_ = kAtOnce;
        } else {
            seen_ = true;
            if (arriving_ == kExperienced && !echoing_) {
                echoing_ = true;
                at_once_ = kAtOnce;
            }
        }
        if (at_once_ == 0) return false;
        at_once_--;
        return true;
    }
    // The peer has reduced its window: it need not be told any more.
    void take_reduced() noexcept { echoing_ = false; }
    bool seen() const noexcept { return seen_; }  // a frame that was capable

    // ---- sending ----
    // The flags of a segment that is no SYN. `fresh`: it has data that was not sent before; its frame is
    // marked kCapable0. A reduction is told once, on such a segment.
    std::uint8_t segment(bool fresh) noexcept {
        std::uint8_t flags = echoing_ ? kEcho : 0;
        if (fresh && tell_reduced_) {
            flags |= kReduced;
            tell_reduced_ = false;
        }
        return flags;
    }
    // The next segment with new data tells of a reduction, so it has to be a frame of its own.
    bool tells_reduced() const noexcept { return tell_reduced_; }
    // The window was reduced, for whatever reason; or it was not right to do so.
    void reduced() noexcept { tell_reduced_ = on_; }
    void withdraw() noexcept { tell_reduced_ = false; }

  private:
    static constexpr std::uint8_t kAtOnce = 2;  // ACKs

    bool on_ = false;            // both ends speak it; or this end has asked
    std::uint8_t arriving_ = 0;  // IP's bits of the segment at hand
    bool seen_ = false;
    bool echoing_ = false;      // from the first mark on, until the peer says that it has reduced
    std::uint8_t at_once_ = 0;  // so many segments are acknowledged at once
    bool tell_reduced_ = false;
};

}  // namespace vma::tcp
