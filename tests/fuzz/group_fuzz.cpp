// SPDX-License-Identifier: BSD-2-Clause
// Hostile traffic to multicast groups: a ring whose device steers by the group's station address alone, as
// an adapter with rules of layer 2 does, and sockets with memberships, source filters, peers and limits
// behind it. 32 groups share a station address, so frames of others arrive; frames are fragments, have wrong
// sums and lengths, come from spoofed sources, or are any bytes.
//
// A model of the rules decides who gets what, without the library's code. Each socket must get each
// datagram that is for it once, nothing else, and in the end all buffers must be back.
//
// Input: options, then operations of a byte and their arguments.
#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/udp/group_sink.h"
#include "libvma/sockets/udp/memberships.h"
#include "tests/fuzz/input.h"
#include "tests/support/wire/udp_frames.h"
#include "tests/support/wire/wire_device.h"

using namespace vma;
using sockets::GroupFilter;
using sockets::GroupListener;
using sockets::GroupSink;
using sockets::Memberships;
using udp_frames::Bytes;

namespace {

constexpr int kIfindex = 7;
constexpr std::uint16_t kPorts[] = {5000, 5001};
// The last two have the station address of the first one; the last one has no rule.
constexpr const char* kGroups[] = {"239.1.2.3", "239.1.2.4", "239.129.2.3", "224.1.2.3"};
constexpr std::size_t kRules = 3;
constexpr const char* kSources[] = {"198.18.1.2", "198.18.1.102", "203.0.113.9",     "198.18.1.1",
                                    "127.0.0.1",  "239.1.2.3",    "255.255.255.255", "0.0.0.0"};
constexpr std::size_t kGoodSources = 3;  // the others are the host's own, or of no host
constexpr std::size_t kSockets = 4;
constexpr std::uint16_t kPeerPorts[] = {6000, 6001};

// What a socket is to receive, kept apart from the library's values.
struct Wanted {
    struct Member {
        bool joined = false, exclude = true;
        std::set<unsigned> sources;  // numbers in kSources
    };
    std::array<Member, kRules> groups;
    unsigned bound = 0;  // 0: all addresses; else a group's number plus 1, or more: no group
    bool all = true;
    int peer = -1, peer_port = -1;  // -1: any; of kSources but its last, which means "any"
    std::size_t port = 0;

    bool wants(unsigned group, std::size_t to_port) const {
        const Member& m = groups[group];
        return port == to_port && (bound == 0 || bound == group + 1) &&
               (m.joined ? m.exclude || !m.sources.empty() : all);
    }
    bool receives(unsigned group, std::size_t to_port, unsigned source, unsigned source_port) const {
        const Member& m = groups[group];
        if (!wants(group, to_port)) return false;
        if (peer >= 0 && peer != static_cast<int>(source)) return false;
        if (peer_port >= 0 && peer_port != static_cast<int>(source_port)) return false;
        return !m.joined || m.sources.contains(source) != m.exclude;
    }
};

struct Socket final : sockets::GroupReceiver {
    bool deliver_group(ring::RxBuffer* b) noexcept override {
        if (held.size() >= limit) return false;
        held.push_back(b);
        fresh++;
        return true;
    }
    void give_back(std::size_t which) {
        ring::RxBuffer* b = held[which];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        b->release();
    }
    Wanted wanted;
    GroupListener listener;
    std::vector<ring::RxBuffer*> held;
    std::size_t limit = 5, fresh = 0;
};

class Run {
  public:
    Run(const std::uint8_t* data, std::size_t size) : in_(data, size) {
        const auto how = in_.take<std::uint8_t>();
        auto made = wire_.connect({.chunk_size = how & 1 ? 512u : 2048u,
                                   .max_recv_wr = 256,
                                   .flow_tags = how & 2 ? 4u : 0u,
                                   .coarse_steering = (how & 4) != 0,
                                   .partial_sums = false});
        coarse_ = how & 4;
        device_ = made.get();
        auto created = ring::Ring::create(std::move(made), {.huge_pages = false});
        FUZZ_CHECK(created.has_value());
        ring_ = std::move(*created);
        if (coarse_) ring_->set_sources(net::SourceFilter({{0, 0, true}, {ip4(kSources[3]), 32, false}}));
        for (Socket& s : sockets_) name(s);
    }
    ~Run() {
        for (unsigned rule = 0; rule < attached_.size(); rule++)
            if (attached_[rule]) ring_->detach(spec(rule), &sinks_[rule]);
        for (Socket& s : sockets_)
            while (!s.held.empty()) s.give_back(s.held.size() - 1);
        poll();
        const ring::BufferCounts counts = ring_->buffer_counts();
        FUZZ_CHECK(counts.rx_posted + counts.rx_free == counts.rx_total);
        FUZZ_CHECK(device_->violations() == 0);
    }

    void run() {
        for (int i = 0; i < 200 && !in_.rest().empty(); i++) {
            const auto op = in_.take<std::uint8_t>();
            if (op % 8 < 4) look();
            switch (op % 8) {
                case 0:
                    membership(sockets_[op / 8 % kSockets]);
                    break;
                case 1:
                    rename(sockets_[op / 8 % kSockets]);
                    break;
                case 2:
                    rule(op / 8 % attached_.size());
                    break;
                case 3:
                    give_back(sockets_[op / 8 % kSockets]);
                    break;
                default:
                    frame(op / 8);
            }
        }
    }

  private:
    static in_addr_t ip4(const char* text) { return inet_addr(text); }
    // A rule for each group and port.
    static verbs::FlowSpec spec(std::size_t rule) {
        return {IPPROTO_UDP, ip4(kGroups[rule % kRules]), htons(kPorts[rule / kRules]), 0, 0};
    }

    // ---- what sockets want ----
    void membership(Socket& s) {
        const auto what = in_.take<std::uint8_t>(), list = in_.take<std::uint8_t>();
        const unsigned group = what % kRules;
        Wanted::Member& m = s.wanted.groups[group];
        m = {.joined = (what & 4) != 0, .exclude = (what & 8) != 0, .sources = {}};
        GroupFilter filter{.exclude = m.exclude, .sources = {}};
        for (unsigned i = 0; i < 8; i++)
            if ((list >> i & 1) != 0) {
                m.sources.insert(i);
                filter.sources.push_back(ip4(kSources[i]));
            }
        if (m.joined)
            s.listener.memberships.set(ip4(kGroups[group]), kIfindex, filter);
        else
            s.listener.memberships.erase(ip4(kGroups[group]), kIfindex);
        settle();
    }
    void rename(Socket& s) {
        const auto what = in_.take<std::uint8_t>(), peers = in_.take<std::uint8_t>();
        s.wanted.bound = what % 5;
        s.wanted.all = (what & 32) == 0;
        s.wanted.port = what >> 6 & 1;
        s.wanted.peer = peers & 8 ? peers % 7 : -1;
        s.wanted.peer_port = peers & 16 ? peers >> 5 & 1 : -1;
        s.limit = peers & 128 ? 2 : 5;
        name(s);
        settle();
    }
    static void name(Socket& s) {
        const Wanted& w = s.wanted;
        const in_addr_t local = w.bound == 0        ? 0
                                : w.bound <= kRules ? ip4(kGroups[w.bound - 1])
                                                    : ip4(kSources[3]);
        s.listener.ends.local = net::Endpoint(local, htons(kPorts[w.port]));
        s.listener.ends.remote = net::Endpoint(w.peer >= 0 ? ip4(kSources[w.peer]) : 0,
                                               htons(w.peer_port >= 0 ? kPeerPorts[w.peer_port] : 0));
        s.listener.all = w.all;
    }
    // As Groups does it: each sink has those that want its group.
    void settle() {
        for (std::size_t rule = 0; rule < attached_.size(); rule++) {
            const unsigned group = rule % kRules;
            std::vector<GroupSink::Entry> entries;
            for (Socket& s : sockets_) {
                const GroupListener& l = s.listener;
                const bool wants = l.wants(ip4(kGroups[group]), htons(kPorts[rule / kRules]), kIfindex);
                FUZZ_CHECK(wants == s.wanted.wants(group, rule / kRules));
                if (!wants) continue;
                const Memberships::Entry* joined = l.memberships.find(ip4(kGroups[group]), kIfindex);
                entries.push_back({&s, l.senders(ip4(kGroups[group]), kIfindex),
                                   joined != nullptr ? joined->counters : nullptr});
            }
            ring_->while_quiet([&] { sinks_[rule].swap(entries); });
        }
    }
    void rule(std::size_t number) {
        if (attached_[number])
            ring_->detach(spec(number), &sinks_[number]);
        else
            FUZZ_CHECK(ring_->attach(spec(number), &sinks_[number], ring::Share::only).has_value());
        attached_[number] = !attached_[number];
        settle();
    }

    // ---- frames ----
    // What the library owes a frame: the model's answer, refusal, or nothing but consistency.
    enum class Fate { judged, refused, unknown };

    void frame(unsigned op) {
        const auto who = in_.take<std::uint8_t>(), damage = in_.take<std::uint8_t>();
        const auto length = in_.take<std::uint16_t>();
        const unsigned group = who % 4, source = who / 4 % 8, source_port = who / 32 % 2;
        const std::size_t port = who / 64 % 2;
        udp_frames::Udp u;
        u.dst_mac = {1, 0, 0x5e, 1, 2, 3};
        u.src = kSources[source];
        u.dst = kGroups[group];
        u.src_port = kPeerPorts[source_port];
        u.dst_port = kPorts[port];
        u.payload = udp_frames::pattern(length % 1400);
        Bytes bytes = udp_frames::make(u);
        if (damage & 64) std::fill_n(&bytes[udp_frames::kUdp + 6], 2, std::uint8_t{0});  // no sum
        const Fate fate = spoil(bytes, damage);
        device_->receive_unsteered(std::move(bytes));
        queued_ |= fate == Fate::unknown || (op & 16) != 0;
        if (op & 16) return;  // more come before the ring looks
        if (queued_) return look();
        poll();
        const bool there = fate == Fate::judged && group < kRules && attached_[port * kRules + group] &&
                           (!coarse_ || source < kGoodSources);
        for (const Socket& s : sockets_)
            expect(s, there && s.wanted.receives(group, port, source, source_port));
        look();
    }
    Fate spoil(Bytes& bytes, std::uint8_t damage) {
        using namespace udp_frames;
        switch (damage % 16) {
            case 0:  // more fragments
                put16(bytes, kIp + 6, 0x2000);
                seal_ip(bytes);
                return Fate::refused;
            case 1:  // a later fragment
                put16(bytes, kIp + 6, 1u + in_.take<std::uint8_t>());
                seal_ip(bytes);
                return Fate::refused;
            case 2:
                bytes[kIp + 10] ^= 0x10;
                return Fate::refused;
            case 3:
                put16(bytes, kUdp + 4, get16(bytes, kUdp + 4) + 1);
                return Fate::refused;
            case 4:
                put16(bytes, kIp + 2, get16(bytes, kIp + 2) + 1);
                seal_ip(bytes);
                return Fate::refused;
            case 5:  // options
                bytes[kIp] = 0x46;
                seal_ip(bytes);
                return Fate::refused;
            case 6:
                if ((damage & 64) != 0 || get16(bytes, kUdp + 6) == 0x1000) return Fate::judged;
                bytes[kUdp + 6] ^= 0x10;
                return Fate::refused;
            case 7:
                bytes.resize(bytes.size() - 1 - in_.take<std::uint8_t>() % (bytes.size() - 1));
                return Fate::refused;
            case 8:  // any bytes
                for (int i = 0; i < 4; i++) {
                    const auto at = in_.take<std::uint8_t>();
                    bytes[at % bytes.size()] = in_.take<std::uint8_t>();
                }
                return Fate::unknown;
            case 9:  // what the datagram leaves of its packet is padding
                put16(bytes, kUdp + 4, in_.take<std::uint16_t>());
                return Fate::unknown;
            default:
                return Fate::judged;
        }
    }
    // Once, or not at all; what was there before the frame says whether there was room.
    static void expect(const Socket& s, bool wanted) {
        FUZZ_CHECK(s.fresh == (wanted && s.held.size() - s.fresh < s.limit ? 1u : 0u));
    }
    // What has come since the last look is at least for this socket.
    void look() {
        poll();
        for (Socket& s : sockets_) {
            for (; s.fresh != 0; s.fresh--) check(s, *s.held[s.held.size() - s.fresh]);
        }
        queued_ = false;
    }
    static void check(const Socket& s, const ring::RxBuffer& b) {
        Bytes payload(b.payload_length);
        const iovec iov{payload.data(), payload.size()};
        FUZZ_CHECK(b.copy_to(&iov, 1) == payload.size());
        FUZZ_CHECK(
            std::any_of(kGroups, kGroups + kRules, [&](const char* g) { return b.dst_addr == ip4(g); }));
        FUZZ_CHECK(b.dst_port == htons(kPorts[s.wanted.port]));
        FUZZ_CHECK(s.listener.wants(b.dst_addr, b.dst_port, kIfindex));
        FUZZ_CHECK(s.listener.senders(b.dst_addr, kIfindex).include(b.src_addr, b.src_port));
    }
    void give_back(Socket& s) {
        for (auto n = in_.take<std::uint8_t>() % 8; n != 0 && !s.held.empty(); n--)
            s.give_back(in_.take<std::uint8_t>() % s.held.size());
    }
    void poll() {
        for (int idle = 0; idle < 2;) idle = ring_->poll() == 0 ? idle + 1 : 0;
    }

    fuzz::Input in_;
    verbs::wire::Wire wire_;
    verbs::wire::WireDevice* device_ = nullptr;
    std::unique_ptr<ring::Ring> ring_;
    std::array<GroupSink, 2 * kRules> sinks_;
    std::array<bool, 2 * kRules> attached_{};
    std::array<Socket, kSockets> sockets_;
    bool coarse_ = false;  // the device does not know sources
    bool queued_ = false;  // frames that the ring has not seen, or of unknown fate
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    log::set_level(log::Level::none);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Run(data, size).run();
    return 0;
}
