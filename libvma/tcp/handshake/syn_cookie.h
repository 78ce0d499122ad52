// SPDX-License-Identifier: BSD-2-Clause
// SYN cookies (RFC 4987 section 3.6): when the table of half-open connections is full, what has to be known
// of a SYN travels in the numbers of its answer, and comes back with the peer's ACK.
//
// Our sequence number holds which of four segment sizes the peer takes, and a minute's number, under 24 bits
// of a keyed hash of both, the endpoints and the peer's sequence number: one guess in 2^29 is right, as with
// the kernel's. Where the peer has time stamps, the lowest bits of ours hold its window scale and whether it
// takes SACK and ECN, else it gets none of these, as from the kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// A cookie is good for this long at least, and at most for twice that.
constexpr Nsec kCookieTime = 64 * kSecond;

// The sequence number that answers a SYN.
std::uint32_t make_cookie(const net::Endpoints& ends, std::uint32_t peer_isn, std::uint16_t mss,
                          Time now) noexcept;
// The segment size that a cookie holds, at most the one it was made of except where that was below 536;
// nothing: it is none of ours, or too old.
std::optional<std::uint16_t> read_cookie(const net::Endpoints& ends, std::uint32_t peer_isn,
                                         std::uint32_t cookie, Time now) noexcept;

// Our time stamp in the answer: at most 64 ms before `now`, with `said` in its lowest bits.
std::uint32_t make_cookie_stamp(const SynOptions& said, Time now) noexcept;
// Fills in what the peer can do from the time stamp that it echoes (without offset). False: that is none of
// ours.
bool read_cookie_stamp(std::uint32_t echo, Time now, SynOptions& said) noexcept;

// The kernel's synq_overflow: ACKs are only looked at for cookies while some may be on their way. For all
// listeners of the process, since SO_REUSEPORT may spread a peer's segments anew.
void note_cookie_sent(Time now) noexcept;
bool cookies_expected(Time now) noexcept;

}  // namespace vma::tcp
