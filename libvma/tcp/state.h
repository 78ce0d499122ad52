// SPDX-License-Identifier: BSD-2-Clause
// The states of a connection (RFC 9293 section 3.3.2), as TCP_INFO numbers them.
#pragma once

#include <cstdint>

namespace vma::tcp {

enum class State : std::uint8_t {
    established = 1,
    syn_sent,
    syn_recv,
    fin_wait1,
    fin_wait2,
    time_wait,
    close,
    close_wait,
    last_ack,
    listen,
    closing
};

}  // namespace vma::tcp
