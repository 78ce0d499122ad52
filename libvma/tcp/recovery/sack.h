// SPDX-License-Identifier: BSD-2-Clause
// Blocks of a SACK option, and what the scoreboard makes of an ACK.
#pragma once

#include <cstdint>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// A block of a SACK option (RFC 2018): [left, right) in host byte order.
struct SackBlock {
    std::uint32_t left = 0;
    std::uint32_t right = 0;
    friend bool operator==(const SackBlock&, const SackBlock&) = default;
};

// What an ACK's SACK option changed.
struct SackOutcome {
    std::uint32_t newly_sacked = 0;   // bytes
    unsigned dsacks = 0;              // blocks that report duplicates (RFC 2883): 0 or 1
    std::uint32_t duplicate_end = 0;  // where that ends
    unsigned invalid = 0;             // blocks that were ignored
    // How far before the end of what had been reported a segment lies that was sent once and arrived now:
    // bytes.
    std::uint32_t reordered = 0;
    bool original = false;  // one of them was sent once, before recovery_point()
};

enum class RecoveryPhase : std::uint8_t { open, recovery, timeout };

// What a cumulative ACK covered.
struct AckOutcome {
    std::uint32_t bytes = 0;      // of whole segments
    std::uint32_t delivered = 0;  // of these, what no SACK had reported
    unsigned segments = 0;
    bool retransmitted = false;   // one of them was sent more than once: no round trip may be measured (Karn)
    bool recovered = false;       // ended the recovery, or the time after a timeout
    bool reneged = false;         // the peer had reported the next segment and yet does not acknowledge it
    std::uint32_t reordered = 0;  // as in SackOutcome
    bool original = false;        // as there
    RecoveryPhase was = RecoveryPhase::open;  // before it
};

// What RACK made of an ACK, or of the time that has passed.
struct LossOutcome {
    std::uint32_t lost = 0;       // bytes
    bool retransmission = false;  // some of them had been sent again
    bool more = false;            // not all could be looked at
    Usec wait{};                  // until more may be lost; 0: nothing is waited for
};

}  // namespace vma::tcp
