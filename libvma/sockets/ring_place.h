// SPDX-License-Identifier: BSD-2-Clause
// Which of an interface's rings is a socket's (ring/lanes.h), and when it has to move to another one.
//
// Where the lane follows the thread or the core, each data call looks who calls. When it has been somebody
// else for so many calls in a row (VMA_RING_MIGRATION_RATIO_RX, _TX), the socket moves to that one's ring.
// Each move doubles the number, so that two threads that take turns do not pull the socket to and fro.
//
// Locks: Stack::control() for what changes the lane. A data call counts without a lock: threads that meet
// there may count a call too few.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "libvma/ring/lanes.h"

namespace vma::sockets {

// What SO_VMA_RING_ALLOC_LOGIC asks for: of receiving, sending, or both.
struct OwnRing {
    ring::Choice choice;
    bool profile_given = false, user_id_given = false;  // else they stay as they were
    bool rx = true, tx = true;
};

class RingPlace {
  public:
    enum class Way : std::uint8_t { rx, tx };

    explicit RingPlace(ring::Lanes& lanes) noexcept : lanes_(lanes) {}
    ~RingPlace() { leave(); }
    RingPlace(const RingPlace&) = delete;
    RingPlace& operator=(const RingPlace&) = delete;

    // The lane, taken now if there is none yet. Any thread.
    unsigned lane() noexcept;
    bool taken() const noexcept { return lane_.load(std::memory_order_relaxed) >= 0; }
    // Of an accepted socket: that of its listener.
    void join(const RingPlace& listener) noexcept;

    // Of each data call: is a move due?
    bool strayed(Way way) noexcept {
        return __builtin_expect(follows_.load(std::memory_order_relaxed) != ring::Logic::interface, 0) &&
               calls_elsewhere(way);
    }

    // ---- under Stack::control() ----
    // The socket's own choice, in place of the parameters'. Holds from the next lane() or candidate() on. May
    // throw std::bad_alloc.
    void choose(const OwnRing& own);
    // A lane for the calling thread, which counts the socket as a user: settle() or refuse() follows.
    unsigned candidate() noexcept { return lanes_.take(choice_ ? &*choice_ : nullptr); }
    // The socket is on the ring of `lane`.
    void settle(unsigned lane) noexcept;
    // It cannot move; it does not try again.
    void refuse(unsigned lane) noexcept;

  private:
    static constexpr unsigned kMostDoublings = 16;

    [[gnu::noinline]] bool calls_elsewhere(Way way) noexcept;
    void follow() noexcept;
    void leave() noexcept;

    ring::Lanes& lanes_;
    // A ring both receives and sends, so the greater logic of the two directions holds.
    std::optional<ring::Choice> asked_[2], choice_;
    std::atomic<int> lane_{-1};                                 // -1: none yet
    std::atomic<ring::Logic> follows_{ring::Logic::interface};  // thread or core; interface: nothing
    std::atomic<std::uint8_t> moves_{0};                        // at most kMostDoublings
    // Threads, or cores (Lanes::follows()).
    std::atomic<std::uint32_t> home_{0}, other_{0};
    std::atomic<std::uint32_t> calls_{0};  // of other_, in a row
};

}  // namespace vma::sockets
