// SPDX-License-Identifier: BSD-2-Clause
// What this end's SYN announced, and how the handshake went.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

namespace vma::tcp {

struct Opening {
    std::uint32_t own_window = 0;  // what lwIP takes for the full window until the SYN is answered
    std::uint32_t syn_window = 0;  // the largest window that a SYN announced
    std::uint32_t ts_offset = 0;   // of the time stamps
    std::uint8_t own_scale = 0;    // of the window, as the SYN announces it; options may change later
    bool simultaneous = false;     // both ends sent a SYN
    bool syn_repeated = false;     // so its round trip is not measured
    std::uint64_t syn_sent_ns = 0;
};

}  // namespace vma::tcp
