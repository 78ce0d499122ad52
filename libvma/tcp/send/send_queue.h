// SPDX-License-Identifier: BSD-2-Clause
// The send queue: what the program has written, from the first byte that is not acknowledged on.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

struct tcp_seg;

namespace vma::tcp {

struct SendQueue {
    tcp_seg* tail = nullptr;  // the last unsent segment if data may be appended to it
    std::uint32_t tail_room = 0;
    bool no_space = false;  // a send() was told that there is no room
    bool more = false;      // the last write said that more follows
    bool push = false;      // what is queued goes now, though it be corked
    tcp_seg* unacked_last = nullptr;
    std::uint32_t data_end = 0;   // sequence number behind the last byte queued
    std::uint32_t small_end = 0;  // end of the last short segment sent (Nagle, Minshall's variant)
    std::uint32_t burst = 0;      // writes since the program last turned to something else
    std::uint64_t last_write_ns = 0;
};

}  // namespace vma::tcp
