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
    // Asks for the cookie of `fd`, a number of the shadow, unless it is known.
    void learn(int fd) noexcept;
    // One system call. False also where the cookie is not known.
    bool is(int fd) const noexcept;

    // The answer of is() holds for a millisecond. `now`: clock::ticks().
    bool trusted(std::uint64_t now) const noexcept {
        return now - verified_at_.load(std::memory_order_relaxed) < kTrustUsec * clock::ticks_per_usec();
    }
    void trust_from(std::uint64_t now) noexcept { verified_at_.store(now, std::memory_order_relaxed); }
    // is(), and trust from `now` on.
    bool verify(int fd, std::uint64_t now) noexcept {
        trust_from(now);
        learn(fd);
        return is(fd);
    }

  private:
    static constexpr std::uint64_t kTrustUsec = 1000;

    std::atomic<std::uint64_t> cookie_{0};       // 0: not known
    std::atomic<std::uint64_t> verified_at_{0};  // ticks
};

}  // namespace vma::sockets
