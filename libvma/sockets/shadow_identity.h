// SPDX-License-Identifier: BSD-2-Clause
// Does a descriptor number still mean the socket's shadow? libc and the program can close a number, or put
// another file there, without passing the library. The kernel's SO_COOKIE of the shadow outlives its numbers.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/runtime/clock.h"

namespace vma::sockets {

class ShadowIdentity {
  public:
    // Asks for the cookie of `fd`, a number of the shadow, unless it is known. Trust begins with the
    // question.
    void learn(int fd) noexcept;
    // One system call. False also where the cookie is not known.
    bool is(int fd) const noexcept;

    std::uint64_t cookie() const noexcept { return cookie_.load(std::memory_order_relaxed); }

    // The answer of is() holds for a millisecond.
    bool trusted(clock::Ticks now) const noexcept {
        return now - verified_at_.load(std::memory_order_relaxed) < clock::to_ticks(kTrust);
    }
    void trust_from(clock::Ticks now) noexcept { verified_at_.store(now, std::memory_order_relaxed); }
    // is(), and trust from `now` on.
    bool verify(int fd, clock::Ticks now) noexcept {
        trust_from(now);
        if (cookie() != 0) return is(fd);
        learn(fd);
        return cookie() != 0;
    }

  private:
    static constexpr std::chrono::microseconds kTrust{1000};

    std::atomic<std::uint64_t> cookie_{0};  // 0: not known
    std::atomic<clock::Ticks> verified_at_{};
};

}  // namespace vma::sockets
