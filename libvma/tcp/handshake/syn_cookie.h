// SPDX-License-Identifier: BSD-2-Clause
// SYN cookies (RFC 4987 section 3.6): when the table of half-open connections is full, what has to be known
// of a SYN travels in the numbers of its answer, and comes back with the peer's ACK.
//
// Our sequence number holds which of four segment sizes the peer takes, and a minute's number, under 24 bits
// of a keyed hash of both, the endpoints and the peer's sequence number: one guess in 2^29 is right, as with
// the kernel's. Where the peer has time stamps, the lowest bits of ours hold its window scale and whether it
// takes SACK, else it gets neither, as from the kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "libvma/tcp/handshake/syn.h"

namespace vma::tcp {

// A cookie is good for this long at least, and at most for twice that.
constexpr std::uint64_t kCookieNs = 64ull * 1'000'000'000;

// The sequence number that answers a SYN. `now_ns` of any clock that all calls use.
std::uint32_t make_cookie(const net::Endpoints& ends, std::uint32_t peer_isn, std::uint16_t mss,
                          std::uint64_t now_ns) noexcept;
// The segment size that a cookie holds, at most the one it was made of except where that was below 536;
// nothing: it is none of ours, or too old.
std::optional<std::uint16_t> read_cookie(const net::Endpoints& ends, std::uint32_t peer_isn,
                                         std::uint32_t cookie, std::uint64_t now_ns) noexcept;

// Our time stamp in the answer: at most 64 ms before `now_ms`, with `said` in its lowest bits.
std::uint32_t make_cookie_stamp(const SynOptions& said, std::uint32_t now_ms) noexcept;
// Fills in what the peer can do from the time stamp that it echoes (without offset). False: that is none of
// ours.
bool read_cookie_stamp(std::uint32_t echo, std::uint32_t now_ms, SynOptions& said) noexcept;

// The kernel's synq_overflow: ACKs are only looked at for cookies while some may be on their way. For all
// listeners of the process, since SO_REUSEPORT may spread a peer's segments anew.
void note_cookie_sent(std::uint64_t now_ns) noexcept;
bool cookies_expected(std::uint64_t now_ns) noexcept;

}  // namespace vma::tcp
