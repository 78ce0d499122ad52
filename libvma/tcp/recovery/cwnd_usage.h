// SPDX-License-Identifier: BSD-2-Clause
// Whether the congestion window is what holds a connection back (RFC 7661 in the kernel's form): a window
// that nobody fills says nothing about the network, so it must not grow, and in time it shrinks. Values only;
// bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class CwndUsage {
  public:
    // Segments have left, or the window let none leave. `limited`: the window is full, or kept data back.
    // `out`: bytes outstanding, SND.NXT - SND.UNA. The strongest sign of a window of data counts.
    void sent(bool limited, std::uint32_t out, std::uint32_t una, std::uint32_t nxt) noexcept {
        if (limited || !seq_before(una, until_) || (!limited_ && out > most_)) {
            limited_ = limited;
            most_ = out;
            until_ = nxt;
        }
    }
    // Is or was it full since a window of data? In slow start half is enough, so that it can double.
    bool limited(std::uint32_t cwnd, bool slow_start) const noexcept {
        return limited_ || (slow_start && cwnd / 2 < most_);
    }
    // The window has been full at `now`.
    void full(Time now) noexcept {
        used_ = 0;
        since_ = now;
    }
    // It is not. True: nor has it been for a retransmission timeout, and less() says what it should be.
    bool starves(std::uint32_t out, Time now, Nsec rto) noexcept {
        used_ = std::max(used_, out);
        return now - since_ >= rto;
    }
    // What a window that was never full becomes: halfway to what was used of it, but for `initial`.
    std::uint32_t less(std::uint32_t cwnd, std::uint32_t initial, Time now) noexcept {
        const std::uint32_t used = std::max(used_, initial);
        full(now);
        return used < cwnd ? cwnd / 2 + used / 2 : cwnd;
    }

  private:
    bool limited_ = false;
    std::uint32_t most_ = 0;   // outstanding, if it was not full
    std::uint32_t until_ = 0;  // what is known holds until this is acknowledged
    std::uint32_t used_ = 0;   // at most, since it was full
    Time since_;               // when it was full, or was looked at
};

}  // namespace vma::tcp
