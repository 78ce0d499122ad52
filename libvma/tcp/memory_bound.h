// SPDX-License-Identifier: BSD-2-Clause
// What connections may keep while the process's memory for TCP is scarce: the kernel's tcp_mem, for the
// memory of lwip/memory.h. Data in a ring's buffers is bounded by their number.
//
// Under pressure send buffers shrink to the connection's share, and windows open no further. Above the bound
// a connection keeps a few kilobytes: writes wait, data out of sequence is dropped first, then data for a
// connection that has some unread. Closed connections that still hold memory are reset, and so are those that
// are too many (tcp_max_orphans).
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/memory.h"

namespace vma::tcp {

struct Tcb;

namespace memory_bound {

// `bytes` above which nothing more is taken, or 0: as net.ipv4.tcp_mem says, or, where it cannot be read, a
// tenth of the memory. Reads net.ipv4.tcp_max_orphans, too. Changes errno.
void set(std::size_t bytes) noexcept;
void set_max_orphans(std::size_t orphans) noexcept;

inline bool scarce() noexcept { return lwip::memory_level() != lwip::MemoryLevel::none; }
inline bool over() noexcept { return lwip::memory_level() == lwip::MemoryLevel::over; }
// While memory is scarce: what is left of a send buffer's `limit`, and what data out of sequence may keep.
std::uint32_t send_limit(std::uint32_t limit) noexcept;
std::size_t early_limit() noexcept;
// A received segment's data is dropped, for want of memory.
void note_drop() noexcept;

// Is the closed connection to be reset? `shift`: how much less it deserves than others, each time half.
bool orphan_must_go(const Tcb& tcb, unsigned shift) noexcept;

struct Counts {
    std::size_t bytes;  // in use
    std::uint64_t pressures, dropped_segments, reset_orphans;
};
Counts counts() noexcept;

}  // namespace memory_bound
}  // namespace vma::tcp
