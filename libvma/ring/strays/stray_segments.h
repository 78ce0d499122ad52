// SPDX-License-Identifier: BSD-2-Clause
// Segments of offloaded connections that have reached the kernel instead of a ring. They have IP options or
// are fragments, came by another interface or a receive queue that is not the ring's, or found no rule, for
// the device has lost it. The kernel has no such connection and would reset it. These programs give it no
// chance to: see strays.bpf.c. The segments come back here, and go to their connections as if by the ring.
//
// One for a process, in the network namespace of its sockets. It ends with the process, however that ends:
// only this process holds the link. It shows one listening socket (ss -tln) on an address of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "libvma/bpf/ring_buffer.h"
#include "libvma/net/frame.h"
#include "libvma/ring/strays/stray_tuples.h"
#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::ring {

class StraySegments {
  public:
    // The frame that would have come by a ring: whole, without IP options, its checksums good. It is the
    // caller's for the time of the call. Internal thread, no lock held.
    using Sink = std::function<void(std::span<std::uint8_t> frame, const net::ParsedFrame& parsed)>;

    // In the calling thread's network namespace. Once. Errors: those of bpf(2), and of socket calls; then
    // everything else does nothing. May throw std::bad_alloc.
    Result<void> open(Sink sink);

    // Segments of this connection are wanted from now on, until drop(). Any thread, any lock held. Without
    // open(), or where there are some 25,000 connections, nothing happens.
    void want(const verbs::FlowSpec& spec) noexcept {
        if (opened()) tuples_.add(spec);
    }
    void drop(const verbs::FlowSpec& spec) noexcept {
        if (opened()) tuples_.remove(spec);
    }
    // Is this a connection of the process, on whatever ring? False without open(). Any thread.
    bool wanted(const verbs::FlowSpec& spec) const noexcept { return opened() && tuples_.has(spec); }

  private:
    // A forked child has neither the descriptor nor the memory.
    bool opened() const noexcept {
        return opened_.load(std::memory_order_acquire) && static_cast<bool>(link_);
    }
    Result<void> start();
    Result<void> bind_listener(strays_config& config);
    void take_all() noexcept;
    void take(std::span<const std::uint8_t> record) noexcept;

    StrayTuples tuples_;
    bpf::RingBuffer segments_;
    Sink sink_;
    std::unique_ptr<std::uint8_t[]> frame_;  // room for the longest
    InternalFd listener_, records_, link_;
    std::atomic<bool> opened_{false};
};

// Makes a frame of a record, at `out`, which has room for `stray_segment` and what follows it. Empty: the
// record is malformed, or the segment's checksum is wrong. `parsed` is valid with the frame.
std::span<std::uint8_t> frame_of(std::span<const std::uint8_t> record, std::uint8_t* out,
                                 net::ParsedFrame& parsed) noexcept;

}  // namespace vma::ring
