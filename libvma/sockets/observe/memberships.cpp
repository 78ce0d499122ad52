// SPDX-License-Identifier: BSD-2-Clause
// Which multicast groups the process's sockets are members of, as the statistics show it. The kernel keeps
// the truth; this table only remembers what setsockopt() said yes to, and what Groups decided.
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <mutex>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/sockets/user_memory.h"
#include "libvma/stats/stats_memory.h"

namespace vma::sockets::statistics {
namespace {

Lock g_lock;
std::array<const Socket*, stats::kGroupBlocks> g_members{};  // by block; null: the block is free

struct Membership {
    enum { none, join, leave } what = none;
    net::Address group, source;  // source 0.0.0.0: any
};

template <class T>
bool read(const void* value, unsigned length, T& out) noexcept {
    if (length < sizeof out || !UserMemory::readable(value, sizeof out)) return false;
    std::memcpy(&out, value, sizeof out);
    return true;
}

net::Address address_of(const sockaddr_storage& name) noexcept {
    const auto endpoint = net::Endpoint::of(reinterpret_cast<const sockaddr*>(&name), sizeof name);
    return endpoint && endpoint->address.is_v4() ? endpoint->address : net::Address();
}

Membership parse(int name, const void* value, unsigned length) noexcept {
    Membership m;
    switch (name) {
        case IP_ADD_MEMBERSHIP:
        case IP_DROP_MEMBERSHIP:
            if (ip_mreq r; read(value, length, r))
                m = {name == IP_ADD_MEMBERSHIP ? Membership::join : Membership::leave,
                     net::Address(r.imr_multiaddr.s_addr),
                     {}};
            break;
        case IP_ADD_SOURCE_MEMBERSHIP:
        case IP_DROP_SOURCE_MEMBERSHIP:
            if (ip_mreq_source r; read(value, length, r))
                m = {name == IP_ADD_SOURCE_MEMBERSHIP ? Membership::join : Membership::leave,
                     net::Address(r.imr_multiaddr.s_addr), net::Address(r.imr_sourceaddr.s_addr)};
            break;
        case MCAST_JOIN_GROUP:
        case MCAST_LEAVE_GROUP:
            if (group_req r; read(value, length, r))
                m = {name == MCAST_JOIN_GROUP ? Membership::join : Membership::leave,
                     address_of(r.gr_group),
                     {}};
            break;
        case MCAST_JOIN_SOURCE_GROUP:
        case MCAST_LEAVE_SOURCE_GROUP:
            if (group_source_req r; read(value, length, r))
                m = {name == MCAST_JOIN_SOURCE_GROUP ? Membership::join : Membership::leave,
                     address_of(r.gsr_group), address_of(r.gsr_source)};
            break;
        default:
            break;
    }
    if (m.group.is_any()) m.what = Membership::none;
    return m;
}

void release(stats::StatsMemory& segment, unsigned i) noexcept {
    g_members[i] = nullptr;
    stats::Describe guard(segment.group(i).sequence);
    stats::store(segment.group(i).state, 0);
}

}  // namespace

bool membership(Socket& socket, int fd, int name, const void* value, unsigned length) noexcept {
    const Membership m = parse(name, value, length);
    stats::StatsMemory* segment = stats::current();
    if (m.what == Membership::none || segment == nullptr || g_lock.owned_by_me()) return false;
    auto same = [](const stats::Address& a, const net::Address& b) {
        const in_addr_t word = b.v4();
        return std::memcmp(a.bytes, &word, sizeof word) == 0;
    };
    const std::lock_guard guard(g_lock);
    for (unsigned i = 0; i < stats::kGroupBlocks; i++) {
        stats::GroupBlock& block = segment->group(i);
        if (m.what == Membership::leave) {
            // Leaving a group ends all its sources.
            const bool source = m.source.is_any() || same(block.source, m.source);
            if (g_members[i] == &socket && same(block.group, m.group) && source) release(*segment, i);
        } else if (g_members[i] == nullptr) {
            g_members[i] = &socket;
            stats::Describe described(block.sequence);
            block.socket_id = socket.socket_counters().id();
            block.fd = fd;
            block.path = static_cast<std::uint32_t>(stats::Path::kernel);
            put_address(block.group, {m.group, 0});
            put_address(block.source, {m.source, 0});
            stats::put_text(block.detail, {});
            stats::store(block.state, 1);
            break;
        }
    }
    return true;
}

void group_served(const Socket& socket, in_addr_t group, stats::Path path, std::string_view why) noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr || g_lock.owned_by_me()) return;
    const std::lock_guard guard(g_lock);
    for (unsigned i = 0; i < stats::kGroupBlocks; i++) {
        stats::GroupBlock& block = segment->group(i);
        if (g_members[i] != &socket || std::memcmp(block.group.bytes, &group, sizeof group) != 0) continue;
        stats::Describe described(block.sequence);
        block.path = static_cast<std::uint32_t>(path);
        stats::put_text(block.detail, why);
    }
}

void forget_memberships(const Socket& socket) noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr || g_lock.owned_by_me()) return;
    const std::lock_guard guard(g_lock);
    for (unsigned i = 0; i < stats::kGroupBlocks; i++)
        if (g_members[i] == &socket) release(*segment, i);
}

namespace {
void forget_all_memberships() noexcept {
    new (&g_lock) Lock;
    g_members.fill(nullptr);
}
VMA_RENEW_IN_CHILD(forget_all_memberships);
}  // namespace

}  // namespace vma::sockets::statistics
