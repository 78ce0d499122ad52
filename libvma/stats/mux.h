// SPDX-License-Identifier: BSD-2-Clause
// Counts calls of select, poll and epoll_wait. An epoll set with offloaded members has a block of its own;
// the last block is for all sets beyond. poll and select have one block each, and threads share its stripes.
#pragma once

#include <cstdint>

#include "libvma/stats/counter.h"
#include "libvma/stats/layout.h"
#include "libvma/stats/socket_counters.h"

namespace vma::stats {

// Null without statistics.
MuxBlock* open_epoll(int fd) noexcept;
void close_epoll(MuxBlock* block) noexcept;
// The calling thread's stripe; collect_muxes() adds it to the block.
MuxBlock& calls_of(Mux kind) noexcept;

void collect_muxes() noexcept;
void zero_muxes() noexcept;

// Counts the end of one call. `result`: descriptors, or -errno; the library found `offloaded` of them ready.
inline void count_call(MuxBlock& block, int result, unsigned offloaded, Arrived came) noexcept {
    add_shared(block.calls, 1);
    if (const std::int32_t me = thread_id(); load(block.thread) != me) store(block.thread, me);
    if (result < 0) return add_shared(block.errors, 1);
    if (result == 0) return add_shared(block.timeouts, 1);
    const auto ready = static_cast<unsigned>(result);
    if (offloaded != 0) add_shared(block.rx_ready_offload, offloaded);
    if (ready > offloaded) add_shared(block.rx_ready_os, ready - offloaded);
    if (came != Arrived::there) add_shared(came == Arrived::polled ? block.poll_hit : block.poll_miss, 1);
}

}  // namespace vma::stats
