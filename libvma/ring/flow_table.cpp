// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/flow_table.h"

#include <algorithm>
#include <new>

#include "libvma/ring/live_flows.h"

namespace vma::ring {
namespace {

constexpr std::size_t kPlaces = 4096;

}  // namespace

void FlowTable::close() noexcept {
    for (auto& [key, entry] : flows_) {
        if (entry->flow == nullptr) continue;
        device_->destroy_flow(entry->flow);
        live_flows::remove(entry->spec);
        disown(entry->spec);
    }
    flows_.clear();
    last_ = nullptr;
    tags_.clear();
}

FlowTable::Entry* FlowTable::search(const Key& key, const net::ParsedFrame& f) noexcept {
    auto it = flows_.find(key);
    if (it == flows_.end()) it = flows_.find(key_of({f.protocol, f.dst_addr, f.dst_port, 0, 0}));
    if (it == flows_.end()) return nullptr;
    last_key_ = key;
    last_ = it->second.get();
    return last_;
}

// 0: no tag.
std::uint32_t FlowTable::take_tag(Entry& entry) {
    const std::uint32_t most = device_->attr().flow_tags;
    if (most == 0) return 0;
    if (five_tuples_.empty()) {
        tags_.reserve(1);
        five_tuples_.resize(kPlaces);
        tags_.push_back(nullptr);  // 0 is none
    }
    const verbs::FlowSpec& s = entry.spec;
    entry.place =
        static_cast<std::uint32_t>(Hash()(key_of({s.protocol, s.dst_addr, s.dst_port, 0, 0})) % kPlaces);
    if (!free_tags_.empty()) {
        entry.tag = free_tags_.back();
        free_tags_.pop_back();
    } else if (tags_.size() <= most) {
        free_tags_.reserve(tags_.size() + 1);  // so that drop_tag() needs no memory
        tags_.push_back(nullptr);
        entry.tag = static_cast<std::uint32_t>(tags_.size() - 1);
    }
    tags_[entry.tag] = entry.tag != 0 ? &entry : nullptr;
    if (s.is_five_tuple()) five_tuples_[entry.place]++;
    return entry.tag;
}

void FlowTable::drop_tag(Entry& entry) noexcept {
    if (five_tuples_.empty()) return;
    if (entry.spec.is_five_tuple()) five_tuples_[entry.place]--;
    if (entry.tag == 0) return;
    tags_[entry.tag] = nullptr;
    free_tags_.push_back(entry.tag);
}

// Several sinks share the flow.
FrameSink* FlowTable::pick(const Entry& entry, const net::ParsedFrame& f) noexcept {
    Share group = Share::spread_any;
    for (auto s = entry.sinks.rbegin(); s != entry.sinks.rend() && group == Share::spread_any; ++s) {
        if (s->second == Share::latest || s->second == Share::only) return s->first;
        group = s->second;
    }
    // A SO_REUSEPORT group: every datagram of a peer goes to the same member.
    std::uint64_t h = (std::uint64_t{f.src_addr} << 16 | f.src_port) * 0x9e3779b97f4a7c15u;
    std::size_t members = 0;
    for (auto& s : entry.sinks) members += s.second == group;
    std::size_t pick = static_cast<std::size_t>((h >> 32) % members);
    for (auto& s : entry.sinks)
        if (s.second == group && pick-- == 0) return s.first;
    return entry.sinks.back().first;
}

Result<void> FlowTable::attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share, bool device_works) {
    last_ = nullptr;
    if (auto it = flows_.find(key_of(spec)); it != flows_.end()) {
        if (share == Share::only) return std::unexpected(Error{EEXIST, "the flow is another socket's"});
        it->second->sinks.emplace_back(sink, share);
        sinks_++;
        return {};
    }
    auto entry = std::make_unique<Entry>();
    entry->spec = spec;
    entry->sinks.emplace_back(sink, share);
    if (owners_ != nullptr && owners_->claim(spec, ring_) != ring_)
        return std::unexpected(Error{EEXIST, "the flow is another ring's"});
    std::unordered_map<Key, std::unique_ptr<Entry>, Hash>::iterator at;
    try {
        at = flows_.emplace(key_of(spec), std::move(entry)).first;
    } catch (const std::bad_alloc&) {
        disown(spec);
        throw;
    }
    Entry& placed = *at->second;
    Result<verbs::Flow*> flow = vma::fail(ENODEV, "the device has failed");
    bool tagged = false;
    auto undo = [&] {
        if (tagged) drop_tag(placed);
        flows_.erase(at);
        disown(spec);
    };
    try {
        const std::uint32_t tag = take_tag(placed);
        tagged = true;
        if (device_works) flow = device_->create_flow(qp_, spec, tag);
    } catch (const std::bad_alloc&) {
        undo();
        throw;
    }
    if (!flow) {
        undo();
        return std::unexpected(flow.error());
    }
    placed.flow = *flow;
    live_flows::add(spec);
    sinks_++;
    if (spec.protocol == IPPROTO_TCP && spec.src_addr != 0) tcp_connections_++;
    return {};
}

Result<const FlowTable::Entry*> FlowTable::take(const verbs::FlowSpec& spec, FrameSink* sink, Share share,
                                                FlowTable& from) {
    last_ = from.last_ = nullptr;
    const auto old = from.flows_.find(key_of(spec));
    if (owners_ == nullptr || old == from.flows_.end() || old->second->flow == nullptr ||
        old->second->sinks.size() != 1 || old->second->sinks.front().first != sink)
        return vma::fail(EBUSY, "other sockets have its rule, too");
    Entry& left = *old->second;
    auto entry = std::make_unique<Entry>();
    entry->spec = spec;
    entry->sinks.emplace_back(sink, share);
    const auto [at, fresh] = flows_.try_emplace(key_of(spec), std::move(entry));
    if (!fresh) return vma::fail(EBUSY, "the ring is about to lose such a rule");
    Entry& placed = *at->second;
    // First, since it can be undone.
    if (!owners_->pass(spec, from.ring_, ring_)) {
        flows_.erase(at);
        return vma::fail(EBUSY, "other sockets have its rule, too");
    }
    Result<verbs::Flow*> flow = vma::fail(ENOMEM, "out of memory");
    bool tagged = false;
    try {
        const std::uint32_t tag = take_tag(placed);
        tagged = true;
        flow = device_->take_flow(qp_, *from.device_, left.flow, tag);
    } catch (const std::bad_alloc&) {
        // as `flow` says
    }
    if (!flow) {
        owners_->pass(spec, ring_, from.ring_);
        if (tagged) drop_tag(placed);
        flows_.erase(at);
        return std::unexpected(flow.error());
    }
    placed.flow = *flow;
    left.flow = nullptr;
    sinks_++;
    taken_++;
    from.sinks_--;
    return &left;
}

Ring* FlowTable::home_of(const net::ParsedFrame& f) const noexcept {
    if (owners_ == nullptr || !owners_->any_passed()) return nullptr;
    Ring* home = owners_->find({f.protocol, f.dst_addr, f.dst_port, f.src_addr, f.src_port});
    if (home == nullptr) home = owners_->find({f.protocol, f.dst_addr, f.dst_port, 0, 0});
    return home != ring_ ? home : nullptr;
}

FlowTable::Entry* FlowTable::begin_detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept {
    last_ = nullptr;
    auto it = flows_.find(key_of(spec));
    auto is_sink = [&](auto& s) { return s.first == sink; };
    if (it == flows_.end() || std::ranges::none_of(it->second->sinks, is_sink)) return nullptr;
    Entry& entry = *it->second;
    sinks_--;
    if (entry.sinks.size() > 1) {
        std::erase_if(entry.sinks, is_sink);
        return nullptr;
    }
    if (entry.flow != nullptr) {
        device_->destroy_flow(entry.flow);
        live_flows::remove(spec);
    }
    entry.flow = nullptr;
    disown(spec);
    return &entry;
}

void FlowTable::finish_detach(const verbs::FlowSpec& spec, const Entry* entry) noexcept {
    last_ = nullptr;
    // Sinks may have added flows meanwhile, so the place is another one.
    auto it = flows_.find(key_of(spec));
    if (it == flows_.end() || it->second.get() != entry) return;
    drop_tag(*it->second);
    flows_.erase(it);
}

}  // namespace vma::ring
