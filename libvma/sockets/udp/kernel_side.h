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
    void note_event() noexcept { due_.fetch_or(kEvent, std::memory_order_release); }
    bool has_event() const noexcept { return (due_.load(std::memory_order_relaxed) & kEvent) != 0; }
    // The kernel is about to be asked, and tells.
    void forget_event() noexcept {
        if (has_event()) due_.fetch_and(~kEvent, std::memory_order_relaxed);
    }
    // What comes past the kernel from now on is younger than what the shadow has: up to `looks` calls read
    // the shadow first, until it is empty.
    void note_backlog(std::uint32_t looks) noexcept {
        forget_backlog();
        due_.fetch_or(looks & ~kEvent, std::memory_order_release);
    }
    // A socket of this process sends through the kernel.
    static void note_send() noexcept { sends_.fetch_add(1, std::memory_order_relaxed); }

    // Each round of a call: is it time to look?
    bool due() noexcept {
        if (due_.load(std::memory_order_acquire) != 0) return true;
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
        if (std::uint32_t due = due_.load(std::memory_order_relaxed); due != 0) {
            // An event counts once. Whoever notes something meanwhile is not overwritten.
            const std::uint32_t left = due & ~kEvent;
            due_.compare_exchange_strong(due, left != 0 ? left - 1 : 0, std::memory_order_relaxed);
        }
        sends_seen_.store(sends_.load(std::memory_order_relaxed), std::memory_order_relaxed);
        polls_left_.store(ratio(), std::memory_order_relaxed);
    }
    // It has found nothing.
    void was_empty() noexcept {
        if (due_.load(std::memory_order_relaxed) != 0) forget_backlog();
        looked_at_.store(clock::Ticks::now(), std::memory_order_relaxed);
    }

  private:
    void forget_backlog() noexcept { due_.fetch_and(kEvent, std::memory_order_relaxed); }

    static constexpr std::uint32_t kEvent = 1u << 31;
    // A call that finds nothing looks if the last look is older.
    static constexpr std::chrono::microseconds kLook{10};
    static std::uint32_t ratio() noexcept {
        return static_cast<std::uint32_t>(config::get().rx_udp_poll_os_ratio);
    }
    static inline std::atomic<std::uint32_t> sends_{0};

    std::atomic<std::uint32_t> due_{0};  // kEvent, and looks for a backlog
    std::atomic<std::uint32_t> polls_left_{ratio()};
    std::atomic<std::uint32_t> sends_seen_{0};
    std::atomic<clock::Ticks> looked_at_{};
};

}  // namespace vma::sockets
