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
    user_id = 11,  // of a socket's own choice only
    thread = 20,
    core = 30,
    pinned = 31
};

// What a socket asks for itself (SO_VMA_RING_ALLOC_LOGIC). Sockets of different profiles share no ring while
// there are enough.
struct Choice {
    Logic logic = Logic::interface;
    std::uint32_t profile = 0;  // 0: none
    std::uint32_t user_id = 0;  // of Logic::user_id
};

class Lanes {
  public:
    static constexpr unsigned kMost = 64;
    // In place of a lane: that of the local address.
    static constexpr unsigned kByAddress = kMost;

    // `limit`: lanes at most, VMA_RING_LIMIT_PER_INTERFACE; 0: kMost.
    Lanes(Logic logic, unsigned limit);
    // As the parameters say.
    static Lanes configured();

    Logic logic() const noexcept { return logic_; }
    // Lanes that there may be.
    unsigned limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
    // A socket will take() by its choice, so there may be several lanes. May throw std::bad_alloc.
    void allow(const Choice& choice);

    // The lane of a socket that the calling thread is the first to use; the socket counts as one of its users
    // until give_back(). `choice`: the socket's own, after allow(); null: as the parameters say. With
    // Logic::pinned the thread is bound to a core, of those that it may run on: one to which the fewest
    // threads are bound, the present one rather than another such.
    unsigned take(const Choice* choice = nullptr) noexcept;
    void give_back(unsigned lane) noexcept;
    // One user more, as a socket that a listener of that lane accepted.
    void join(unsigned lane) noexcept {
        if (lane != kByAddress) lanes_[lane].users.fetch_add(1, std::memory_order_relaxed);
    }
    // The lane for a local address of a socket with lane `own`. Other logics than Logic::address do not ask
    // for the address.
    unsigned of(unsigned own, in_addr_t local) noexcept {
        return __builtin_expect(logic_ == Logic::address || own == kByAddress, 0) ? of_address(local) : own;
    }
    // Tells threads or cores apart, never 0, where a socket's lane follows them; else 0.
    static std::uint32_t follows(Logic logic) noexcept;
    // The logic of the lane's present owner.
    Logic logic(unsigned lane) const noexcept {
        return lane < kMost ? static_cast<Logic>(lanes_[lane].kind.load(std::memory_order_relaxed) & 0xff)
                            : logic_;
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
    struct Owner {
        std::uint64_t kind = 0;  // logic, and above that the profile
        std::uint64_t id = 0;    // thread, core, address, user id; of a socket: 0
        friend bool operator==(const Owner&, const Owner&) = default;
    };
    struct Lane {
        std::atomic<unsigned> users{0};
        std::atomic<std::uint64_t> kind{0}, owner{0};
        std::atomic<bool> shared{false};  // by several owners
        std::uint32_t generation = 0;     // moves with each owner
    };
    static Owner owner_of(const Choice& choice) noexcept;
    bool holds(const Claim& claim) const noexcept {
        return claim.of == this && lanes_[claim.lane].generation == claim.generation;
    }
    bool is_of(unsigned lane, const Owner& owner) const noexcept {
        return lanes_[lane].owner.load(std::memory_order_relaxed) == owner.id &&
               lanes_[lane].kind.load(std::memory_order_relaxed) == owner.kind;
    }
    Claim claim(const Owner& owner) noexcept;
    unsigned of_address(in_addr_t address) noexcept;
    unsigned core_for_thread(Logic logic) noexcept;
    unsigned quietest_core() const noexcept;

    const Logic logic_;
    const unsigned most_;
    std::atomic<unsigned> limit_;
    Lock lock_;
    unsigned known_ = 0;  // lanes that had an owner
    std::array<Lane, kMost> lanes_;
    std::vector<Claim> cores_;     // by number
    std::vector<unsigned> bound_;  // threads that were bound to each
    static thread_local constinit Claim t_claim;
    static thread_local constinit int t_core;  // that this thread was bound to; -1: none
};

}  // namespace vma::ring
