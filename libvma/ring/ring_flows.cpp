// SPDX-License-Identifier: BSD-2-Clause
// Which frame is whose: the flow table of a ring, and who comes and goes in it.
#include <algorithm>
#include <new>

#include "libvma/ring/ring.h"
#include "libvma/runtime/log.h"

namespace vma::ring {

Ring::FlowEntry* Ring::find_flow(const net::ParsedFrame& f) noexcept {
    verbs::FlowSpec five{f.protocol, f.dst_addr, f.dst_port, f.src_addr, f.src_port};
    FlowKey key = key_of(five);
    if (last_flow_ != nullptr && key == last_key_) return last_flow_;
    auto it = flows_.find(key);
    if (it == flows_.end()) it = flows_.find(key_of({f.protocol, f.dst_addr, f.dst_port, 0, 0}));
    if (it == flows_.end()) return nullptr;
    last_key_ = key;
    last_flow_ = it->second.get();
    return last_flow_;
}

// ---- tags ----
//
// The device says which rule took a frame, so the table need not be searched. A tag proves little by itself:
// a frame that was in the queue may carry the tag of a rule that went, and meanwhile another rule may have
// the number. So the rule has to match. And a frame that a 3-tuple rule took may be one of a connection that
// got its own rule a moment later: where there are such rules for the address and port (or for others with
// the same hash), the table is searched.

constexpr std::size_t kPlaces = 4096;

Ring::FlowEntry* Ring::flow_of_tag(std::uint32_t tag, const net::ParsedFrame& f) const noexcept {
    if (tag >= tags_.size() || tags_[tag] == nullptr) return nullptr;
    FlowEntry* entry = tags_[tag];
    const verbs::FlowSpec& s = entry->spec;
    if (s.dst_addr != f.dst_addr || s.dst_port != f.dst_port || s.protocol != f.protocol) return nullptr;
    if (s.is_five_tuple()) return s.src_addr == f.src_addr && s.src_port == f.src_port ? entry : nullptr;
    return five_tuples_[entry->place] == 0 ? entry : nullptr;
}

// 0: no tag. With rx_lock_ held, as drop_tag().
std::uint32_t Ring::take_tag(FlowEntry& entry) {
    const std::uint32_t most = device_->attr().flow_tags;
    if (most == 0) return 0;
    if (five_tuples_.empty()) {
        tags_.reserve(1);
        five_tuples_.resize(kPlaces);
        tags_.push_back(nullptr);  // 0 is none
    }
    const verbs::FlowSpec& s = entry.spec;
    entry.place =
        static_cast<std::uint32_t>(FlowHash()(key_of({s.protocol, s.dst_addr, s.dst_port, 0, 0})) % kPlaces);
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

void Ring::drop_tag(FlowEntry& entry) noexcept {
    if (five_tuples_.empty()) return;
    if (entry.spec.is_five_tuple()) five_tuples_[entry.place]--;
    if (entry.tag == 0) return;
    tags_[entry.tag] = nullptr;
    free_tags_.push_back(entry.tag);
}

// ---- sinks ----

FrameSink* Ring::pick_sink(const FlowEntry& entry, const net::ParsedFrame& f) noexcept {
    if (entry.sinks.size() == 1) return entry.sinks.back().first;
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

Result<void> Ring::attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share) {
    RxHold hold(*this);
    last_flow_ = nullptr;
    // One that is to go any moment is none any more.
    if (share == Share::only && hold.mine && any_doomed_.load(std::memory_order_acquire)) detach_doomed();
    if (auto it = flows_.find(key_of(spec)); it != flows_.end()) {
        if (share == Share::only) return std::unexpected(Error{EEXIST, "the flow is another socket's"});
        it->second->sinks.emplace_back(sink, share);
        sinks_++;
        return {};
    }
    auto entry = std::make_unique<FlowEntry>();
    entry->spec = spec;
    entry->sinks.emplace_back(sink, share);
    const auto at = flows_.emplace(key_of(spec), std::move(entry)).first;
    FlowEntry& placed = *at->second;
    Result<verbs::Flow*> flow = vma::fail(ENODEV, "the device has failed");
    bool tagged = false;
    auto undo = [&] {
        if (tagged) drop_tag(placed);
        flows_.erase(at);
    };
    try {
        const std::uint32_t tag = take_tag(placed);
        tagged = true;
        if (!failed()) flow = device_->create_flow(qp_, spec, tag);
    } catch (const std::bad_alloc&) {
        undo();
        throw;
    }
    if (!flow) {
        undo();
        return std::unexpected(flow.error());
    }
    placed.flow = *flow;
    sinks_++;
    if (spec.protocol == IPPROTO_TCP && spec.src_addr != 0) rx_counters_.tcp_connections++;
    return {};
}

void Ring::detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept {
    RxHold hold(*this);
    detach_locked(spec, sink, true);
}

void Ring::detach_soon(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept {
    doomed_lock_.lock();
    try {
        doomed_.push_back({spec, sink, drain});
    } catch (...) {
        // No memory: the rule stays, its frames are dropped by the sink, which lives on.
    }
    any_doomed_.store(true, std::memory_order_seq_cst);
    doomed_lock_.unlock();
    attend();
}

void Ring::attend() noexcept {
    if (rx_lock_.owned_by_me() || !rx_lock_.try_lock()) return;  // its owner sees the mark
    rx_unlock();
}

void Ring::detach_doomed() noexcept {
    for (;;) {
        doomed_lock_.lock();
        if (broken_.load(std::memory_order_relaxed)) {
            doomed_lock_.unlock();
            recover();
            continue;
        }
        if (doomed_.empty()) {
            any_doomed_.store(false, std::memory_order_relaxed);
            doomed_lock_.unlock();
            return;
        }
        const auto [spec, sink, drain] = doomed_.back();
        doomed_.pop_back();
        doomed_lock_.unlock();
        // What is in the ring already may be of the next connection with these numbers, whose peer was quick.
        detach_locked(spec, sink, drain);
        sink->detached(*this);
    }
}

// `drain`: the sink still gets what is in the ring already.
void Ring::detach_locked(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept {
    last_flow_ = nullptr;
    std::erase(idle_, sink);
    auto it = flows_.find(key_of(spec));
    auto is_sink = [&](auto& s) { return s.first == sink; };
    if (it != flows_.end() && std::ranges::any_of(it->second->sinks, is_sink)) {
        FlowEntry& entry = *it->second;
        sinks_--;
        if (entry.sinks.size() == 1) {
            // First the rule, so that new frames go to the kernel; then what is already in the ring is
            // delivered.
            if (entry.flow != nullptr) device_->destroy_flow(entry.flow);
            entry.flow = nullptr;
            // Not from within a batch: the completions it took are being handed out.
            for (int i = 0; drain && batch_.empty() && i < 4096 && poll_locked() != 0; i++) {
            }
            last_flow_ = nullptr;
            // Sinks may have added flows meanwhile, so the place is another one.
            it = flows_.find(key_of(spec));
            if (it == flows_.end() || it->second.get() != &entry) return;
            drop_tag(entry);
            flows_.erase(it);
        } else {
            std::erase_if(entry.sinks, is_sink);
        }
    }
}

void Ring::set_sources(verbs::Sources sources) {
    if (!device_->attr().coarse_steering) {
        if (auto set = device_->set_sources(sources); !set)
            log::once(log::Level::info,
                      "what has no connection yet reaches sockets on {} through the kernel: {}", attr().name,
                      set.error().what);
        return;
    }
    auto fresh = std::make_unique<const verbs::Sources>(std::move(sources));
    RxHold hold(*this);
    sources_.swap(fresh);
}

void Ring::icmp_error(const verbs::FlowSpec& spec, const IcmpError& error) noexcept {
    RxHold hold(*this);
    auto it = flows_.find(key_of(spec));
    if (it == flows_.end()) return;
    for (auto& sink : it->second->sinks) sink.first->icmp_error(*this, error);
}

}  // namespace vma::ring
