// SPDX-License-Identifier: BSD-2-Clause
// Which of an interface's rings has a flow rule. Two rings must not have the same rule: the device would give
// the frames to one of them. So sockets that share a flow (SO_REUSEPORT) share the ring of the first of them.
//
// Locks: one of its own, a leaf. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class Ring;

class RuleOwners {
  public:
    // The device's rules leave out the peer (VMA_TCP_3T_RULES, VMA_UDP_3T_RULES): flows that differ in
    // nothing else are one rule. Before the first claim().
    void leave_out_peers(bool of_tcp, bool of_udp) noexcept {
        tcp_3t_ = of_tcp;
        udp_3t_ = of_udp;
    }
    // Makes `ring` the owner, unless there is another; returns the owner. Each claim() of the owner is
    // followed by a release(). May throw std::bad_alloc.
    Ring* claim(const verbs::FlowSpec& spec, Ring* ring) {
        const std::lock_guard guard(lock_);
        Owner& owner = owners_.try_emplace(rule_of(spec), Owner{ring, 0}).first->second;
        if (owner.ring == ring) owner.flows++;
        return owner.ring;
    }
    // The owner's flow is no more.
    void release(const verbs::FlowSpec& spec, const Ring* ring) noexcept {
        const std::lock_guard guard(lock_);
        const auto at = owners_.find(rule_of(spec));
        if (at != owners_.end() && at->second.ring == ring && --at->second.flows == 0) owners_.erase(at);
    }
    // The rule, which `from` owns, becomes `to`'s. False, and nothing has changed: several flows share it.
    bool pass(const verbs::FlowSpec& spec, const Ring* from, Ring* to) noexcept {
        const std::lock_guard guard(lock_);
        const auto at = owners_.find(rule_of(spec));
        if (at == owners_.end() || at->second.ring != from || at->second.flows != 1) return false;
        at->second.ring = to;
        passed_.store(true, std::memory_order_relaxed);
        return true;
    }
    // Has a rule ever passed to another ring? Frames that were on their way may come out of the old one.
    bool any_passed() const noexcept { return passed_.load(std::memory_order_relaxed); }
    // Null: none has it.
    Ring* find(const verbs::FlowSpec& spec) const noexcept {
        const std::lock_guard guard(lock_);
        const auto at = owners_.find(rule_of(spec));
        return at == owners_.end() ? nullptr : at->second.ring;
    }

  private:
    struct Owner {
        Ring* ring;
        unsigned flows;
    };
    verbs::FlowSpec rule_of(const verbs::FlowSpec& spec) const noexcept {
        verbs::FlowSpec rule = spec;
        if (spec.protocol == IPPROTO_TCP ? tcp_3t_ : udp_3t_) rule.src_addr = 0, rule.src_port = 0;
        return rule;
    }

    mutable Lock lock_;
    std::map<verbs::FlowSpec, Owner> owners_;
    bool tcp_3t_ = false, udp_3t_ = false;
    std::atomic<bool> passed_{false};
};

}  // namespace vma::ring
