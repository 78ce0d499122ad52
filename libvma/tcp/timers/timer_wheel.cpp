// SPDX-License-Identifier: BSD-2-Clause
// The wheel. What must hold at every moment outside of the lock: a linked timer's look is the tick of the
// slot it is in, and its deadline is not before its look. Threads without the lock change the deadline only,
// and only by a compare-and-swap that shows that the look has not moved.
#include "libvma/tcp/timers/timer_wheel.h"

#include <algorithm>
#include <bit>
#include <new>

#include "libvma/runtime/region.h"
#include "libvma/runtime/spin.h"

namespace vma::tcp {
namespace {

std::uint64_t tick_at_or_after(Time t) noexcept {
    const Nsec since = t.time_since_epoch();
    return since / TimerWheel::kTick + (since % TimerWheel::kTick != Nsec::zero());
}

// Connections have their own locks, so a signal handler that interrupts a holder of the wheel's lock may get
// as far as the wheel on behalf of another connection.
class Guard {
  public:
    explicit Guard(Lock& lock) noexcept : lock_(lock) { lock_.lock(); }
    ~Guard() { lock_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    runtime::Region hold_;  // before the lock is taken, and until after it is released
    Lock& lock_;
};

}  // namespace

void TimerWheel::link(Timer& timer, std::uint64_t look) noexcept {
    const std::uint64_t differs = look ^ tick_;
    const unsigned level = differs == 0 ? 0 : static_cast<unsigned>(std::bit_width(differs) - 1) / kSlotBits;
    const unsigned digit = static_cast<unsigned>(look >> (level * kSlotBits)) % kSlots;
    timer.slot_ = static_cast<std::uint16_t>(level * kSlots + digit);
    Timer*& first = slots_[timer.slot_];
    if (first == nullptr) {
        timer.next_ = timer.prev_ = &timer;
        first = &timer;
        used_[level] |= std::uint64_t{1} << digit;
    } else {  // at the end: first come, first fired
        timer.next_ = first;
        timer.prev_ = first->prev_;
        timer.prev_->next_ = &timer;
        first->prev_ = &timer;
    }
}

void TimerWheel::unlink(Timer& timer) noexcept {
    Timer*& first = slots_[timer.slot_];
    if (timer.next_ == &timer) {
        first = nullptr;
        used_[timer.slot_ / kSlots] &= ~(std::uint64_t{1} << timer.slot_ % kSlots);
    } else {
        timer.next_->prev_ = timer.prev_;
        timer.prev_->next_ = timer.next_;
        if (first == &timer) first = timer.next_;
    }
    timer.next_ = timer.prev_ = nullptr;
}

// The slot that comes first in time and when it begins: all of a lower level comes before any of a higher
// one.
bool TimerWheel::first_slot(Next& next) const noexcept {
    for (unsigned level = 0; level < kLevels; level++) {
        if (used_[level] == 0) continue;
        const unsigned digit = static_cast<unsigned>(std::countr_zero(used_[level]));
        const unsigned shift = level * kSlotBits;
        const std::uint64_t above = tick_ >> (shift + kSlotBits) << (shift + kSlotBits);
        next.tick = above | static_cast<std::uint64_t>(digit) << shift;
        next.slot = level * kSlots + digit;
        return true;
    }
    return false;
}

bool TimerWheel::arm_without_lock(Timer& timer, std::uint64_t tick) noexcept {
    std::uint64_t word = timer.word_.load(std::memory_order_acquire);
    while (word & Timer::kLinked) {
        const std::uint64_t look = Timer::look_of(word);
        if (tick < look || tick - look > Timer::kMaxLag) return false;
        if (timer.word_.compare_exchange_weak(word, Timer::pack(tick, look, Timer::kLinked | Timer::kArmed),
                                              std::memory_order_acq_rel, std::memory_order_acquire))
            return true;
    }
    return false;
}

void TimerWheel::arm(Timer& timer, Time deadline) noexcept {
    const std::uint64_t tick = std::min(tick_at_or_after(deadline), Timer::kMaxTick);
    if (arm_without_lock(timer, tick)) return;
    if (arm_with_lock(timer, tick) && wake_ != nullptr) wake_(wake_argument_);
}

// True: the sleeper must be woken.
bool TimerWheel::arm_with_lock(Timer& timer, std::uint64_t tick) noexcept {
    Guard guard(lock_);
    // Not into the past, which is dealt with, nor into a running expire(), which then might never end.
    tick = std::clamp(tick, std::min(expired_ + 1, Timer::kMaxTick), Timer::kMaxTick);
    if (arm_without_lock(timer, tick)) return false;
    // Idle, or linked for a look that is too late or too early. Only holders of the lock link and unlink.
    if (timer.word_.load(std::memory_order_relaxed) & Timer::kLinked) unlink(timer);
    timer.word_.store(Timer::pack(tick, tick, Timer::kLinked | Timer::kArmed), std::memory_order_release);
    link(timer, tick);
    if (tick >= sleeping_until_) return false;
    sleeping_until_ = tick;
    return true;
}

void TimerWheel::disarm(Timer& timer) noexcept {
    std::uint64_t word = timer.word_.load(std::memory_order_acquire);
    while (word & Timer::kArmed)
        if (timer.word_.compare_exchange_weak(word, word & ~Timer::kArmed, std::memory_order_acq_rel,
                                              std::memory_order_acquire))
            return;
}

void TimerWheel::cancel(Timer& timer) noexcept {
    for (;;) {
        {
            Guard guard(lock_);
            if (timer.word_.load(std::memory_order_relaxed) & Timer::kLinked) {
                unlink(timer);
                timer.word_.store(0, std::memory_order_release);
            }
            if (firing_.load(std::memory_order_acquire) != &timer || firing_thread_ == thread_number())
                return;
        }
        for (std::uint64_t round = 1; firing_.load(std::memory_order_acquire) == &timer; round++)
            spin_wait(round);
        // The callback may have armed it again.
    }
}

// Deals with a timer of the slot that has been reached; the lock is held. True: it is due, and unlinked.
// Those of a higher level's slot go to a lower level, where their tick is exact.
bool TimerWheel::run_slot_member(Timer& timer) noexcept {
    unlink(timer);
    std::uint64_t word = timer.word_.load(std::memory_order_acquire);
    for (;;) {
        const bool armed = (word & Timer::kArmed) != 0;
        const std::uint64_t due = Timer::due_of(word);
        const bool later = armed && (due > tick_ || timer.slot_ >= kSlots);
        const std::uint64_t next = later ? Timer::pack(due, due, word & (Timer::kLinked | Timer::kArmed)) : 0;
        if (!timer.word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                               std::memory_order_acquire))
            continue;
        if (later) link(timer, due);
        return armed && !later;
    }
}

// Takes disarmed timers out of a slot whose time has not come, so that nobody wakes for them. Those that are
// due later go to their slot. True: the slot is empty now.
bool TimerWheel::tidied(unsigned slot) noexcept {
    while (Timer* const timer = slots_[slot]) {
        const std::uint64_t word = timer->word_.load(std::memory_order_acquire);
        if ((word & Timer::kArmed) != 0 && Timer::due_of(word) == Timer::look_of(word)) return false;
        run_slot_member(*timer);
    }
    return true;
}

std::size_t TimerWheel::expire(Time now) noexcept {
    const std::uint64_t reached = std::min(now.time_since_epoch() / kTick, Timer::kMaxTick);
    std::size_t fired = 0;
    runtime::Region hold;  // for all of it, callbacks included
    lock_.lock();
    if (expiring_) {
        lock_.unlock();
        return 0;
    }
    expiring_ = true;
    sleeping_until_ = 0;
    expired_ = std::max(expired_, reached);
    firing_thread_ = thread_number();
    Next next;
    while (first_slot(next) && next.tick <= reached) {
        tick_ = std::max(tick_, next.tick);
        if (next.slot >= kSlots) {
            // All of it before anything fires: time must not pass what is still in there.
            while (slots_[next.slot] != nullptr) run_slot_member(*slots_[next.slot]);
            continue;
        }
        Timer& timer = *slots_[next.slot];
        if (!run_slot_member(timer)) continue;
        const Timer::Fire fire = timer.fire_;
        firing_.store(&timer, std::memory_order_relaxed);
        lock_.unlock();
        fire(timer);
        fired++;
        firing_.store(nullptr, std::memory_order_release);
        lock_.lock();
    }
    tick_ = std::max(tick_, reached);
    firing_thread_ = 0;
    expiring_ = false;
    lock_.unlock();
    return fired;
}

Time TimerWheel::next_deadline() noexcept {
    Guard guard(lock_);
    Next next;
    bool any;
    while ((any = first_slot(next)) && !expiring_ && tidied(next.slot)) {
    }
    sleeping_until_ = any ? next.tick : UINT64_MAX;
    return any ? Time(next.tick * kTick) : kNever;
}

void TimerWheel::reset_in_child() noexcept {
    const Wake wake = wake_;
    void* argument = wake_argument_;
    new (this) TimerWheel(wake, argument);
}

}  // namespace vma::tcp
