// SPDX-License-Identifier: BSD-2-Clause
// A connection's deadlines, and the one timer of the wheel that serves them.
//
// Under the connection's lock. Deadlines are nanoseconds of now_ns(), 0: none.
#pragma once

#include <cstdint>

#include "libvma/tcp/timers/timer_wheel.h"

namespace vma::tcp {

class Connection;

struct ConnectionTimer : Timer {
    ConnectionTimer(Connection& c, Fire fire) noexcept : Timer(fire), connection(c) {}
    Connection& connection;
};

struct ConnectionTimers {
    ConnectionTimers(Connection& c, Timer::Fire fire) noexcept : timer(c, fire) {}

    ConnectionTimer timer;
    std::uint64_t armed_for = 0;
    std::uint64_t tlp_at = 0, user_at = 0;
    std::uint64_t rto_at = 0, ack_at = 0, probe_at = 0, keepalive_at = 0, end_at = 0, path_at = 0,
                  cork_at = 0;
    unsigned timed_keep_idle_s = 0;  // what keepalive_at was computed with
    unsigned probes = 0, keepalives = 0;
    unsigned unanswered_probes = 0;  // of a closed window
};

}  // namespace vma::tcp
