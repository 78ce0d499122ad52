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

namespace {

// Memory is set aside for each ring that there may be.
unsigned processors() noexcept {
    return static_cast<unsigned>(std::clamp(sysconf(_SC_NPROCESSORS_CONF), 1l, long{Lanes::kMost}));
}

}  // namespace

thread_local constinit Lanes::Claim Lanes::t_claim;
thread_local constinit int Lanes::t_core = -1;

Lanes::Lanes(Logic logic, unsigned limit)
    : logic_(logic),
      most_(limit == 0 ? kMost : std::min(limit, kMost)),
      limit_(logic == Logic::interface ? 1
             : logic >= Logic::core    ? std::min(most_, processors())
                                       : most_),
      cores_(logic >= Logic::core ? CPU_SETSIZE : 0),
      bound_(cores_.size()) {}

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

void Lanes::allow(const Choice& choice) {
    if (choice.logic == Logic::interface && choice.profile == 0) return;
    const std::lock_guard guard(lock_);
    if (choice.logic >= Logic::core && cores_.empty()) {
        cores_.resize(CPU_SETSIZE);
        bound_.resize(CPU_SETSIZE);
    }
    if (logic_ == Logic::interface) known_ = std::max(known_, 1u);  // lane 0 stays everyone's
    limit_.store(most_, std::memory_order_relaxed);
}

std::uint32_t Lanes::follows(Logic logic) noexcept {
    if (logic < Logic::thread) return 0;
    return logic == Logic::thread ? thread_number() : static_cast<std::uint32_t>(sched_getcpu()) + 1;
}

Lanes::Owner Lanes::owner_of(const Choice& choice) noexcept {
    Owner owner;
    owner.kind = std::uint64_t{choice.profile} << 8 | static_cast<std::uint64_t>(choice.logic);
    if (choice.logic == Logic::user_id) owner.id = choice.user_id;
    if (choice.logic == Logic::thread) owner.id = static_cast<std::uint64_t>(os::raw_syscall(SYS_gettid));
    return owner;
}

unsigned Lanes::take(const Choice* own) noexcept {
    const Choice choice = own != nullptr ? *own : Choice{logic_, 0, 0};
    const bool everyone = choice.logic == Logic::interface && choice.profile == 0;
    if (choice.logic == Logic::address && own != nullptr) return kByAddress;
    // Owned: a signal handler inside this function.
    if (everyone || choice.logic == Logic::address || lock_.owned_by_me()) {
        join(0);
        return 0;
    }
    const std::lock_guard guard(lock_);
    Owner owner = owner_of(choice);
    Claim once;
    Claim* claimed = &once;
    if (choice.logic >= Logic::core) owner.id = core_for_thread(choice.logic);
    // A lane with a profile is found by its owner.
    if (choice.profile == 0 && choice.logic == Logic::thread) claimed = &t_claim;
    if (choice.profile == 0 && choice.logic >= Logic::core) claimed = &cores_[owner.id];
    if (!holds(*claimed)) *claimed = claim(owner);
    join(claimed->lane);
    return claimed->lane;
}

void Lanes::give_back(unsigned lane) noexcept {
    if (lane != kByAddress) lanes_[lane].users.fetch_sub(1, std::memory_order_relaxed);
}

// The owner's; else a lane that nobody uses, before a new one: each new one is a ring with memory of its own.
Lanes::Claim Lanes::claim(const Owner& owner) noexcept {
    const unsigned most = limit();
    const auto logic = static_cast<Logic>(owner.kind & 0xff);
    for (unsigned i = 0; logic != Logic::socket && i < known_; i++)
        if (is_of(i, owner) && !lanes_[i].shared.load(std::memory_order_relaxed))
            return {this, i, lanes_[i].generation};
    unsigned best = logic_ == Logic::interface ? 1 : 0;
    while (best < known_ && users(best) != 0) best++;
    const bool free = best < most;
    if (!free) {
        best = 0;
        for (unsigned i = 1; i < known_; i++)
            if (users(i) < users(best)) best = i;
        log::once(log::Level::info,
                  "{} rings for an interface are in use (VMA_RING_LIMIT_PER_INTERFACE, at most {}): further "
                  "sockets share them",
                  most, kMost);
    }
    Lane& lane = lanes_[best];
    if (free) {
        known_ = std::max(known_, best + 1);
        lane.generation++;
        lane.kind.store(owner.kind, std::memory_order_relaxed);
        lane.owner.store(owner.id, std::memory_order_relaxed);
    }
    lane.shared.store(!free, std::memory_order_relaxed);
    return {this, best, lane.generation};
}

unsigned Lanes::of_address(in_addr_t address) noexcept {
    const Owner owner{static_cast<std::uint64_t>(Logic::address), address};
    const unsigned most = limit();
    auto known = [&] {
        unsigned i = 0;
        while (i < most && !is_of(i, owner)) i++;
        return i;
    };
    if (const unsigned lane = known(); lane != most) return lane;
    const std::lock_guard guard(lock_);
    if (const unsigned lane = known(); lane != most) return lane;
    if (known_ < most) {
        lanes_[known_].owner.store(address, std::memory_order_relaxed);
        lanes_[known_].kind.store(owner.kind, std::memory_order_relaxed);
        if (logic_ != Logic::address) join(known_);  // for good: nobody counts who uses it
        return known_++;
    }
    const unsigned lane = ntohl(address) % most;
    lanes_[lane].shared.store(true, std::memory_order_relaxed);
    return lane;
}

// Two processes that begin on cores of their own stay there: neither knows of the other one's threads, but
// the kernel has put them apart.
unsigned Lanes::quietest_core() const noexcept {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);  // the kernel fills in only as much as it has
    if (os::raw_syscall(SYS_sched_getaffinity, 0, sizeof allowed, &allowed) <= 0) return CPU_SETSIZE;
    const unsigned here = static_cast<unsigned>(std::max(sched_getcpu(), 0));
    unsigned best = CPU_SETSIZE, least = ~0u;
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        const unsigned core = (here + i) % CPU_SETSIZE;
        if (CPU_ISSET(core, &allowed) && bound_[core] < least) best = core, least = bound_[core];
    }
    return best;
}

unsigned Lanes::core_for_thread(Logic logic) noexcept {
    if (logic == Logic::pinned) {
        if (t_core >= 0) return static_cast<unsigned>(t_core);
        const unsigned core = quietest_core();
        cpu_set_t one;
        CPU_ZERO(&one);
        if (core < CPU_SETSIZE) CPU_SET(core, &one);
        if (core < CPU_SETSIZE && os::raw_syscall(SYS_sched_setaffinity, 0, sizeof one, &one) == 0) {
            t_core = static_cast<int>(core);
            bound_[core]++;
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
    if (l.shared.load(std::memory_order_relaxed)) return "shared";
    switch (logic(lane)) {
        case Logic::interface:
            return logic_ == Logic::interface ? "all sockets" : "";
        case Logic::address:
            return owner == 0 ? "" : net::Address(static_cast<in_addr_t>(owner)).text();
        case Logic::socket:
            return "a socket";
        case Logic::user_id:
            return fmt::format("user id {}", owner);
        case Logic::thread:
            return owner == 0 ? "" : fmt::format("thread {}", owner);
        default:
            return fmt::format("core {}", owner);
    }
}

}  // namespace vma::ring
