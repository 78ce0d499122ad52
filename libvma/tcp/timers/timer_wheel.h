// SPDX-License-Identifier: BSD-2-Clause
// Timers of connections: a hierarchical timing wheel that is touched as seldom as possible.
//
// A connection that answers requests arms its retransmission timer for every message and disarms it with
// every ACK, and hardly ever does one fire. So a timer's word holds both the deadline that is wanted and the
// tick at which the wheel will look at it, and to move the deadline, or to disarm, is one compare-and-swap on
// that word as long as the look does not come too late. A look that comes too early finds the true deadline
// and puts the timer there. Only arming an idle timer, or for earlier than the wheel looks, takes the lock.
// The price: a disarmed timer stays linked until the next look at it, so its memory may only go after
// cancel().
//
// Who may free a timer: after cancel() has returned, whoever knows that nobody arms it any more. cancel()
// waits for a callback that is running in another thread, so it must not be called with a lock that the
// callback waits for; disarm() may. From within the timer's own callback cancel() does not wait, and after it
// the callback may free the timer: the wheel does not touch a timer after its callback has begun, unless that
// arms it again.
//
// The wheel does not read the clock: whoever calls it says what the time is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/runtime/lock.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class TimerWheel;

// One timer, embedded in what it belongs to. Neither copied nor moved.
class Timer {
  public:
    using Fire = void (*)(Timer&);

    explicit Timer(Fire fire) noexcept : fire_(fire) {}
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    // Whether it will fire if nobody does anything. Another thread may have changed that by the time this
    // returns.
    bool armed() const noexcept { return (word_.load(std::memory_order_acquire) & kArmed) != 0; }

  private:
    friend class TimerWheel;

    // The word: 42 bits of deadline (ms, 139 years), 20 bits by how much earlier the wheel looks (17
    // minutes), two flags. 0 is idle.
    static constexpr std::uint64_t kLinked = 1, kArmed = 2;
    static constexpr unsigned kLagBits = 20, kFlagBits = 2;
    static constexpr std::uint64_t kMaxLag = (1u << kLagBits) - 1;
    static constexpr std::uint64_t kMaxTick = (std::uint64_t{1} << 42) - 1;
    static constexpr std::uint64_t pack(std::uint64_t due, std::uint64_t look, std::uint64_t flags) noexcept {
        return due << (kLagBits + kFlagBits) | (due - look) << kFlagBits | flags;
    }
    static constexpr std::uint64_t due_of(std::uint64_t word) noexcept {
        return word >> (kLagBits + kFlagBits);
    }
    static constexpr std::uint64_t look_of(std::uint64_t word) noexcept {
        return due_of(word) - (word >> kFlagBits & kMaxLag);
    }

    std::atomic<std::uint64_t> word_{0};
    Timer* next_ = nullptr;  // a ring of the timers in one slot; these three belong to the wheel's lock
    Timer* prev_ = nullptr;
    std::uint16_t slot_ = 0;
    const Fire fire_;
};

class TimerWheel {
  public:
    static constexpr Nsec kTick{1'000'000};
    static constexpr Time kNever = Time::max();
    using Wake = void (*)(void*);

    // `wake(argument)` is called, outside of the lock and by the thread that arms, when a timer is armed for
    // earlier than the last next_deadline() said. It must make the sleeper's sleep end also when that has not
    // begun yet (as an eventfd does). nullptr: the sleeper has other means.
    explicit TimerWheel(Wake wake = nullptr, void* argument = nullptr) noexcept
        : wake_(wake), wake_argument_(argument) {}
    TimerWheel(const TimerWheel&) = delete;
    TimerWheel& operator=(const TimerWheel&) = delete;

    // The timer fires in the first expire() whose time is at or after `deadline`, rounded up to a
    // millisecond; a deadline that has passed already, in the one after the last. An armed timer is moved.
    // From any thread, also from callbacks.
    void arm(Timer& timer, Time deadline) noexcept;

    // The timer shall not fire. Never waits and takes no lock; a callback that has begun runs on. The timer's
    // memory must stay until cancel().
    void disarm(Timer& timer) noexcept;

    // As disarm(), and unlinked; when it returns the callback does not run and will not. See the top of the
    // file.
    void cancel(Timer& timer) noexcept;

    // Fires what is due at `now`, in the order of the deadlines' milliseconds, each callback outside of
    // the lock. Returns how many fired. One thread at a time does so: a second one, or a callback, returns 0
    // at once.
    std::size_t expire(Time now) noexcept;

    // No timer is due before this time; kNever when none is linked. There may be nothing to fire then (the
    // wheel only has to look), and the sleeper asks again after expire(). From then on arming something
    // earlier calls wake().
    Time next_deadline() noexcept;

    // In a forked child, where no thread of the parent's exists: empties the wheel. Timers that were linked
    // are garbage in the child and must be constructed anew before they are armed there.
    void reset_in_child() noexcept;

  private:
    // Level n has 64 slots of 64^n ticks each; the level of a timer is the highest digit (base 64) in which
    // its tick differs from the wheel's. Seven levels hold every tick, so nothing wraps around.
    static constexpr unsigned kSlotBits = 6, kSlots = 1u << kSlotBits, kLevels = 7;
    static_assert(kSlotBits * kLevels == 42);

    struct Next {
        std::uint64_t tick;
        unsigned slot;
    };

    void link(Timer& timer, std::uint64_t look) noexcept;
    void unlink(Timer& timer) noexcept;
    bool first_slot(Next& next) const noexcept;
    bool run_slot_member(Timer& timer) noexcept;
    bool tidied(unsigned slot) noexcept;
    bool arm_without_lock(Timer& timer, std::uint64_t tick) noexcept;
    bool arm_with_lock(Timer& timer, std::uint64_t tick) noexcept;

    Lock lock_;
    std::uint64_t tick_ = 0;                     // what is before it has been dealt with
    std::uint64_t expired_ = 0;                  // the tick of the last expire()
    std::uint64_t sleeping_until_ = 0;           // tick; 0: nobody sleeps
    std::array<std::uint64_t, kLevels> used_{};  // a bit for each slot that has timers
    std::array<Timer*, kLevels * kSlots> slots_{};
    bool expiring_ = false;
    std::atomic<Timer*> firing_{nullptr};  // whose callback runs
    std::uint32_t firing_thread_ = 0;
    Wake wake_;
    void* wake_argument_;
};

}  // namespace vma::tcp
