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

// A value unique to the calling thread while it lives; never 0. Cheaper than gettid().
inline std::uintptr_t thread_token() noexcept {
    static thread_local char anchor;
    return reinterpret_cast<std::uintptr_t>(&anchor);
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
        std::uint32_t expected = kFree;
        if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed))
            return false;
        owner_.store(thread_token(), std::memory_order_relaxed);
        return true;
    }
    void lock() noexcept {
        if (!try_lock()) lock_slow();
    }
    void unlock() noexcept {
        owner_.store(0, std::memory_order_relaxed);
        if (state_.exchange(kFree, std::memory_order_release) == kContended) wake();
    }
    bool owned_by_me() const noexcept { return owner_.load(std::memory_order_relaxed) == thread_token(); }

  private:
    static constexpr std::uint32_t kFree = 0, kHeld = 1, kContended = 2;
    static constexpr int kSpins = 200;
    void lock_slow() noexcept;
    void wake() noexcept;

    std::atomic<std::uint32_t> state_{kFree};
    std::atomic<std::uintptr_t> owner_{0};
};

}  // namespace vma
