// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/flow_rules.h"

#include <algorithm>
#include <utility>

#include "libvma/runtime/log.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {

bool FlowRules::set(std::vector<Rule> wanted, const Target& target, Why& why) noexcept {
    auto has = [](const std::vector<Rule>& list, const Rule& rule) {
        return std::find(list.begin(), list.end(), rule) != list.end();
    };
    std::vector<Rule> now;
    held_ = false;
    try {
        now.reserve(wanted.size());  // what is attached is noted
        for (const Rule& rule : wanted) {
            if (has(rules_, rule)) {
                now.push_back(rule);
            } else if (auto added = rule.ring->attach(rule.spec, target.sink, target.share); added) {
                if (target.attached != nullptr) target.attached(*rule.ring);
                now.push_back(rule);
            } else if (added.error().code == EBUSY) {
                held_ = true;
                why = {stats::Reason::process, added.error().what, {}};
                log::once(log::Level::info, "{} on {} is served by the kernel: {}", target.name,
                          rule.ring->attr().name, added.error().what);
            } else {
                why = {stats::Reason::no_room, added.error().what, {}};
                log::once(log::Level::warn, "{} on {} is served by the kernel: {}", target.name,
                          rule.ring->attr().name, added.error().what);
            }
        }
    } catch (...) {
        why.reason = stats::Reason::no_memory;
        log::once(log::Level::warn, "{} is served by the kernel: out of memory", target.name);
    }
    for (const Rule& rule : rules_) {
        if (has(now, rule)) continue;
        rule.ring->detach(rule.spec, target.sink);
        if (target.detached != nullptr) target.detached(*rule.ring);
    }
    rules_ = std::move(now);
    return list_rings();
}

bool FlowRules::move(Rule& rule, ring::Ring& to, const Target& target, std::string& why) {
    if (auto taken = to.take(rule.spec, target.sink, target.share, *rule.ring); !taken) {
        why = std::move(taken.error().what);
        return false;
    }
    if (target.attached != nullptr) target.attached(to);
    if (target.detached != nullptr) target.detached(*rule.ring);
    rule.ring = &to;
    return true;
}

bool FlowRules::lend(std::vector<ring::Ring*> rings) noexcept {
    lent_ = std::move(rings);
    return list_rings();
}

bool FlowRules::list_rings() noexcept {
    unsigned n = 0;
    bool moved = false;
    auto add = [&](ring::Ring* ring) {
        bool known = false;
        for (unsigned i = 0; i < n; i++) known |= &this->ring(i) == ring;
        if (known || n == kMaxRings) return;
        moved |= rings_[n++].exchange(ring, std::memory_order_relaxed) != ring;
    };
    for (const Rule& rule : rules_) add(rule.ring);
    for (ring::Ring* ring : lent_) add(ring);
    moved |= count_.exchange(n, std::memory_order_acq_rel) != n;
    return moved;
}

void FlowRules::follow(Stack& stack, Steered* socket) {
    if (follows_) return;
    stack.add_wildcard(socket);
    follows_ = true;
}

void FlowRules::unfollow(Stack& stack, Steered* socket) noexcept {
    if (follows_) stack.remove_wildcard(socket);
    follows_ = false;
}

}  // namespace vma::sockets
