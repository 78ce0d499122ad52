// SPDX-License-Identifier: BSD-2-Clause
// How much a connection has moved in a run: without a pause, and at a rate that only bulk data has.
//
// The kernel passes super-frames over a link inside a machine without a copy, where the library has two or
// three. A connection that does nothing else for long is better off in the kernel
// (DeviceAttr::kernel_moves_bulk, kernel_receives_bulk).
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class BulkRun {
  public:
    // Bytes of a run, from which on it is long. What is shorter is over before it matters. Connections that
    // run together share it.
    static constexpr std::uint64_t kLong = 64u << 20;
    // Payload bytes from which on a received frame counts. The kernel's bulk comes in frames of 60,000 and
    // more, short writes in shorter ones; with those the library is faster.
    static constexpr std::uint32_t kLongFrame = 48u << 10;
    // Bytes of each period, with fewer of which the run is over: some 0.7 Gbit/s.
    static constexpr std::uint64_t kLeast = 8u << 20;
    static constexpr Msec kPeriod{100};

    // `bytes` have moved at `now`, while `together` connections run. Is the run a long one?
    bool add(std::uint64_t bytes, Time now, std::uint32_t together = 1) noexcept {
        if (now - since_ >= kPeriod) {
            if (now - since_ >= 2 * kPeriod || in_period_ < kLeast) run_ = 0;
            in_period_ = 0;
            since_ = now;
        }
        in_period_ += bytes;
        run_ += bytes;
        return run_ >= std::max(kLong / together, kLeast);
    }

  private:
    Time since_ = kNoTime;
    std::uint64_t in_period_ = 0, run_ = 0;
};

}  // namespace vma::tcp
