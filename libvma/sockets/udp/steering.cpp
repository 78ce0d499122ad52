// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/steering.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/config/rules.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/path_resolver.h"
#include "libvma/sockets/shadow.h"

namespace vma::sockets {
namespace {

// The kernel charges a small datagram about this much of SO_RCVBUF.
constexpr std::uint64_t kKernelCost = 768;
constexpr std::uint64_t kMaxLooks = 1u << 20;

}  // namespace

// ---- arrival ----

bool UdpSteering::deliver(ring::RxBuffer* b) noexcept {
    if (closed()) return false;
    const std::lock_guard guard(watchers_.lock());
    if (__builtin_expect(undecided_ != nullptr, 0) && undecided_->active()) return deliver_undecided(b);
    if (!queue_.push(b, socket_counters_)) return false;
    watchers_.wake_held(kWakeIn);
    return true;
}

// For the program's callback. Both queues together hold less than twice the limit.
bool UdpSteering::deliver_undecided(ring::RxBuffer* b) noexcept {
    ReceiveQueue& queue = undecided_->queue;
    queue.set_limit(queue_.limit());
    if (queue_.lent_out()) return queue.drop(*b, socket_counters_);
    if (!queue.push(b, socket_counters_)) return false;
    undecided_->note();
    watchers_.wake_held(0);
    return true;
}

// ---- names ----

void UdpSteering::read_names(int fd) noexcept { ends_ = {shadow::name_of(fd), shadow::peer_of(fd)}; }

void UdpSteering::read_attributes(int fd) noexcept {
    SendAttributes a;
    // A connected or bound socket has a source; one bound to INADDR_ANY takes the route's.
    // So does one bound to a group, until it is connected: the kernel's answer to a query from a group is an
    // error.
    const bool to_group = ends_.local.address.is_multicast() && ends_.remote.address.is_any();
    a.src_addr = to_group ? 0 : ends_.local.address.v4();
    a.multicast = send_.attributes().multicast;
    a.src_port = ends_.local.port;
    if (ends_.local.port != 0) a.path.lane = lane();
    a.path.tos = static_cast<std::uint8_t>(int_option(fd, IPPROTO_IP, IP_TOS, 0));
    a.path.ttl = static_cast<std::uint8_t>(int_option(fd, IPPROTO_IP, IP_TTL, 64));
    a.pmtu_discover = int_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    a.path.mark = static_cast<std::uint32_t>(int_option(fd, SOL_SOCKET, SO_MARK, 0));
    char device[16] = "";
    socklen_t len = sizeof device;
    if (os::getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &len) == 0 && device[0] != 0)
        for (const net::Link& link : stack_.view().links())
            if (link.name == device) a.path.oif = link.ifindex;
    const auto limit = static_cast<std::uint64_t>(int_option(fd, SOL_SOCKET, SO_RCVBUF, 212992));
    queue_.set_limit(std::max(limit, static_cast<std::uint64_t>(config::get().rx_bytes_min)));
    reuseport_ = int_option(fd, SOL_SOCKET, SO_REUSEPORT, 0) != 0;
    send_.set_attributes(a);
}

// ---- rules ----

bool UdpSteering::rule_allows(const net::Address& address, Why& why) const {
    const config::Verdict decision =
        config::decide(config::Role::udp_receiver, {address, ends_.local.port}, nullptr);
    if (decision.os()) why = {stats::Reason::rule, {}, {}};
    why.rule = decision.text();
    return !decision.os();
}

// Also notes the ring for senders: the first one would need the control lock, and the kernel sent if it was
// held.
ring::Ring* UdpSteering::ring_of(const net::LocalAddress& at, Why& why) {
    ring::Ring* ring = stack_.rings().get(at.ifindex, lane_at(at), &why.detail);
    if (ring == nullptr) {
        why.reason = stats::Reason::no_device;
    } else {
        stack_.open_ring(at.ifindex, lane_at(at));
    }
    return ring;
}

// One peer, one local address, the interface of the route there.
std::vector<FlowRules::Rule> UdpSteering::connected_rules(Why& why) {
    std::vector<FlowRules::Rule> wanted;
    if (auto decision = config::decide(config::Role::udp_connect, ends_.remote, &ends_.local);
        decision.os()) {
        why = {stats::Reason::rule, {}, decision.text()};
        decide_receive(why);
        statistics::groups_left(*this, why.rule);
        left_ = true;
        socket_counters_.decided(stats::Direction::tx, why.decision(stats::Path::kernel));
        return wanted;
    }
    const net::Address &local = ends_.local.address, &remote = ends_.remote.address;
    const bool hosts = local.is_unicast() && remote.is_unicast();
    why.reason = statistics::reason_of_address(local.is_unicast() ? remote : local);
    if (!hosts || !rule_allows(local, why)) return wanted;
    auto route = PathResolver(stack_).route(IPPROTO_UDP, ends_, send_.attributes().path);
    why.reason = route ? statistics::reason_of_route(*route) : stats::Reason::no_route;
    if (why.reason != stats::Reason::none) return wanted;
    const verbs::FlowSpec spec{IPPROTO_UDP, local.v4(), ends_.local.port, remote.v4(), ends_.remote.port};
    if (ring::Ring* ring = ring_of({route->ifindex, local.v4()}, why))
        wanted.push_back({&ring->home_of(spec), spec});
    // Answers may come in through the interface that owns the address, when that is another one and
    // rp_filter allows it.
    int owner = 0;
    if (stack_.view().is_local(local.v4(), &owner) && owner != route->ifindex &&
        stack_.view().sources(owner).accepts(remote.v4()))
        if (ring::Ring* ring = ring_of({owner, local.v4()}, why))
            wanted.push_back({&ring->home_of(spec), spec});
    return wanted;
}

std::vector<FlowRules::Rule> UdpSteering::wanted_rules(bool only_route, Why& why) {
    std::vector<FlowRules::Rule> wanted;
    why.reason = stats::Reason::not_bound;
    if (left_ || closed_ || ends_.local.port == 0) return wanted;
    if (rules_shut_) {
        why = {stats::Reason::other, "SO_VMA_SHUTDOWN_RX", {}};
        return wanted;
    }
    if (rules_.empty() && shared()) {
        why = {stats::Reason::process, "a forked child has it, too", {}};
        return wanted;
    }
    if (!ends_.remote.address.is_any()) return connected_rules(why);
    why.reason = statistics::reason_of_address(ends_.local.address);
    if (why.reason == stats::Reason::none || ends_.local.address.is_any())
        why.reason = stats::Reason::foreign_address;
    for (const net::LocalAddress& a : stack_.view().addresses()) {
        if (!stack_.may_serve(a, ends_.local.address, send_.attributes().path.oif, why)) continue;
        if (!rule_allows(net::Address(a.address), why)) continue;
        ring::Ring* ring = only_route ? stack_.rings().find(a.ifindex, lane_at(a)) : ring_of(a, why);
        if (ring == nullptr) continue;
        const verbs::FlowSpec spec{IPPROTO_UDP, a.address, ends_.local.port, 0, 0};
        wanted.push_back({&ring->home_of(spec), spec});
    }
    return wanted;
}

// `change` answers whether the rings are others than before.
template <class Change>
void UdpSteering::change_rings(Change&& change) noexcept {
    // What was announced to the old rings is announced anew below.
    const std::int64_t announced = std::exchange(announced_, 0);
    if (announced != 0)
        for (unsigned i = 0; i < rules_.count(); i++) rules_.ring(i).expect(-announced);
    const bool moved = change();
    control_.count_timestamps(rules_.any());
    announce_queue();
    if (moved) watchers_.wake(0);  // waiting threads move to these rings
}

void UdpSteering::set_rules(std::vector<FlowRules::Rule> wanted, Why& why) noexcept {
    change_rings([&] {
        const ring::Share share = reuseport_ ? ring::Share::spread : ring::Share::latest;
        return rules_.set(std::move(wanted), {this, share, "a UDP flow"}, why);
    });
}

// What is queued comes first, then what the old ring still has: Ring::take sees to it. Datagrams to send: the
// old ring lets go of its own before the first one takes the new way.
bool UdpSteering::move_to(unsigned lane, std::string& why) {
    if (left_ || send_.lock().owned_by_me()) {
        why = "the kernel has it";
        return false;
    }
    auto ring_for = [&](const FlowRules::Rule& rule) {
        return stack_.open_ring(rule.ring->attr().ifindex,
                                stack_.rings().lanes().of(lane, rule.spec.dst_addr));
    };
    // A ring that is opened now brings sockets new rules, this one, too.
    const std::vector<FlowRules::Rule> before = rules_.rules();
    for (const FlowRules::Rule& rule : before) ring_for(rule);
    bool moved = false;
    change_rings([&] {
        const ring::Share share = reuseport_ ? ring::Share::spread : ring::Share::latest;
        moved = rules_.move({this, share, "a UDP flow"}, why, ring_for);
        return moved;
    });
    if (moved) send_.move_to(lane);
    return moved;
}

void UdpSteering::announce_queue() noexcept {
    const auto now = static_cast<std::int64_t>(rules_.any() ? queue_.limit() / kKernelCost : 0);
    if (now == announced_) return;
    for (unsigned i = 0; i < rules_.count(); i++) rules_.ring(i).expect(now - announced_);
    announced_ = now;
}

void UdpSteering::drop_rules() noexcept {
    rules_.unfollow(stack_, this);
    stack_.groups().remove(*this, closed_);
    if (!rules_.lent().empty()) change_rings([this] { return rules_.lend({}); });
    Why why;
    set_rules({}, why);
}

void UdpSteering::update_rules(bool only_route) noexcept {
    try {
        Why why;
        std::vector<FlowRules::Rule> wanted = wanted_rules(only_route, why);
        set_rules(std::move(wanted), why);
        const bool anywhere = ends_.local.address.is_any() && ends_.remote.address.is_any();
        // The interface is down, or another process has it.
        const bool waits = why.reason == stats::Reason::no_device;
        if (!closed_ && !left_ && ends_.local.port != 0 && (anywhere || waits || rules_.held()))
            rules_.follow(stack_, this);
        else
            rules_.unfollow(stack_, this);
        follow_groups();  // last: a ring that this opens brings rules to the socket
        if (!rules_.any() && why.reason == stats::Reason::multicast) why = stack_.groups().why_of(*this);
        decide_receive(why);
    } catch (...) {
        log::once(log::Level::warn, "a UDP socket is served by the kernel: out of memory");
    }
}

// ---- groups ----

const char* UdpSteering::objection() const noexcept {
    if (lost_track_) return "a signal handler changed its memberships";
    return rules_.lent().empty() && shared() ? "a forked child has it, too" : nullptr;
}

void UdpSteering::before_group_frames() noexcept {
    // A call reads one datagram of the shadow; its queue holds no more than these.
    kernel_side_.note_backlog(static_cast<std::uint32_t>(std::min(queue_.limit() / kKernelCost, kMaxLooks)));
}

void UdpSteering::groups_changed() noexcept {
    try {
        std::vector<ring::Ring*> rings = stack_.groups().rings_of(*this);
        if (rings != rules_.lent()) change_rings([&] { return rules_.lend(std::move(rings)); });
    } catch (...) {
        log::once(log::Level::warn, "a UDP socket does not poll for its groups: out of memory");
    }
    Why why;
    try {
        if (!rules_.any()) why = stack_.groups().why_of(*this);
    } catch (...) {
        why.reason = stats::Reason::no_memory;
    }
    if (rules_.any() || why.reason != stats::Reason::none) decide_receive(why);
}

void UdpSteering::show_group(in_addr_t group, int ifindex, const Why& why) noexcept {
    const bool ours = why.reason == stats::Reason::none;
    statistics::group_served(
        *this, group, ifindex, ours ? stats::Path::offloaded : stats::Path::kernel,
        why.detail.empty() ? ours ? std::string_view() : stats::reason_text(why.reason) : why.detail);
}

UdpSteering::~UdpSteering() {
    if (!listener_.memberships.all().empty()) statistics::forget_groups(*this);
}

// The socket's names or its device may have changed.
void UdpSteering::follow_groups() noexcept {
    listener_.ends = left_ || closed_ || rules_shut_ ? net::Endpoints{} : ends_;
    listener_.device = send_.attributes().path.oif;
    stack_.groups().update(*this);
}

void UdpSteering::learn_groups(int fd, int name, const void* value, socklen_t length,
                               bool accepted) noexcept {
    Stack::Control control(stack_);
    if (!control.mine) {
        lost_track_ = true;
        return;
    }
    in_addr_t group = 0;
    try {
        if (name == IP_MULTICAST_ALL) {
            listener_.all = int_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 1) != 0;
        } else if (const auto request = GroupRequest::read(name, value, length)) {
            group = request->group;
            learn_membership(fd, *request);
        } else if (accepted) {
            lost_track_ = true;
        } else {
            return;
        }
    } catch (...) {
        lost_track_ = true;
    }
    if (left_) return;  // the statistics alone want to know
    stack_.groups().update(*this, lost_track_ ? 0 : group);
    groups_changed();
}

// The kernel has chosen the interface. The likely ones are asked about first: that of the request, and those
// where the socket was a member. A join that has changed nothing there was somewhere else.
void UdpSteering::learn_membership(int fd, const GroupRequest& request) {
    std::vector<int> candidates;
    int ifindex = request.ifindex;
    net::KernelView& view = stack_.view();
    if (ifindex == 0 && request.interface != 0) view.is_local(request.interface, &ifindex);
    if (ifindex == 0)
        if (auto route = view.route({.dst = request.group})) ifindex = route->ifindex;
    if (ifindex != 0) candidates.push_back(ifindex);
    for (const Memberships::Entry& e : listener_.memberships.all())
        if (e.group == request.group && e.ifindex != ifindex) candidates.push_back(e.ifindex);
    bool changed = false;
    for (const int where : candidates) changed |= ask_membership(fd, request.group, where);
    if (changed) return;
    for (const net::Link& link : view.links())
        if (std::ranges::find(candidates, link.ifindex) == candidates.end())
            ask_membership(fd, request.group, link.ifindex);
}

// True: the membership is another one than before.
bool UdpSteering::ask_membership(int fd, in_addr_t group, int ifindex) {
    Memberships& known = listener_.memberships;
    std::optional<GroupFilter> now = read_group_filter(fd, group, ifindex);
    const Memberships::Entry* before = known.find(group, ifindex);
    if (now ? before != nullptr && before->filter == *now : before == nullptr) return false;
    if (now) {
        known.set(group, ifindex, std::move(*now));
        const Memberships::Entry& entry = *known.find(group, ifindex);
        net::Link link;
        stack_.view().link(ifindex, link);
        std::span<const in_addr_t> sources;
        if (!entry.filter.exclude) sources = entry.filter.sources;
        statistics::joined_group(*this, fd, {group, ifindex, link.name, sources, entry.counters});
        if (left_)
            statistics::group_served(*this, group, ifindex, stats::Path::kernel,
                                     "the socket is the kernel's");
    } else {
        statistics::left_group(*this, group, ifindex);
        known.erase(group, ifindex);
    }
    return true;
}

// A socket that is left to the kernel knows why already.
void UdpSteering::decide_receive(const Why& why) noexcept {
    if (left_ || closed_) return;
    if (rules_.any())
        socket_counters_.decided(stats::Direction::rx,
                                 {stats::Path::offloaded, stats::Reason::none, {}, why.rule});
    else
        socket_counters_.decided(stats::Direction::rx,
                                 why.decision(why.reason == stats::Reason::not_bound ? stats::Path::undecided
                                                                                     : stats::Path::kernel));
}

void UdpSteering::bury() noexcept {
    drop_rules();
    watchers_.wake(0);
    unref();
}

}  // namespace vma::sockets
