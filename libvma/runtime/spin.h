// SPDX-License-Identifier: BSD-2-Clause
// How a polling loop waits between two polls.
//
// An answer that is on its way arrives within microseconds, so at first the loop only executes a pause
// instruction. A loop that has polled in vain for longer is idle. On a machine with more busy threads than
// cores its peer may wait for this very core. So from then on the loop offers its core now and then, which
// costs next to nothing when no other thread wants the core.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/spinners.h"

namespace vma {

inline void yield_core() noexcept { os::raw_syscall(SYS_sched_yield); }

// For a thread that waits for another one of the library. `round` counts the loop's polls in vain, from 1.
inline void spin_wait(std::uint64_t round) noexcept {
    constexpr std::uint64_t kIdleAfter = 2048, kYieldEvery = 512;  // about 60 us and 15 us
    if (round >= kIdleAfter && round % kYieldEvery == 0)
        yield_core();
    else
        cpu_relax();
}

// For a call of the program that waits, as often as it polled in vain. False: it should sleep, because others
// need the processor more (spinners.h). The loop has a PollTime, which tells when the wait is over.
inline bool spin_or_sleep(std::uint64_t round) noexcept {
    if (__builtin_expect((round & spinners::internal::t_look_mask) == 0, 0)) return spinners::look(round);
    cpu_relax();
    return true;
}

// VMA_CPU_USAGE_STATS: how long threads polled, in loops that had found nothing yet. Each loop has one of
// these objects.
class PollTime {
  public:
    static void enable() noexcept {
        began_ = clock::Ticks::now();
        enabled_ = true;
    }
    static bool enabled() noexcept { return enabled_; }
    // Share of the time since enable(), in percent of one thread; more than 100 where several threads poll.
    static unsigned per_cent() noexcept {
        const std::uint64_t all = (clock::Ticks::now() - began_).count();
        return all == 0 ? 0 : static_cast<unsigned>(total_.load(std::memory_order_relaxed) * 100 / all);
    }

    PollTime() noexcept = default;
    // Adds the measured time to `also`, too.
    explicit PollTime(clock::Ticks& also) noexcept : also_(&also) {}
    ~PollTime() { stop(); }
    // Counts a poll in vain.
    void round() noexcept {
        if (__builtin_expect(enabled_, 0) && since_ == clock::Ticks()) since_ = clock::Ticks::now();
    }
    // Called before sleeping.
    void stop() noexcept {
        spinners::leave();
        if (__builtin_expect(since_ == clock::Ticks(), 1)) return;
        const clock::Ticks spent = clock::Ticks::now() - since_;
        total_.fetch_add(spent.count(), std::memory_order_relaxed);
        if (also_ != nullptr) *also_ += spent;
        since_ = {};
    }

  private:
    static inline bool enabled_ = false;
    static inline clock::Ticks began_;
    static inline std::atomic<std::uint64_t> total_{0};  // Ticks, as a number that threads add to
    clock::Ticks* also_ = nullptr;
    clock::Ticks since_;
};

}  // namespace vma
