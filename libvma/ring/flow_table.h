// SPDX-License-Identifier: BSD-2-Clause
// Which frame is for which sink: the flow rules of a ring, and the sinks of each.
//
// The table installs a rule in the device with the first sink of a flow, and destroys it with the last. A
// frame belongs to the rule with its peer (5-tuple), if there is one, else to the rule without one (3-tuple).
//
// Tags: the device can say which rule took a frame, so that the table need not be searched. A tag proves
// little by itself. A frame that was in the queue may carry the tag of a rule that went, and meanwhile
// another rule may have the number; so the rule has to match. And a frame that a 3-tuple rule took may be one
// of a connection that got its own rule a moment later. Where there are such rules for the address and port
// (or for others with the same hash), the table is searched.
//
// Locks: the caller holds the receive lock. Entries are the table's; sinks stay the caller's and must detach
// before they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libvma/net/frame.h"
#include "libvma/ring/frame_sink.h"
#include "libvma/ring/rule_owners.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class FlowTable {
  public:
    struct Entry {
        verbs::FlowSpec spec;
        verbs::Flow* flow = nullptr;  // the device's rule
        std::uint32_t tag = 0;
        std::uint32_t place = 0;                          // in five_tuples_
        std::vector<std::pair<FrameSink*, Share>> sinks;  // in order of attachment
    };

    // Rules are those of `qp`. `owners`: of the interface, for `ring`; null where it has one ring only. Once.
    void open(verbs::Device& device, ibv_qp* qp, RuleOwners* owners, Ring* ring) noexcept {
        device_ = &device;
        qp_ = qp;
        owners_ = owners;
        ring_ = ring;
    }
    // Destroys all rules. The device is there still.
    void close() noexcept;

    // ---- for each frame ----
    // The flow of the frame that `wc` completed; null: no rule here matches it.
    [[gnu::always_inline]] Entry* find(const net::ParsedFrame& f, const ibv_wc& wc) noexcept {
        if ((wc.wc_flags & verbs::kWcFlowTag) != 0)
            if (Entry* entry = by_tag(verbs::flow_tag(wc), f)) return entry;
        const Key key = key_of({f.protocol, f.dst_addr, f.dst_port, f.src_addr, f.src_port});
        return last_ != nullptr && key == last_key_ ? last_ : search(key, f);
    }
    // Would the kernel take a frame of this source, too? Asked where the device cannot tell.
    bool accepts(const Entry& entry, in_addr_t source) const noexcept {
        return __builtin_expect(sources_ == nullptr, 1) || entry.spec.is_five_tuple() ||
               sources_->accepts(source);
    }
    static FrameSink* sink_of(const Entry& entry, const net::ParsedFrame& f) noexcept {
        return __builtin_expect(entry.sinks.size() == 1, 1) ? entry.sinks.back().first : pick(entry, f);
    }

    // ---- control ----
    // Errors: EEXIST, for Share::only, and where another ring has the rule; those of Device::create_flow();
    // ENODEV unless `device_works`. May throw std::bad_alloc, and nothing has changed then.
    Result<void> attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share, bool device_works);
    // Takes the sink off its flow. If it was the last one, the device's rule is destroyed, so that new frames
    // go to the kernel. The entry stays, for frames in the device's queue, and is returned: finish_detach().
    Entry* begin_detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept;
    // Moves the flow of `spec`, which is `sink`'s alone, from `from` here, with the device's rule. `from`
    // keeps an entry for frames in its device's queue, which is returned: from.finish_detach(). The caller
    // holds both locks. Errors, after which all is as before: EBUSY where others share the flow or the rule,
    // those of Device::take_flow(). May throw std::bad_alloc.
    Result<const Entry*> take(const verbs::FlowSpec& spec, FrameSink* sink, Share share, FlowTable& from);
    // Where rules move: the ring that has the rule of a frame which has none here. Null: none has.
    Ring* home_of(const net::ParsedFrame& f) const noexcept;
    // `entry` may be gone by now: sinks detach while frames are delivered to them.
    void finish_detach(const verbs::FlowSpec& spec, const Entry* entry) noexcept;
    // Where the device steers coarsely; else the device knows the sources.
    void set_sources(std::unique_ptr<const net::SourceFilter>& sources) noexcept { sources_.swap(sources); }
    template <class F>
    void for_each_sink(const verbs::FlowSpec& spec, F&& visit) {
        if (auto it = flows_.find(key_of(spec)); it != flows_.end())
            for (auto& sink : it->second->sinks) visit(*sink.first);
    }
    std::uint32_t sinks() const noexcept { return sinks_; }
    std::size_t rules() const noexcept { return flows_.size(); }
    // Connections that had a rule of their own.
    std::uint64_t tcp_connections() const noexcept { return tcp_connections_; }
    // Flows that came here by take().
    std::uint64_t taken() const noexcept { return taken_; }

  private:
    struct Key {
        std::uint64_t a, b;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct Hash {
        std::size_t operator()(const Key& k) const noexcept {
            std::uint64_t h = (k.a ^ (k.b * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
            return static_cast<std::size_t>(h ^ (h >> 32));
        }
    };
    static Key key_of(const verbs::FlowSpec& s) noexcept {
        return {(std::uint64_t{s.dst_addr} << 32) | s.src_addr,
                (std::uint64_t{s.dst_port} << 32) | (std::uint64_t{s.src_port} << 16) | s.protocol};
    }
    Entry* by_tag(std::uint32_t tag, const net::ParsedFrame& f) const noexcept {
        if (tag >= tags_.size() || tags_[tag] == nullptr) return nullptr;
        Entry* entry = tags_[tag];
        const verbs::FlowSpec& s = entry->spec;
        if (s.dst_addr != f.dst_addr || s.dst_port != f.dst_port || s.protocol != f.protocol) return nullptr;
        if (s.is_five_tuple()) return s.src_addr == f.src_addr && s.src_port == f.src_port ? entry : nullptr;
        return five_tuples_[entry->place] == 0 ? entry : nullptr;
    }
    Entry* search(const Key& key, const net::ParsedFrame& f) noexcept;
    static FrameSink* pick(const Entry& entry, const net::ParsedFrame& f) noexcept;
    std::uint32_t take_tag(Entry& entry);
    void disown(const verbs::FlowSpec& spec) noexcept {
        if (owners_ != nullptr) owners_->release(spec, ring_);
    }
    void drop_tag(Entry& entry) noexcept;

    // What a frame touches.
    std::vector<Entry*> tags_;                // by tag; null: not in use
    std::vector<std::uint32_t> five_tuples_;  // rules with a peer, by a hash of their 3-tuple: there a
                                              // 3-tuple's tag does not say it all
    Entry* last_ = nullptr;                   // of the frame before: usually this frame's, too
    Key last_key_{};
    std::unique_ptr<const net::SourceFilter> sources_;
    std::unordered_map<Key, std::unique_ptr<Entry>, Hash> flows_;
    std::vector<std::uint32_t> free_tags_;
    verbs::Device* device_ = nullptr;
    ibv_qp* qp_ = nullptr;
    RuleOwners* owners_ = nullptr;
    Ring* ring_ = nullptr;
    std::uint32_t sinks_ = 0;  // attached
    std::uint64_t tcp_connections_ = 0, taken_ = 0;
};

}  // namespace vma::ring
