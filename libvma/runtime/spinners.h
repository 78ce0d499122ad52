// SPDX-License-Identifier: BSD-2-Clause
// Threads that poll share processors with those that wait for them.
//
// A thread that polls holds its processor until the scheduler takes it away, after milliseconds. With more
// threads than processors the one whose turn it is would wait so long each time. So the threads of all
// processes of a user that wait in the library stand in one table in shared memory. A thread that polls looks
// there every few microseconds:
//   - more threads wait than there are processors: it offers its processor with each look, and looks more
//     often. Threads that take turns so cost each other less than a wake-up does;
//   - four times as many threads as there are processors wait beside it: it sleeps, unless it is one of those
//     that began last, as many as there are processors. Who has waited longest in vain is least likely to be
//     next;
//   - such an offer took a millisecond, so a thread that does not wait in the library works there: it sleeps,
//     now and for a while. Else it would look once in a time slice, and miss what it waits for;
//   - the scheduler took its processor away a moment ago, for a program that does not use the library: it
//     offers its processor when it has polled in vain for a while.
// A thread alone on its processor makes no system call.
//
// A table without a free entry advises nobody for a while: such threads poll as if they were alone.
//
// Locks: none. The table is memory that other processes of the user write, too: nothing in it is trusted for
// more than this advice. An entry belongs to a thread for the time of one wait. What a thread leaves behind
// that jumps out of a wait, or is killed, counts for some milliseconds.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma {

enum class SpinAdvice { go_on, yield, sleep };

// The table itself: as it lies in shared memory.
class SpinnerTable {
  public:
    static constexpr std::size_t kEntries = 256;
    static constexpr unsigned kTurns = 4;  // threads on a processor that all take turns; of more, most sleep
    static constexpr std::chrono::milliseconds kFresh{20};        // older entries of pollers do not count
    static constexpr std::chrono::milliseconds kBusySleeper{10};  // nor do those that sleep for longer

    struct alignas(64) Entry {
        std::atomic<std::uint64_t> owner{0};  // process and thread; 0: free
        std::atomic<std::uint64_t> since{0};  // ticks when it began to poll; 0: not yet; kAsleep
        std::atomic<std::uint64_t> beat{0};   // ticks of its last look
        std::atomic<std::uint32_t> cpu{0};
    };

    // A free entry, from `hint` on; null: there is none.
    Entry* claim(std::uint64_t owner, std::size_t hint) noexcept;
    void release(Entry& entry, std::uint64_t owner) noexcept;
    std::size_t index_of(const Entry& entry) const noexcept {
        return static_cast<std::size_t>(&entry - entries_.data());
    }
    // `mine` polls since mine.since, on one of the processors `allowed`.
    SpinAdvice advice(const Entry& mine, clock::Ticks now, const cpu_set_t& allowed) const noexcept;
    // Frees entries of threads that are no more.
    void sweep() noexcept;

    static constexpr std::uint64_t kAsleep = UINT64_MAX;

  private:
    std::atomic<std::uint32_t> used_{0};  // entries from here on were never in use
    std::array<Entry, kEntries> entries_;
};

// What a thread has seen of the turns that it gave to others.
class Turns {
  public:
    static constexpr std::chrono::milliseconds kLong{1};    // longer than all turns of threads that poll
    static constexpr std::chrono::milliseconds kHolds{20};  // after a long one
    void gave(clock::Ticks from, clock::Ticks to) noexcept {
        if (to - from >= clock::to_ticks(kLong)) long_until_ = to + clock::to_ticks(kHolds);
    }
    bool long_at(clock::Ticks now) const noexcept { return now < long_until_; }

  private:
    clock::Ticks long_until_;
};

namespace spinners {

// Finds the user's table, once in a process. Without one, threads count for nothing.
void open() noexcept;

// Polls in vain between two looks, some 4 us; where others want the processor, some 0.1 us.
constexpr std::uint32_t kLookEvery = 128, kLookOften = 4;
static_assert(std::has_single_bit(kLookEvery) && std::has_single_bit(kLookOften));
// What a thread does after `round` polls in vain, a multiple of kLookOften: it has offered its processor
// where that was the advice. False: it should sleep.
bool look(std::uint64_t round) noexcept;
// The calling thread sleeps in the library from now on.
void sleeps() noexcept;

namespace internal {
inline constinit thread_local bool t_waits = false;
inline constinit thread_local std::uint32_t t_look_mask = kLookEvery - 1;  // of the polls between looks
void leave() noexcept;
}  // namespace internal

// The calling thread does not wait any more.
inline void leave() noexcept {
    if (__builtin_expect(internal::t_waits, 0)) internal::leave();
}

}  // namespace spinners
}  // namespace vma
