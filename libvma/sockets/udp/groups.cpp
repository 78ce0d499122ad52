// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/groups.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/config/rules.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

constexpr clock::Msec kFresh{50};    // before a rule comes, the list of sockets is not older
constexpr unsigned kLookShare = 20;  // looking takes no more of the time than one part of so many

enum Offload : int { automatic = 0, never = 1, always = 2 };

Offload mode() noexcept { return static_cast<Offload>(config::get().mc_offload); }

verbs::FlowSpec spec_of(in_port_t port, const Groups::Key& key) noexcept {
    return {IPPROTO_UDP, key.group, port, 0, 0};
}

GroupSocket& socket_of(const GroupSink::Entry& entry) noexcept {
    return static_cast<GroupSocket&>(*entry.receiver);
}

bool has(const std::vector<GroupSink::Entry>& entries, const GroupReceiver* receiver) noexcept {
    return std::ranges::find(entries, receiver, &GroupSink::Entry::receiver) != entries.end();
}

Why kernels(std::string detail) { return {stats::Reason::multicast, std::move(detail), {}}; }

void no_memory() noexcept { log::once(log::Level::warn, "multicast is served by the kernel: out of memory"); }

}  // namespace

// ---- sockets ----

void Groups::update(GroupSocket& socket, in_addr_t group) noexcept {
    try {
        const GroupListener& l = socket.listener();
        const in_port_t now = l.listens() ? l.ends.local.port : 0;
        auto at = known_.find(&socket);
        if (at == known_.end() && now == 0) return;
        if (at == known_.end() || at->second != now) {
            group = 0;
            others_.outdate();  // they have the socket under another name
            place(socket, now);
        }
        if (now != 0) mark(now, group);
        settle();
    } catch (...) {
        no_memory();
    }
}

// The socket is on `port` from now on; 0: nowhere.
void Groups::place(GroupSocket& socket, in_port_t port) {
    if (auto at = known_.find(&socket); at != known_.end()) {
        const in_port_t before = at->second;
        mark(before, 0);
        std::erase(ports_[before].sockets, &socket);
        known_.erase(at);
    }
    if (port == 0) return;
    known_[&socket] = port;
    ports_[port].sockets.push_back(&socket);
}

void Groups::remove(GroupSocket& socket, bool closed) noexcept {
    const auto at = known_.find(&socket);
    if (at == known_.end()) return;
    const in_port_t number = at->second;
    if (closed)
        others_.forget(socket.cookie());
    else
        others_.outdate();  // from now on it is one of them
    try {
        place(socket, 0);
    } catch (...) {
        no_memory();
    }
    settle();
    // It may not be all done: another call is at it, or there is no memory.
    if (auto port = ports_.find(number); port != ports_.end())
        for (auto& [key, unit] : port->second.units)
            if (has(unit->sink.entries(), &socket)) unit->forget(socket);
    std::erase(touched_, &socket);
}

void Groups::Unit::forget(const GroupSocket& socket) noexcept {
    if (ring != nullptr)
        ring->while_quiet([&] { sink.forget(socket); });
    else
        sink.forget(socket);
}

void Groups::reconsider() noexcept {
    no_ring_.clear();
    try {
        for (const auto& [number, port] : ports_)
            if (!port.units.empty()) mark(number, 0);
    } catch (...) {
        no_memory();
    }
    settle();
}

std::vector<ring::Ring*> Groups::rings_of(const GroupSocket& socket) const {
    std::vector<ring::Ring*> rings;
    const auto at = known_.find(&socket);
    if (at == known_.end()) return rings;
    const auto port = ports_.find(at->second);
    if (port == ports_.end()) return rings;
    for (const auto& [key, unit] : port->second.units)
        if (unit->ring != nullptr && std::ranges::find(rings, unit->ring) == rings.end() &&
            has(unit->sink.entries(), &socket))
            rings.push_back(unit->ring);
    return rings;
}

Why Groups::why_of(const GroupSocket& socket) const {
    const auto at = known_.find(&socket);
    if (at == known_.end()) return {};
    const auto port = ports_.find(at->second);
    if (port == ports_.end()) return {};
    for (const auto& [key, unit] : port->second.units)
        if (unit->ring == nullptr && socket.listener().wants(key.group, at->second, key.ifindex))
            return unit->why;
    return {};
}

// ---- which units there are ----

void Groups::mark(in_port_t port, in_addr_t group) {
    const std::pair wanted(port, group);
    if (std::ranges::find(dirty_, wanted) == dirty_.end() &&
        std::ranges::find(dirty_, std::pair(port, in_addr_t{0})) == dirty_.end())
        dirty_.push_back(wanted);
}

// Opening a ring brings rules to other sockets, which then come here again: they only mark, and the outermost
// call does it all.
void Groups::settle() noexcept {
    if (busy_) return;
    busy_ = true;
    try {
        while (!dirty_.empty()) {
            const auto [port, group] = dirty_.back();
            dirty_.pop_back();
            evaluate(port, group);
            for (const int ifindex : std::exchange(wanted_rings_, {})) {
                std::string why;
                if (stack_.open_ring(ifindex, 0, &why) == nullptr || stack_.rings().find(ifindex) == nullptr)
                    no_ring_[ifindex] = why;
                mark(port, group);
            }
        }
    } catch (...) {
        no_memory();
    }
    while (!touched_.empty()) {
        GroupSocket* socket = touched_.back();
        touched_.pop_back();
        socket->groups_changed();
    }
    busy_ = false;
    keep_looking();
}

void Groups::evaluate(in_port_t number, in_addr_t group) {
    const auto at = ports_.find(number);
    if (at == ports_.end()) return;
    Port& port = at->second;
    bool any = !port.units.empty();
    for (const GroupSocket* s : port.sockets)
        for (const Memberships::Entry& e : s->listener().memberships.all()) {
            if ((group != 0 && e.group != group) || !s->listener().wants(e.group, number, e.ifindex))
                continue;
            std::unique_ptr<Unit>& unit = port.units[{e.group, e.ifindex}];
            if (unit == nullptr) unit = std::make_unique<Unit>();
            any = true;
        }
    if (any && mode() == automatic) {
        others_.look(kFresh);
        if (find_foreign(number, port)) group = 0;  // which concerns the port's other groups, too
    }
    auto unit = group == 0 ? port.units.begin() : port.units.lower_bound({group, INT_MIN});
    while (unit != port.units.end() && (group == 0 || unit->first.group == group)) {
        if (!evaluate(number, port, unit->first, *unit->second)) {
            unit = port.units.erase(unit);
        } else {
            for (GroupSocket* s : port.sockets)
                if (s->listener().memberships.find(unit->first.group, unit->first.ifindex) != nullptr)
                    s->show_group(unit->first.group, unit->first.ifindex, unit->second->why);
            ++unit;
        }
    }
    if (port.sockets.empty() && port.units.empty()) ports_.erase(at);
}

// False: nobody here has joined any more, so there is no such unit.
bool Groups::evaluate(in_port_t number, Port& port, const Key& key, Unit& unit) {
    std::vector<GroupSink::Entry> entries;
    bool joined = false, all_sources = false, strangers = false;
    const char* refused = nullptr;
    for (GroupSocket* s : port.sockets) {
        const GroupListener& l = s->listener();
        if (!l.wants(key.group, number, key.ifindex)) continue;
        const Memberships::Entry* membership = l.memberships.find(key.group, key.ifindex);
        joined |= membership != nullptr;
        all_sources |= membership != nullptr && membership->filter.allows_all();
        strangers |= membership == nullptr;
        if (refused == nullptr) refused = s->objection();
        entries.push_back(
            {s, l.senders(key.group, key.ifindex), membership != nullptr ? membership->counters : nullptr});
    }
    if (!joined) {
        switch_off(number, key, unit);
        return false;
    }
    Why why;
    if (mode() == never)
        why = kernels("VMA_MC_OFFLOAD is never");
    else if (refused != nullptr)
        why = {stats::Reason::process, refused, {}};
    // The interface's filter is that of all members on the host, which is not known here.
    else if (strangers && !all_sources && mode() != always)
        why = kernels("a socket that has not joined receives beside source filters");
    else
        why = objection(number, port, key);
    ring::Ring* ring = why.reason == stats::Reason::none ? stack_.rings().find(key.ifindex) : nullptr;
    if (unit.ring != nullptr && unit.ring != ring) switch_off(number, key, unit);
    unit.why = std::move(why);
    if (ring == nullptr) return true;
    if (unit.ring == nullptr) {
        switch_on(number, key, unit, *ring, entries);
        return true;
    }
    for (const GroupSink::Entry& e : entries) {
        if (has(unit.sink.entries(), e.receiver)) continue;
        socket_of(e).before_group_frames();
        touched_.push_back(&socket_of(e));
    }
    for (const GroupSink::Entry& e : unit.sink.entries())
        if (!has(entries, e.receiver) && known_.contains(&socket_of(e))) touched_.push_back(&socket_of(e));
    unit.ring->while_quiet([&] { unit.sink.swap(entries); });
    return true;
}

// Reason::none: there is a ring, and the frames are this process's alone.
Why Groups::objection(in_port_t number, const Port& port, const Key& key) {
    const config::Verdict verdict =
        config::decide(config::Role::udp_receiver, {net::Address(key.group), number}, nullptr);
    Why why;
    why.rule = verdict.text();
    if (verdict.os()) {
        why.reason = stats::Reason::rule;
        return why;
    }
    net::Link link;
    std::string what;
    if (!stack_.view().link(key.ifindex, link))
        return {stats::Reason::no_device, "the interface is gone", {}};
    if (!ring::Rings::eligible(link, what)) return {stats::Reason::no_device, link.name + ": " + what, {}};
    if (mode() == automatic) {
        if (config::get().eth_mc_l2_only_rules != 0)
            return kernels("VMA_ETH_MC_L2_ONLY_RULES takes other groups and ports, too");
        if (others_.forwards(link)) return kernels("the kernel routes multicast from " + link.name);
        if (!others_.blind().empty()) return kernels(others_.blind());
        for (const net::UdpListener& l : port.foreign)
            if ((l.address == 0 || l.address == key.group) && (l.device == 0 || l.device == key.ifindex))
                return kernels("a socket that is not the library's receives it, too");
    }
    if (stack_.rings().find(key.ifindex) != nullptr) return why;
    if (auto none = no_ring_.find(key.ifindex); none != no_ring_.end())
        return {stats::Reason::no_device, none->second, {}};
    if (std::ranges::find(wanted_rings_, key.ifindex) == wanted_rings_.end())
        wanted_rings_.push_back(key.ifindex);
    return {stats::Reason::no_device, link.name + ": it is being opened", {}};
}

// ---- rules ----

void Groups::touch(const std::vector<GroupSink::Entry>& entries) {
    for (const GroupSink::Entry& e : entries)
        if (known_.contains(&socket_of(e)) && std::ranges::find(touched_, &socket_of(e)) == touched_.end())
            touched_.push_back(&socket_of(e));
}

void Groups::switch_on(in_port_t number, const Key& key, Unit& unit, ring::Ring& ring,
                       std::vector<GroupSink::Entry>& entries) {
    // Before, for whoever reads while the rule comes; and after, for what the kernel got until then.
    for (const GroupSink::Entry& e : entries) socket_of(e).before_group_frames();
    touch(entries);
    unit.sink.swap(entries);
    auto attached = ring.attach(spec_of(number, key), &unit.sink, ring::Share::only);
    if (!attached) {
        unit.why = {stats::Reason::no_room, attached.error().what, {}};
        log::once(log::Level::warn, "a multicast flow on {} is served by the kernel: {}", ring.attr().name,
                  attached.error().what);
        entries.clear();
        unit.sink.swap(entries);
        return;
    }
    unit.ring = &ring;
    for (const GroupSink::Entry& e : unit.sink.entries()) socket_of(e).before_group_frames();
    log::debug("{}: {} comes past the kernel", ring.attr().name, net::Endpoint(key.group, number).text());
}

void Groups::switch_off(in_port_t number, const Key& key, Unit& unit) noexcept {
    if (unit.ring == nullptr) return;
    // What is in the device's queue still comes to the sockets.
    unit.ring->detach(spec_of(number, key), &unit.sink);
    log::debug("{}: {} goes to the kernel again", unit.ring->attr().name,
               net::Endpoint(key.group, number).text());
    unit.ring = nullptr;
    try {
        touch(unit.sink.entries());
    } catch (...) {
        no_memory();
    }
    std::vector<GroupSink::Entry> none;
    unit.sink.swap(none);
}

// ---- who else receives ----

bool Groups::find_foreign(in_port_t number, Port& port) const {
    std::vector<net::UdpListener> now;
    for (const net::UdpListener& l : others_.at(number))
        if (std::ranges::find(port.sockets, l.cookie, &GroupSocket::cookie) == port.sockets.end())
            now.push_back(l);
    return std::exchange(port.foreign, now) != now;
}

void Groups::keep_looking() noexcept {
    if (looking_ || mode() != automatic ||
        std::ranges::all_of(ports_, [](const auto& p) { return p.second.units.empty(); }))
        return;
    looking_ = true;
    try {
        runtime::every(kLookPeriod, [this] { return tick(); });
    } catch (...) {
        looking_ = false;  // the next change tries again
    }
}

// On the internal thread, without a lock.
bool Groups::tick() noexcept {
    try {
        const clock::Time begin = clock::monotonic();
        if (begin < next_look_) return true;
        auto seen = others_.see();
        const clock::Time end = clock::monotonic();
        next_look_ = end + (end - begin) * kLookShare;
        Stack::Control control(stack_);
        others_.take(std::move(seen));
        const bool changed = others_.review_forwarding() || !others_.blind().empty();
        bool any = false;
        for (auto& [number, port] : ports_) {
            if (port.units.empty()) continue;
            any = true;
            if (find_foreign(number, port) || changed) mark(number, 0);
        }
        settle();
        return looking_ = any;
    } catch (...) {
        no_memory();
        return true;
    }
}

}  // namespace vma::sockets
