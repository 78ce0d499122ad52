// SPDX-License-Identifier: BSD-2-Clause
// What two ends say to each other before there is a connection: the options of a SYN, and the answer to it as
// bytes.
//
// Pure functions: no clock, no socket, no memory. What a peer sent is read as the kernel's
// tcp_parse_options() reads it.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "libvma/tcp/path.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct Options;

// The time stamps of a segment (RFC 7323), as the sender has them.
struct Stamps {
    std::uint32_t value = 0, echo = 0;
};

// Of an option, in the host's byte order.
inline std::uint32_t word_at(const std::uint8_t* bytes) noexcept {
    std::uint32_t v;
    std::memcpy(&v, bytes, sizeof v);
    return ntohl(v);
}

// The options of a SYN, as far as both ends want them.
struct SynOptions {
    std::uint16_t mss = 0;   // 0: not said
    std::uint8_t scale = 0;  // 0 to 14
    bool has_scale = false, sack = false, has_stamps = false;
    bool ecn = false;         // by flags, not an option (ecn.h)
    std::uint32_t stamp = 0;  // the peer's clock
};

// `options`: the bytes between a TCP header and its data. What is malformed ends the list; what `wanted` has
// switched off is left out.
SynOptions read_syn_options(std::span<const std::uint8_t> options, const Options& wanted) noexcept;
// False: it has none.
bool read_stamps(std::span<const std::uint8_t> options, Stamps& stamps) noexcept;

// A handshake of which the first two segments have been exchanged, or are about to be: all that a connection
// is made of later.
struct Handshake {
    net::Endpoints ends;
    std::uint32_t irs = 0, iss = 0;  // the first sequence numbers: the peer's, ours
    SynOptions said;
    std::uint8_t scale = 0;  // of our window, as announced
    bool repeated = false;   // our answer left more than once, or nobody knows when
    Time sent_at;            // when it left
};

constexpr std::size_t kMaxHandshakeBytes = 60;  // a TCP header with all options it can have

// Each writes a TCP segment without data at `out` (kMaxHandshakeBytes) and returns its length. The checksum
// is left 0. The answer to a SYN; `mss` and `window` are what we announce, `stamp` our clock.
std::size_t write_syn_ack(const Handshake& h, std::uint16_t mss, std::uint16_t window, std::uint32_t stamp,
                          std::uint8_t* out) noexcept;
// The same as a SYN of the peer's, for who has to be told of it later.
std::size_t write_syn(const Handshake& h, std::uint8_t* out) noexcept;
// An ACK of a half-open connection, for a segment that it does not accept (RFC 5961).
std::size_t write_ack(const Handshake& h, std::uint16_t window, std::uint32_t stamp,
                      std::uint8_t* out) noexcept;
// A RST in answer to a segment that acknowledges `ack`.
std::size_t write_reset(const net::Endpoints& ends, std::uint32_t ack, std::uint8_t* out) noexcept;

}  // namespace vma::tcp
