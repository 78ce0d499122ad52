// SPDX-License-Identifier: BSD-2-Clause
// One end of a connection, as the peer of a script keeps it: the numbers that relative ones stand for.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "script.h"
#include "tests/support/attacker/segment.h"

namespace scripts {

inline constexpr int kPeerPort = 5000;  // and the endpoint's number
inline constexpr std::uint32_t kFirstStamp = 0x20000000;

class Endpoint {
  public:
    Endpoint(in_addr_t peer, in_addr_t program, std::uint16_t peer_port, std::uint16_t program_port,
             std::uint32_t first)
        : peer_(peer), program_(program), peer_port_(peer_port), program_port_(program_port), first_(first) {}

    // What the peer sends when it says `p`; it becomes part of what is known.
    attacker::Segment send(const Pattern& p);
    // A segment of the program's arrived.
    void hear(const attacker::Segment& s);
    // The same numbers again for a further connection: its first number is `by` further on.
    void renumber(std::uint32_t by) { first_ += by; }
    // The header of a segment of the program's that begins at `seq`, as an ICMP message quotes it.
    attacker::Frame quoted(std::uint32_t seq) const;

    // As a script writes it.
    std::string text(const attacker::Segment& s, std::uint8_t ecn, bool from_peer) const;
    // What is not as `p` says; empty when all is.
    std::string difference(const Pattern& p, const attacker::Segment& s, std::uint8_t ecn) const;

  private:
    std::uint32_t echo(const Stamp& stamp) const;
    std::string options_difference(const Pattern& p, const attacker::Segment& s) const;
    bool stamps() const { return stamps_sent_ && stamps_heard_; }

    in_addr_t peer_, program_;
    std::uint16_t peer_port_, program_port_;
    std::uint32_t first_;                              // the peer's first sequence number
    std::optional<std::uint32_t> their_first_;         // the program's
    std::uint32_t clock_ = 0;                          // of the peer's time stamps
    std::uint32_t heard_ = 0, first_heard_ = 0;        // the program's time stamps
    std::map<std::uint32_t, std::uint32_t> heard_at_;  // those that came first with each number
    bool stamps_sent_ = false, stamps_heard_ = false;
    std::uint8_t scale_ = 0, their_scale_ = 0;  // as the SYNs say
    bool scale_sent_ = false, scale_heard_ = false;
};

}  // namespace scripts
