// SPDX-License-Identifier: BSD-2-Clause
// When a receive call looks at the shadow of a UDP socket.
//
// The shadow gets fragments, loopback, what foreign interfaces bring, and errors. A look costs a system call.
// So a call looks there in the proportion VMA_RX_UDP_POLL_OS_RATIO while it polls, at once after an error,
// and once after anything in this process was sent through the kernel, whose answer may come that way.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/config/params.h"
#include "libvma/runtime/clock.h"

namespace vma::sockets {

class KernelSide {
  public:
    // The shadow has an error, or is shut down: the next call asks the shadow first.
    void note_event() noexcept { event_.store(true, std::memory_order_release); }
    bool has_event() const noexcept { return event_.load(std::memory_order_relaxed); }
    // The kernel is about to be asked, and tells.
    void forget_event() noexcept { event_.store(false, std::memory_order_relaxed); }
    // A socket of this process sends through the kernel.
    static void note_send() noexcept { sends_.fetch_add(1, std::memory_order_relaxed); }

    // Each round of a call: is it time to look?
    bool due() noexcept {
        if (event_.load(std::memory_order_acquire)) return true;
        const std::uint32_t left = polls_left_.load(std::memory_order_relaxed);
        if (left == 0) return false;  // VMA_RX_UDP_POLL_OS_RATIO is 0
        polls_left_.store(left - 1, std::memory_order_relaxed);
        return left == 1;
    }
    // The first round of a call. `waits`: it polls, and its sleep ends when something is there.
    bool due_at_first(bool waits) const noexcept {
        return sends_.load(std::memory_order_relaxed) != sends_seen_.load(std::memory_order_relaxed) ||
               ((!waits || config::get().rx_udp_poll_os_ratio == 0) &&
                clock::Ticks::now() - looked_at_.load(std::memory_order_relaxed) > clock::to_ticks(kLook));
    }
    // A call looks now.
    void looks() noexcept {
        forget_event();
        sends_seen_.store(sends_.load(std::memory_order_relaxed), std::memory_order_relaxed);
        polls_left_.store(ratio(), std::memory_order_relaxed);
    }
    // It has found nothing.
    void was_empty() noexcept { looked_at_.store(clock::Ticks::now(), std::memory_order_relaxed); }

  private:
    // A call that finds nothing looks if the last look is older.
    static constexpr std::chrono::microseconds kLook{10};
    static std::uint32_t ratio() noexcept {
        return static_cast<std::uint32_t>(config::get().rx_udp_poll_os_ratio);
    }
    static inline std::atomic<std::uint32_t> sends_{0};

    std::atomic<bool> event_{false};
    std::atomic<std::uint32_t> polls_left_{ratio()};
    std::atomic<std::uint32_t> sends_seen_{0};
    std::atomic<clock::Ticks> looked_at_{};
};

}  // namespace vma::sockets
