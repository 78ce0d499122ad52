// SPDX-License-Identifier: BSD-2-Clause
// Numbers that nobody on the network may guess: initial sequence numbers, timestamp offsets, ports.
//
// All come from one keyed hash (SipHash-2-4) under a key that the kernel's random generator gave this
// process. A sequence number must also not repeat what an old connection between the same endpoints used; so
// RFC 6528 adds a clock to the hash of the endpoints, and the number of a reused pair of endpoints only ever
// grows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/tcp/path.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

using SecretKey = std::array<std::uint64_t, 2>;

// SipHash-2-4 (Aumasson and Bernstein, 2012) of `bytes`.
std::uint64_t siphash(const SecretKey& key, std::span<const std::byte> bytes) noexcept;

// The same functions as below, with a key of the caller's.
std::uint32_t initial_sequence(const SecretKey& key, const net::Endpoints& ends, Time now) noexcept;
std::uint32_t timestamp_offset(const SecretKey& key, const net::Endpoints& ends) noexcept;

// RFC 6528: the hash of the endpoints plus a clock. The clock ticks every 64 ns, as the kernel's does: with
// the 4 us of the RFC a connection of more than 250 KB/s outruns it, and the next one between the same
// endpoints would begin inside the numbers that the old one has used. It wraps after 275 s, twice the life of
// a segment. May be called from any thread.
std::uint32_t initial_sequence(const net::Endpoints& ends, Time now) noexcept;

// What to add to the clock for the timestamps of a connection (RFC 7323 section 5.4), so that they do not
// tell how long the machine has been up. It depends on the addresses only, as in the kernel, so that
// timestamps also grow from one connection to the next between two hosts, which is what lets a peer accept a
// SYN in TIME_WAIT (RFC 6191).
std::uint32_t timestamp_offset(const net::Endpoints& ends) noexcept;

// Under the process's key. Who uses it sees to it that no two uses hash the same bytes; 16 bytes are the
// functions' above and below.
std::uint64_t keyed_hash(std::span<const std::byte> bytes) noexcept;

// A number nobody can predict; for jitter and the like.
std::uint64_t random_number() noexcept;

// For tests, which want the same numbers each time, or numbers about to wrap: what initial_sequence() and
// timestamp_offset() without a key shall return from now on. Null: the regular ones again.
using SequenceSource = std::uint32_t (*)(const net::Endpoints& ends, Time now);
using OffsetSource = std::uint32_t (*)(const net::Endpoints& ends);
void set_sources(SequenceSource sequence, OffsetSource offset) noexcept;

}  // namespace vma::tcp
