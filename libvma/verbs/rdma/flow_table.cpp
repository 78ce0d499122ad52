// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/flow_table.h"

#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "libvma/runtime/log.h"

namespace vma::verbs::rdma {

FlowTable::FlowTable(Calls calls, RuleOptions options, std::uint8_t port, std::string device,
                     RuleClaims* claims)
    : calls_(std::move(calls)), options_(options), port_(port), device_(std::move(device)), claims_(claims) {}

FlowTable::~FlowTable() { withdraw(); }

// The adapter's form of the rule, with the netdev's present MAC.
HwRule FlowTable::for_adapter(const HwRule& key) const noexcept {
    HwRule rule = key;
    if (rule.dst_mac == MacAddress{}) rule.dst_mac = options_.mac;
    return rule;
}

// Null with errno. Makes the rule without the tag where the device refuses tags.
ibv_flow* FlowTable::make(const HwRule& key, std::uint32_t tag, bool over) {
    const HwRule rule = for_adapter(key);
    if (tag != 0 && !tags_refused_) {
        FlowAttr with_tag(rule, port_, tag, over);
        if (ibv_flow* made = calls_.create(with_tag.get())) return made;
        if (errno != EINVAL && errno != EOPNOTSUPP) return nullptr;
    }
    FlowAttr attr(rule, port_, 0, over);
    ibv_flow* made = calls_.create(attr.get());
    if (made != nullptr && tag != 0) tags_refused_ = true;
    return made;
}

void FlowTable::drop(ibv_flow* made) noexcept {
    if (made != nullptr) calls_.destroy(made);
}

bool FlowTable::claim(const HwRule& key, Rule& rule) const noexcept {
    if (claims_ == nullptr) return true;
    if (!claims_->claim(claim_of(key, port_))) return false;
    rule.claimed = claims_;
    return true;
}

// First the rule, then the claim: the next process's rule comes after this one's.
void FlowTable::drop(const HwRule& key, Rule& rule) noexcept {
    drop(std::exchange(rule.made, nullptr));
    if (RuleClaims* claims = std::exchange(rule.claimed, nullptr)) claims->release(claim_of(key, port_));
}

Result<Flow*> FlowTable::add(const FlowSpec& spec, std::uint32_t tag) {
    std::lock_guard hold(lock_);
    if (closed_) return fail(ENODEV, device_ + " failed");
    auto handle = std::make_unique<Handle>();
    handle->spec = spec;
    handle->key = hw_rule(spec, options_);
    if (!is_multicast(spec.dst_addr)) handle->key.dst_mac = {};
    auto [at, fresh] = rules_.try_emplace(handle->key);
    if (fresh && !claim(at->first, at->second)) {
        rules_.erase(at);
        // Another process has the port's rule. One for the peer alone goes before it.
        RuleOptions narrow = options_;
        narrow.tcp_3t = narrow.udp_3t = false;
        HwRule own = hw_rule(spec, narrow);
        own.dst_mac = {};
        const bool wider = own != handle->key;
        handle->key = own;
        std::tie(at, fresh) = rules_.try_emplace(own);
        if (fresh && (!wider || !claim(at->first, at->second))) {
            rules_.erase(at);
            return fail(EBUSY, "another process has a socket on the same port, and the adapter's rule");
        }
    }
    const HwRule& key = at->first;
    Rule& rule = at->second;
    if (fresh) {
        rule.tag = is_only_for(key, spec, options_) ? tag : 0;
        rule.made = make(key, rule.tag);
        if (tags_refused_) rule.tag = 0;
    }
    if (rule.made == nullptr) {
        const int error = errno;
        if (fresh) {
            drop(key, rule);
            rules_.erase(at);
        }
        return std::unexpected(flow_error(error, for_adapter(handle->key), device_));
    }
    rule.users++;
    return handle.release();
}

void FlowTable::remove(Flow* flow) noexcept {
    std::unique_ptr<Handle> handle(static_cast<Handle*>(flow));
    std::lock_guard hold(lock_);
    auto at = rules_.find(handle->key);
    if (at == rules_.end() || --at->second.users != 0) return;
    drop(at->first, at->second);
    rules_.erase(at);
}

Result<Flow*> FlowTable::take(FlowTable& from, Flow* flow, std::uint32_t tag) {
    auto* const handle = static_cast<Handle*>(flow);
    const std::scoped_lock both(lock_, from.lock_);
    if (closed_ || from.closed_) return fail(ENODEV, device_ + " failed");
    const auto old = from.rules_.find(handle->key);
    if (old == from.rules_.end() || old->second.users != 1 || old->second.made == nullptr || old->second.over)
        return fail(EBUSY, "the adapter's rule serves other flows, too");
    const auto [at, fresh] = rules_.try_emplace(handle->key);
    if (!fresh) return fail(EBUSY, "the adapter's rule serves other flows, too");
    Rule& rule = at->second;
    rule.tag = is_only_for(at->first, flow->spec, options_) ? tag : 0;
    rule.users = 1;
    rule.made = make(at->first, rule.tag, true);
    if (rule.made == nullptr) {
        const int error = errno;
        rules_.erase(at);
        return std::unexpected(flow_error(error, for_adapter(handle->key), device_));
    }
    rule.claimed = old->second.claimed;
    drop(old->second.made);
    from.rules_.erase(old);
    if (ibv_flow* settled = make(at->first, rule.tag); settled != nullptr)
        drop(std::exchange(rule.made, settled));
    else
        rule.over = true;
    if (tags_refused_) rule.tag = 0;
    return handle;
}

void FlowTable::set_mac(const MacAddress& mac) noexcept {
    std::lock_guard hold(lock_);
    if (mac == options_.mac) return;
    options_.mac = mac;
    for (auto& [key, rule] : rules_) {
        if (key.dst_mac != MacAddress{} || rule.made == nullptr) continue;
        ibv_flow* made = make(key, rule.tag, rule.over);
        if (made == nullptr) {
            log::warn("{}", flow_error(errno, for_adapter(key), device_).what);
            continue;
        }
        drop(std::exchange(rule.made, made));
    }
}

void FlowTable::close() noexcept {
    std::lock_guard hold(lock_);
    closed_ = true;
}

void FlowTable::withdraw() noexcept {
    std::lock_guard hold(lock_);
    closed_ = true;
    for (auto& [key, rule] : rules_) drop(key, rule);
}

void FlowTable::forget() noexcept {
    for (auto& [key, rule] : rules_) rule.made = nullptr;
}

std::size_t FlowTable::rules() const noexcept {
    std::lock_guard hold(lock_);
    return rules_.size();
}

}  // namespace vma::verbs::rdma
