// SPDX-License-Identifier: BSD-2-Clause
// The adapter's clock and the two pages in which a program reads it: the core clock (a big-endian counter)
// and the clock information of the driver (mlx5_ib_clock_info), with which libmlx5 turns counts into the time
// of day.
//
// A page of memory does not tick by itself: the pages are written whenever the clock is read (each completion
// reads it), with each turn of the simulator and with each command. So with a thread they are at most its
// longest sleep old, some 100 us, and never older than a time stamp that a completion carries.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace mlx5_sim {

inline constexpr std::uint64_t kClockKHz = 156250;  // of a ConnectX-5: a tick is 6.4 ns

class Clock {
  public:
    Clock();
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;

    // Counts CLOCK_MONOTONIC by default. Also writes the pages.
    std::uint64_t ticks();
    // The clock of a test, in ticks; empty: the default again.
    void set_source(std::function<std::uint64_t()> ticks);
    // Both pages stay the caller's, and are written until detach().
    void attach(void* core_clock, void* clock_info);
    void detach(const void* core_clock);

  private:
    struct Pages {
        void* core_clock;
        void* clock_info;
    };
    void write(const Pages& pages, std::uint64_t now) const;

    std::mutex mutex_;
    std::function<std::uint64_t()> source_;
    std::vector<Pages> pages_;
    std::uint64_t start_ticks_ = 0, start_time_of_day_ = 0;  // the two at the same moment, ticks and ns
};

}  // namespace mlx5_sim
