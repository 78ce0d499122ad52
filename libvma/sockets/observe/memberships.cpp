// SPDX-License-Identifier: BSD-2-Clause
// Which multicast groups the process's UDP sockets are members of, as the statistics show it: a block for
// each membership, or for each of its sources. The kernel keeps the truth, which UdpSteering asks for.
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/sockets/fd_object.h"
#include "libvma/sockets/observe/statistics.h"
#include "libvma/stats/stats_memory.h"

namespace vma::sockets::statistics {
namespace {

// Whose block it is; no socket: the block is free.
struct Member {
    const Socket* socket = nullptr;
    in_addr_t group = 0, source = 0;  // source 0: any
    int ifindex = 0;
    std::shared_ptr<const stats::GroupCounters> counters;
    stats::GroupCounters base;  // what the counters were when all were zeroed

    bool is(const Socket& whose, in_addr_t which, int where) const noexcept {
        return socket == &whose && group == which && ifindex == where;
    }
};
using Members = std::array<Member, stats::kGroupBlocks>;

Lock g_lock;
constinit NeverDestroyed<Members> g_members;  // by block

// Calls `visit(member, block)` for each block, free ones too, until it answers false.
template <class F>
void for_each_block(F&& visit) noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr || g_lock.owned_by_me()) return;
    const std::lock_guard guard(g_lock);
    for (unsigned i = 0; i < stats::kGroupBlocks; i++)
        if (!visit((*g_members)[i], segment->group(i))) return;
}

template <class F>
void for_each_member(F&& visit) noexcept {
    for_each_block([&](Member& member, stats::GroupBlock& block) {
        if (member.socket != nullptr) visit(member, block);
        return true;
    });
}

void publish(const Member& member, stats::GroupBlock& block) noexcept {
#define VMA_GROUP_NUMBER(number, ...) \
    stats::store(block.number, stats::load(member.counters->number) - member.base.number);
#include "libvma/stats/numbers.def"
}

void release(Member& member, stats::GroupBlock& block) noexcept {
    member = {};
    stats::Describe guard(block.sequence);
    stats::store(block.state, 0);
}

void take(Member& member, stats::GroupBlock& block, Socket& socket, int fd, const GroupMembership& as,
          in_addr_t source) noexcept {
    member = {&socket, as.group, source, as.ifindex, as.counters, {}};
    publish(member, block);
    stats::Describe described(block.sequence);
    block.socket_id = socket.socket_counters().id();
    block.fd = fd;
    block.path = static_cast<std::uint32_t>(stats::Path::kernel);
    put_address(block.group, {net::Address(as.group), 0});
    put_address(block.source, {net::Address(source), 0});
    stats::put_text(block.detail, {});
    block.ifindex = as.ifindex;
    stats::put_text(block.interface, as.interface);
    stats::store(block.state, 1);
}

void show_way(stats::GroupBlock& block, stats::Path path, std::string_view why) noexcept {
    stats::Describe described(block.sequence);
    block.path = static_cast<std::uint32_t>(path);
    stats::put_text(block.detail, why);
}

}  // namespace

void joined_group(Socket& socket, int fd, const GroupMembership& as) noexcept {
    constexpr in_addr_t kAny[] = {0};
    const auto sources = as.sources.empty() ? std::span<const in_addr_t>(kAny) : as.sources;
    std::array<bool, stats::kGroupBlocks> there{};  // by source: it has a block already
    const std::size_t count = std::min<std::size_t>(sources.size(), there.size());
    for_each_member([&](Member& member, stats::GroupBlock& block) {
        if (!member.is(socket, as.group, as.ifindex)) return;
        const auto known = std::ranges::find(sources.first(count), member.source) - sources.begin();
        if (static_cast<std::size_t>(known) == count)
            release(member, block);
        else
            there[static_cast<std::size_t>(known)] = true;
    });
    std::size_t next = 0;
    for_each_block([&](Member& member, stats::GroupBlock& block) {
        while (next < count && there[next]) next++;
        if (next < count && member.socket == nullptr) take(member, block, socket, fd, as, sources[next++]);
        return next < count;
    });
}

void left_group(const Socket& socket, in_addr_t group, int ifindex) noexcept {
    for_each_member([&](Member& member, stats::GroupBlock& block) {
        if (member.is(socket, group, ifindex)) release(member, block);
    });
}

void group_served(const Socket& socket, in_addr_t group, int ifindex, stats::Path path,
                  std::string_view why) noexcept {
    for_each_member([&](const Member& member, stats::GroupBlock& block) {
        if (member.is(socket, group, ifindex)) show_way(block, path, why);
    });
}

void groups_left(const Socket& socket, std::string_view why) noexcept {
    for_each_member([&](const Member& member, stats::GroupBlock& block) {
        if (member.socket == &socket) show_way(block, stats::Path::kernel, why);
    });
}

void forget_groups(const Socket& socket) noexcept {
    for_each_member([&](Member& member, stats::GroupBlock& block) {
        if (member.socket == &socket) release(member, block);
    });
}

void refresh_groups() noexcept {
    for_each_member([](const Member& member, stats::GroupBlock& block) { publish(member, block); });
}

void zero_groups() noexcept {
    for_each_member([](Member& member, stats::GroupBlock&) {
#define VMA_GROUP_NUMBER(number, ...) member.base.number = stats::load(member.counters->number);
#include "libvma/stats/numbers.def"
    });
}

namespace {
// The parent's counters stay where they are: whoever holds them in this process holds a copy of them.
void forget_all_groups() noexcept {
    new (&g_lock) Lock;
    new (&*g_members) Members;
}
VMA_RENEW_IN_CHILD(forget_all_groups);
}  // namespace

}  // namespace vma::sockets::statistics
