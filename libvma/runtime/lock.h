// SPDX-License-Identifier: BSD-2-Clause
// The library's lock: a futex mutex that spins briefly first and knows its owner.
//
// Critical sections take some hundred nanoseconds, so spinning usually wins. But a holder can be preempted,
// and with as many busy threads as cores an unbounded spin would stall for a scheduler tick. So a waiter
// sleeps after kSpins tries. A signal handler may interrupt a holder and call into the library again. So the
// lock knows its owner: try_lock and owned_by_me let that call go to the kernel instead of waiting for
// itself.
//
// VMA_THREAD_MODE chooses how a waiter waits (LockMode). In mode `single` the lock costs the program's one
// thread no atomic operation. That thread stores its number and looks whether another thread has a claim. All
// other threads, normally only the library's own, claim the lock in a second word. They then have the kernel
// order the two accesses (membarrier(2)), which costs them some microseconds. So the lock is correct with any
// number of threads, but fast for one only.
#pragma once

#include <atomic>
#include <cstdint>

namespace vma {

// A number of the calling thread, unique in the process while it lives; never 0, below 2^31.
[[gnu::always_inline]] inline std::uint32_t thread_number() noexcept {
    static std::atomic<std::uint32_t> next{1};
    static thread_local std::uint32_t mine = 0;
    if (__builtin_expect(mine == 0, 0)) mine = next.fetch_add(1, std::memory_order_relaxed) & 0x7fffffffu;
    return mine;
}

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

enum class LockMode : int {
    single = 0,  // for one thread
    spin = 1,    // spins briefly, then sleeps
    mutex = 2,   // sleeps
    yield = 3,   // spins, and offers the core in between
};

class Lock {
  public:
    Lock() = default;
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    // Sets the mode of all locks of the process. Call it once, before there is a second thread. With
    // `single`, the calling thread becomes the favourite thread. Without membarrier(2) `single` means `spin`.
    static void set_mode(LockMode mode) noexcept;
    // In a forked child: the child's one thread takes the place of the parent's favourite thread.
    static void reset_in_child() noexcept;

    // Calls of these make up a good part of a data call, and the compiler would not always inline them.
    [[gnu::always_inline]] bool try_lock() noexcept {
        if (__builtin_expect(favourite() != 0, 0)) return single_try_lock();
        std::uint32_t expected = 0;
        return word_.compare_exchange_strong(expected, thread_number(), std::memory_order_acquire,
                                             std::memory_order_relaxed);
    }
    [[gnu::always_inline]] void lock() noexcept {
        if (!try_lock()) lock_slow();
    }
    [[gnu::always_inline]] void unlock() noexcept {
        if (__builtin_expect(favourite() != 0, 0)) return single_unlock();
        if (word_.exchange(0, std::memory_order_release) & kWaiters) wake();
    }
    // One load of the lock's word, which holds the owner. So the answer is right at any instruction that a
    // signal handler may interrupt.
    [[gnu::always_inline]] bool owned_by_me() const noexcept {
        return (word_.load(std::memory_order_relaxed) & ~kWaiters) == thread_number() ||
               (__builtin_expect(favourite() != 0, 0) &&
                other_.load(std::memory_order_relaxed) == thread_number());
    }

  private:
    static std::uint32_t favourite() noexcept { return favourite_.load(std::memory_order_relaxed); }
    static constexpr std::uint32_t kWaiters = 0x80000000u;
    static constexpr int kSpins = 200;
    void lock_slow() noexcept;
    void wake() noexcept;

    // Mode `single`: word_ belongs to the favourite thread, other_ to all other threads.
    bool single_try_lock() noexcept {
        const std::uint32_t me = thread_number();
        if (me != favourite()) return others_try_lock(me);
        if (word_.load(std::memory_order_relaxed) == me)
            return false;  // in a handler that interrupted the holder
        word_.store(me, std::memory_order_relaxed);
        // Pairs with the membarrier of a thread that claims other_, which is a full barrier in this thread,
        // too, before or after this fence.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (__builtin_expect(other_.load(std::memory_order_acquire) == 0, 1)) return true;
        word_.store(0, std::memory_order_release);
        return false;
    }
    void single_unlock() noexcept {
        (thread_number() == favourite() ? word_ : other_).store(0, std::memory_order_release);
    }
    bool others_try_lock(std::uint32_t me) noexcept;

    static inline constinit std::atomic<std::uint32_t> favourite_{
        0};  // thread_number() of the favourite thread; 0: another mode
    static inline constinit std::atomic<LockMode> mode_{LockMode::spin};

    std::atomic<std::uint32_t> word_{
        0};  // thread_number() of the owner, with kWaiters when a thread sleeps; 0: free
    std::atomic<std::uint32_t> other_{0};
};

}  // namespace vma
