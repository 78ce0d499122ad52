// SPDX-License-Identifier: BSD-2-Clause
// The library's lock: a futex mutex that spins briefly first and knows its owner.
//
// Critical sections are some hundred nanoseconds, so spinning usually wins; but a holder can be preempted, and with
// as many busy threads as cores an unbounded spin would stall for a scheduler tick. So a waiter sleeps after
// kSpins tries. The owner is known because a signal handler may interrupt a holder and call into the library again:
// try_lock and owned_by_me let that call go to the kernel instead of waiting for itself.
#pragma once

#include <atomic>
#include <cstdint>

namespace vma {

// A number of the calling thread, unique in the process while it lives; never 0, below 2^31.
inline std::uint32_t thread_number() noexcept {
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

class Lock {
  public:
    Lock() = default;
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    bool try_lock() noexcept {
        std::uint32_t expected = 0;
        return word_.compare_exchange_strong(expected, thread_number(), std::memory_order_acquire,
                                             std::memory_order_relaxed);
    }
    void lock() noexcept {
        if (!try_lock()) lock_slow();
    }
    void unlock() noexcept {
        if (word_.exchange(0, std::memory_order_release) & kWaiters) wake();
    }
    // One load, and the owner is part of the word that the lock is: so the answer is right at any instruction a signal
    // handler may interrupt.
    bool owned_by_me() const noexcept {
        return (word_.load(std::memory_order_relaxed) & ~kWaiters) == thread_number();
    }

  private:
    static constexpr std::uint32_t kWaiters = 0x80000000u;
    static constexpr int kSpins = 200;
    void lock_slow() noexcept;
    void wake() noexcept;

    std::atomic<std::uint32_t> word_{0};  // the owner's thread_number(), with kWaiters when somebody sleeps; 0: free
};

}  // namespace vma
