// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/ring_place.h"

#include <algorithm>

#include "libvma/config/params.h"

namespace vma::sockets {

unsigned RingPlace::lane() noexcept {
    int known = lane_.load(std::memory_order_relaxed);
    if (known >= 0) return static_cast<unsigned>(known);
    const unsigned taken = candidate();
    if (lane_.compare_exchange_strong(known, static_cast<int>(taken), std::memory_order_relaxed)) {
        follow();
        return taken;
    }
    lanes_.give_back(taken);  // another thread was faster
    return static_cast<unsigned>(known);
}

void RingPlace::choose(const OwnRing& own) {
    lanes_.allow(own.choice);
    std::optional<ring::Choice> next[2] = {asked_[0], asked_[1]};
    for (unsigned way = 0; way < 2; way++) {
        if (!(way == 0 ? own.rx : own.tx)) continue;
        const ring::Choice before = next[way].value_or(ring::Choice{});
        next[way] = own.choice;
        if (!own.profile_given) next[way]->profile = before.profile;
        if (!own.user_id_given) next[way]->user_id = before.user_id;
    }
    const ring::Choice otherwise{lanes_.logic(), 0, 0};
    const ring::Choice rx = next[0].value_or(otherwise), tx = next[1].value_or(otherwise);
    choice_ = rx.logic >= tx.logic ? rx : tx;
    std::copy(next, next + 2, asked_);
}

void RingPlace::join(const RingPlace& listener) noexcept {
    const int lane = listener.lane_.load(std::memory_order_relaxed);
    choice_ = listener.choice_;
    std::copy(listener.asked_, listener.asked_ + 2, asked_);
    lane_.store(lane, std::memory_order_relaxed);
    if (lane < 0) return;
    lanes_.join(static_cast<unsigned>(lane));
    home_.store(listener.home_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    follows_.store(listener.follows_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void RingPlace::leave() noexcept {
    if (const int lane = lane_.load(std::memory_order_relaxed); lane >= 0)
        lanes_.give_back(static_cast<unsigned>(lane));
}

void RingPlace::follow() noexcept {
    const ring::Logic logic = choice_ ? choice_->logic : lanes_.logic();
    const config::Params& p = config::get();
    const bool moves = p.ring_migration_ratio_rx >= 0 || p.ring_migration_ratio_tx >= 0;
    home_.store(ring::Lanes::follows(logic), std::memory_order_relaxed);
    follows_.store(moves && logic >= ring::Logic::thread ? logic : ring::Logic::interface,
                   std::memory_order_relaxed);
}

bool RingPlace::calls_elsewhere(Way way) noexcept {
    const std::uint32_t here = ring::Lanes::follows(follows_.load(std::memory_order_relaxed));
    if (here == home_.load(std::memory_order_relaxed)) {
        if (calls_.load(std::memory_order_relaxed) != 0) calls_.store(0, std::memory_order_relaxed);
        return false;
    }
    if (other_.exchange(here, std::memory_order_relaxed) != here) calls_.store(0, std::memory_order_relaxed);
    const config::Params& p = config::get();
    const std::int64_t ratio = way == Way::rx ? p.ring_migration_ratio_rx : p.ring_migration_ratio_tx;
    if (ratio < 0) return false;
    const std::uint32_t calls = calls_.load(std::memory_order_relaxed) + 1;
    calls_.store(calls, std::memory_order_relaxed);
    return calls >= std::max<std::int64_t>(ratio, 1) << moves_.load(std::memory_order_relaxed);
}

void RingPlace::settle(unsigned lane) noexcept {
    const int before = lane_.exchange(static_cast<int>(lane), std::memory_order_relaxed);
    if (before >= 0) lanes_.give_back(static_cast<unsigned>(before));
    const unsigned moves = moves_.load(std::memory_order_relaxed);
    if (before != static_cast<int>(lane) && moves < kMostDoublings)
        moves_.store(static_cast<std::uint8_t>(moves + 1), std::memory_order_relaxed);
    calls_.store(0, std::memory_order_relaxed);
    follow();
}

void RingPlace::refuse(unsigned lane) noexcept {
    lanes_.give_back(lane);
    follows_.store(ring::Logic::interface, std::memory_order_relaxed);
}

}  // namespace vma::sockets
