// SPDX-License-Identifier: BSD-2-Clause
// Which sockets share a ring (VMA_RING_ALLOCATION_LOGIC_RX and _TX; manual, table 5).
//
// An interface may have several rings. A lane is the number of a ring, the same on all interfaces: a socket
// has one lane, and uses the ring with that number on each interface. A ring both sends and receives for its
// sockets, so that a frame and its answer meet one lock; therefore the greater of the two logics holds.
//
// The logic decides whose lane it is: a socket's, a thread's, a core's, an address's. Lane 0 comes first, and
// is the only one with logic 0. A lane without users goes to the next owner. When there are no more, the
// lanes with the fewest users are shared.
//
// Locks: one of its own, which is a leaf. Any thread.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "libvma/runtime/lock.h"

namespace vma::ring {

enum class Logic : std::uint8_t {
    interface = 0,
    address = 1,
    socket = 10,
    thread = 20,
    core = 30,
    pinned = 31
};

class Lanes {
  public:
    static constexpr unsigned kMost = 64;

    // `limit`: lanes at most, VMA_RING_LIMIT_PER_INTERFACE; 0: kMost.
    Lanes(Logic logic, unsigned limit);
    // As the parameters say.
    static Lanes configured();

    Logic logic() const noexcept { return logic_; }
    // Lanes that there may be.
    unsigned limit() const noexcept { return limit_; }

    // The lane of a socket that the calling thread is the first to use; the socket counts as one of its users
    // until give_back(). With Logic::pinned the thread is bound to the core whose lanes have the fewest
    // users, of those that it may run on.
    unsigned take() noexcept;
    void give_back(unsigned lane) noexcept;
    // One user more, as a socket that a listener of that lane accepted.
    void join(unsigned lane) noexcept { lanes_[lane].users.fetch_add(1, std::memory_order_relaxed); }
    // The lane for a local address of a socket with lane `own`. Other logics than Logic::address do not ask
    // for the address.
    unsigned of(unsigned own, in_addr_t local) noexcept {
        return __builtin_expect(logic_ == Logic::address, 0) ? of_address(local) : own;
    }
    unsigned users(unsigned lane) const noexcept {
        return lanes_[lane].users.load(std::memory_order_relaxed);
    }
    // Whose lane it is, for people: "thread 4711". May throw std::bad_alloc.
    std::string owner(unsigned lane) const;

  private:
    // What a thread or a core remembers: its lane, until another owner has it.
    struct Claim {
        const Lanes* of = nullptr;
        unsigned lane = 0;
        std::uint32_t generation = 0;
    };
    struct Lane {
        std::atomic<unsigned> users{0};
        std::atomic<std::uint64_t> owner{0};  // thread, core, address; of a socket: 0
        std::atomic<bool> shared{false};      // by several owners
        std::uint32_t generation = 0;         // moves with each owner
    };
    bool holds(const Claim& claim) const noexcept {
        return claim.of == this && lanes_[claim.lane].generation == claim.generation;
    }
    Claim claim(std::uint64_t owner) noexcept;
    unsigned of_address(in_addr_t address) noexcept;
    unsigned core_for_thread() noexcept;
    unsigned quietest_core() const noexcept;

    const Logic logic_;
    const unsigned limit_;
    Lock lock_;
    unsigned known_ = 0;  // lanes that had an owner
    std::array<Lane, kMost> lanes_;
    std::vector<Claim> cores_;  // by number
    static thread_local constinit Claim t_claim;
    static thread_local constinit int t_core;  // that this thread was bound to; -1: none
};

}  // namespace vma::ring
