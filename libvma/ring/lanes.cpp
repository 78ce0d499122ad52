// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/lanes.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "libvma/config/params.h"
#include "libvma/net/address.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"

namespace vma::ring {

thread_local constinit Lanes::Claim Lanes::t_claim;
thread_local constinit int Lanes::t_core = -1;

Lanes::Lanes(Logic logic, unsigned limit)
    : logic_(logic),
      limit_(logic == Logic::interface ? 1
             : limit == 0              ? kMost
                                       : std::min(limit, kMost)),
      cores_(logic >= Logic::core ? CPU_SETSIZE : 0) {}

Lanes Lanes::configured() {
    const config::Params& p = config::get();
    const auto logic = std::max(p.ring_allocation_logic_rx, p.ring_allocation_logic_tx);
    if (p.ring_allocation_logic_rx != p.ring_allocation_logic_tx)
        log::once(log::Level::debug,
                  "a ring both sends and receives: logic {}, the greater of VMA_RING_ALLOCATION_LOGIC_RX and "
                  "_TX, holds for both",
                  logic);
    return Lanes(static_cast<Logic>(logic),
                 static_cast<unsigned>(std::min<std::int64_t>(p.ring_limit_per_interface, kMost)));
}

unsigned Lanes::take() noexcept {
    // Owned: a signal handler inside this function.
    if (logic_ <= Logic::address || lock_.owned_by_me()) {
        join(0);
        return 0;
    }
    const std::lock_guard guard(lock_);
    Claim once;
    Claim* claimed = &once;
    std::uint64_t owner = 0;
    if (logic_ == Logic::thread) {
        claimed = &t_claim;
        owner = static_cast<std::uint64_t>(os::raw_syscall(SYS_gettid));
    } else if (logic_ >= Logic::core) {
        owner = core_for_thread();
        claimed = &cores_[owner];
    }
    if (!holds(*claimed)) *claimed = claim(owner);
    lanes_[claimed->lane].users.fetch_add(1, std::memory_order_relaxed);
    return claimed->lane;
}

void Lanes::give_back(unsigned lane) noexcept { lanes_[lane].users.fetch_sub(1, std::memory_order_relaxed); }

// A lane that nobody uses, before a new one: each new one is a ring with memory of its own.
Lanes::Claim Lanes::claim(std::uint64_t owner) noexcept {
    unsigned best = 0;
    while (best < known_ && users(best) != 0) best++;
    const bool free = best < limit_;
    if (!free) {
        best = 0;
        for (unsigned i = 1; i < known_; i++)
            if (users(i) < users(best)) best = i;
        log::once(log::Level::info,
                  "{} rings for an interface are in use (VMA_RING_LIMIT_PER_INTERFACE, at most {}): further "
                  "sockets share them",
                  limit_, kMost);
    }
    Lane& lane = lanes_[best];
    if (free) {
        known_ = std::max(known_, best + 1);
        lane.generation++;
        lane.owner.store(owner, std::memory_order_relaxed);
    }
    lane.shared.store(!free, std::memory_order_relaxed);
    return {this, best, lane.generation};
}

unsigned Lanes::of_address(in_addr_t address) noexcept {
    auto known = [&] {
        for (unsigned i = 0; i < limit_; i++) {
            const std::uint64_t owner = lanes_[i].owner.load(std::memory_order_relaxed);
            if (owner == address) return i;
            if (owner == 0) break;
        }
        return limit_;
    };
    if (const unsigned lane = known(); lane != limit_) return lane;
    const std::lock_guard guard(lock_);
    if (const unsigned lane = known(); lane != limit_) return lane;
    if (known_ < limit_) {
        lanes_[known_].owner.store(address, std::memory_order_relaxed);
        return known_++;
    }
    const unsigned lane = ntohl(address) % limit_;
    lanes_[lane].shared.store(true, std::memory_order_relaxed);
    return lane;
}

// The one with the fewest users, of those that the thread may run on.
unsigned Lanes::quietest_core() const noexcept {
    cpu_set_t allowed;
    if (os::raw_syscall(SYS_sched_getaffinity, 0, sizeof allowed, &allowed) <= 0) return CPU_SETSIZE;
    unsigned best = CPU_SETSIZE, least = ~0u;
    for (unsigned core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed)) continue;
        const unsigned load = holds(cores_[core]) ? users(cores_[core].lane) : 0;
        if (load < least) best = core, least = load;
    }
    return best;
}

unsigned Lanes::core_for_thread() noexcept {
    if (logic_ == Logic::pinned) {
        if (t_core >= 0) return static_cast<unsigned>(t_core);
        const unsigned core = quietest_core();
        cpu_set_t one;
        CPU_ZERO(&one);
        if (core < CPU_SETSIZE) CPU_SET(core, &one);
        if (core < CPU_SETSIZE && os::raw_syscall(SYS_sched_setaffinity, 0, sizeof one, &one) == 0) {
            t_core = static_cast<int>(core);
            return core;
        }
        log::once(log::Level::warn, "a thread cannot be bound to a core: VMA_RING_ALLOCATION_LOGIC 30 holds");
    }
    const int core = sched_getcpu();
    return core < 0 ? 0 : static_cast<unsigned>(core) % CPU_SETSIZE;
}

std::string Lanes::owner(unsigned lane) const {
    const Lane& l = lanes_[lane];
    const std::uint64_t owner = l.owner.load(std::memory_order_relaxed);
    if (logic_ == Logic::interface) return "all sockets";
    if (l.shared.load(std::memory_order_relaxed)) return "shared";
    switch (logic_) {
        case Logic::address:
            return owner == 0 ? "" : net::Address(static_cast<in_addr_t>(owner)).text();
        case Logic::thread:
            return owner == 0 ? "" : fmt::format("thread {}", owner);
        case Logic::socket:
            return "a socket";
        default:
            return fmt::format("core {}", owner);
    }
}

}  // namespace vma::ring
