// SPDX-License-Identifier: BSD-2-Clause
// What others read of a connection without its lock.
//
// Written under the connection's lock, but for room_wanted and urgent_kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace vma::tcp {

// States as TCP_INFO numbers them.
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

struct Published {
    std::atomic<State> state{State::close};
    std::atomic<std::uint32_t> events{0};
    std::atomic<std::uint32_t> in_edges{0}, out_edges{0};
    mutable std::atomic<bool> room_wanted{false};  // events_asked() said that there is no room
    std::atomic<std::size_t> readable{0};
    std::atomic<std::uint32_t> mss{536};
    std::atomic<int> error{0};
    std::atomic<bool> urgent_seen{false}, urgent_kept{false};
    std::atomic<std::uint32_t> queued{0}, unsent{0}, limit{0};
    std::uint32_t in_wake = 0, out_wake = 0;  // wake-ups to publish; under the lock
};

}  // namespace vma::tcp
