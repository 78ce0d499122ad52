// SPDX-License-Identifier: BSD-2-Clause
// How long a connection has had data to deliver, and what kept it (TCP_INFO: tcpi_busy_time,
// tcpi_rwnd_limited, tcpi_sndbuf_limited). As the kernel's tcp_chrono: one reason at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class SendTimes {
  public:
    // There is nothing to deliver; the network, the peer's window or this end's send buffer is the limit.
    enum class Why : std::uint8_t { nothing, network, window, buffer };

    Why why() const noexcept { return why_; }
    // From `now` on the reason is this one.
    void turn(Why why, Time now) noexcept {
        if (why_ != Why::nothing && now > since_) times_[static_cast<std::size_t>(why_)] += now - since_;
        why_ = why;
        since_ = now;
    }
    Nsec of(Why why, Time now) const noexcept {
        const Nsec past = times_[static_cast<std::size_t>(why)];
        return why == why_ && why != Why::nothing ? past + (now - since_) : past;
    }
    // In all.
    Nsec busy(Time now) const noexcept {
        return of(Why::network, now) + of(Why::window, now) + of(Why::buffer, now);
    }

  private:
    Why why_ = Why::nothing;
    Time since_;
    std::array<Nsec, 4> times_{};
};

}  // namespace vma::tcp
