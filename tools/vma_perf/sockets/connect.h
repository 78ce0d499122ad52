// SPDX-License-Identifier: BSD-2-Clause
// Making TCP connections with a time limit.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <chrono>

#include "tools/common/clock.h"
#include "tools/common/fd.h"

namespace vma_perf {

using tools::Clock;

// A listening socket, bound.
tools::Fd listen_on(const sockaddr_in& address, int backlog);
// A connection. Throws Failure with kUnreachable, also when `stop` is set or the time is over. `prepare`, if
// any, is called for the socket before it connects.
tools::Fd connect_to(const sockaddr_in& address, Clock::time_point deadline, const std::atomic<bool>* stop,
                     void (*prepare)(int fd, const void* context) = nullptr, const void* context = nullptr);
// The next connection; none (an empty Fd) when `stop` is set or the time is over.
tools::Fd accept_one(int listener, Clock::time_point deadline, const std::atomic<bool>* stop);
// Waits until `fd` has one of the events. False: `stop` is set or the time is over.
bool wait_for(int fd, short events, Clock::time_point deadline, const std::atomic<bool>* stop);

}  // namespace vma_perf
