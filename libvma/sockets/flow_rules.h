// SPDX-License-Identifier: BSD-2-Clause
// The flow rules of one socket, and the rings that they lie on.
//
// Stack::control() guards the rules; control operations change them. Data calls read the list of rings
// without a lock. An interface beyond kMaxRings stays with the kernel.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/sockets/observe/statistics.h"

namespace vma::sockets {

class Stack;
class Steered;

class FlowRules {
  public:
    static constexpr unsigned kMaxRings = 16;

    struct Rule {
        ring::Ring* ring;
        verbs::FlowSpec spec;
        bool operator==(const Rule& other) const noexcept { return ring == other.ring && spec == other.spec; }
    };
    // Where frames go that a rule catches.
    struct Target {
        ring::FrameSink* sink;
        ring::Share share;
        const char* name;  // for the log: "a UDP flow"
        // A rule of this ring came, or went. Null: not told.
        void (*attached)(ring::Ring&) = nullptr;
        void (*detached)(ring::Ring&) = nullptr;
    };

    // ---- under Stack::control() ----
    // Makes the rules be `wanted`: new ones first, so that no packet of a kept peer takes the way through the
    // kernel in between. A rule that cannot be had is the kernel's, and `why` tells. True: the rings are
    // others than before, so threads that wait have to wait on these.
    bool set(std::vector<Rule> wanted, const Target& target, Why& why) noexcept;
    // Has another process had one of the rules that the last set() wanted? Then Stack::device_freed() comes.
    bool held() const noexcept { return held_; }
    // Moves each rule to ring_for(rule), if that is another ring (Ring::take). False: none has moved, and
    // `why` tells. May throw std::bad_alloc.
    template <class F>
    bool move(const Target& target, std::string& why, F&& ring_for);
    const std::vector<Rule>& rules() const noexcept { return rules_; }
    bool empty() const noexcept { return rules_.empty(); }
    // Rings over which the socket receives by the rules of others (Groups), each once. True as for set().
    bool lend(std::vector<ring::Ring*> rings) noexcept;
    const std::vector<ring::Ring*>& lent() const noexcept { return lent_; }
    // Does the socket follow the interfaces' addresses (Stack::add_wildcard)? May throw bad_alloc.
    void follow(Stack& stack, Steered* socket);
    void unfollow(Stack& stack, Steered* socket) noexcept;
    bool follows() const noexcept { return follows_; }

    // ---- any thread ----
    unsigned count() const noexcept { return count_.load(std::memory_order_acquire); }
    bool any() const noexcept { return count() != 0; }
    ring::Ring& ring(unsigned i) const noexcept { return *rings_[i].load(std::memory_order_relaxed); }
    ring::Ring* first() const noexcept { return any() ? &ring(0) : nullptr; }
    // Puts at most `room` rings at `out`; returns how many there are.
    unsigned copy(ring::Ring** out, unsigned room) const noexcept {
        const unsigned n = count();
        for (unsigned i = 0; i < n && i < room; i++) out[i] = &ring(i);
        return n;
    }
    // Takes what has come, until done() or the rings are empty: one poll takes one batch, and all of it may
    // be other sockets'. "Nothing there" may be said only of an empty ring. Frames taken.
    template <class Done>
    [[gnu::always_inline]] unsigned poll_until(Done&& done) const noexcept {
        constexpr unsigned kMaxRounds = 1024;
        const unsigned n = count();
        unsigned total = 0, round = 0, taken;
        do {
            taken = 0;
            for (unsigned i = 0; i < n; i++) taken += ring(i).poll();
            total += taken;
        } while (taken != 0 && !done() && ++round < kMaxRounds);
        return total;
    }
    // One batch of each.
    void poll_once() const noexcept {
        const unsigned n = count();
        for (unsigned i = 0; i < n; i++) ring(i).poll();
    }
    void flush() const noexcept {
        const unsigned n = count();
        for (unsigned i = 0; i < n; i++) ring(i).flush();
    }
    // Did a signal handler interrupt this thread inside one of the rings?
    bool interrupted() const noexcept {
        const unsigned n = count();
        for (unsigned i = 0; i < n; i++)
            if (ring(i).rx_owned_by_me()) return true;
        return false;
    }

  private:
    bool move(Rule& rule, ring::Ring& to, const Target& target, std::string& why);
    bool list_rings() noexcept;

    std::vector<Rule> rules_;
    std::vector<ring::Ring*> lent_;
    bool follows_ = false, held_ = false;
    std::atomic<unsigned> count_{0};
    std::array<std::atomic<ring::Ring*>, kMaxRings> rings_{};
};

template <class F>
bool FlowRules::move(const Target& target, std::string& why, F&& ring_for) {
    bool one = false, all = true;
    for (Rule& rule : rules_) {
        ring::Ring* to = ring_for(rule);
        if (to == nullptr || to == rule.ring) continue;
        const bool moved = move(rule, *to, target, why);
        one |= moved;
        all &= moved;
    }
    list_rings();
    return one || all;
}

}  // namespace vma::sockets
