// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/memberships.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {
namespace {

constexpr std::uint32_t kFewSources = 16;  // igmp_max_msf is 10 unless somebody raises it

template <class T>
bool copy(const void* value, socklen_t length, T& out) noexcept {
    if (length < sizeof out || !UserMemory::readable(value, sizeof out)) return false;
    std::memcpy(&out, value, sizeof out);
    return true;
}

in_addr_t group_of(const sockaddr_storage& name) noexcept {
    const auto endpoint = net::Endpoint::of(reinterpret_cast<const sockaddr*>(&name), sizeof name);
    return endpoint && endpoint->address.is_v4() ? endpoint->address.v4() : 0;
}

// ip_mreq, ip_mreqn and ip_mreq_source begin with the group. ip_msfilter begins with it, and its interface
// follows.
std::optional<GroupRequest> read_old_form(GroupRequest::Kind kind, const void* value,
                                          socklen_t length) noexcept {
    GroupRequest r{.kind = kind};
    if (ip_mreqn n; copy(value, length, n)) {
        r.group = n.imr_multiaddr.s_addr;
        r.interface = n.imr_address.s_addr;
        r.ifindex = n.imr_ifindex;
    } else if (ip_mreq two; copy(value, length, two)) {
        r.group = two.imr_multiaddr.s_addr;
        r.interface = two.imr_interface.s_addr;
    } else {
        return {};
    }
    return r;
}

template <class Head>
std::optional<GroupRequest> read_head(GroupRequest::Kind kind, const void* value, socklen_t length) noexcept {
    // The list of sources behind the head may be shorter than the structure says.
    if (length < sizeof(Head) || !UserMemory::readable(value, sizeof(Head))) return {};
    Head head;
    std::memcpy(&head, value, sizeof head);
    return head.request(kind);
}

struct SourceHead {  // ip_mreq_source
    in_addr group, interface, source;
    GroupRequest request(GroupRequest::Kind kind) const noexcept {
        return {.kind = kind, .group = group.s_addr, .interface = interface.s_addr};
    }
};

struct FilterHead {  // ip_msfilter without its list
    in_addr group, interface;
    GroupRequest request(GroupRequest::Kind kind) const noexcept {
        return {.kind = kind, .group = group.s_addr, .interface = interface.s_addr};
    }
};

struct IndexHead {  // group_req; group_source_req and group_filter begin with it
    group_req head;
    GroupRequest request(GroupRequest::Kind kind) const noexcept {
        return {
            .kind = kind, .group = group_of(head.gr_group), .ifindex = static_cast<int>(head.gr_interface)};
    }
};

bool before(const Memberships::Entry& e, std::pair<in_addr_t, int> key) noexcept {
    return std::pair(e.group, e.ifindex) < key;
}

}  // namespace

bool GroupFilter::allows(in_addr_t source) const noexcept {
    return (std::find(sources.begin(), sources.end(), source) != sources.end()) != exclude;
}

std::optional<GroupRequest> GroupRequest::read(int name, const void* value, socklen_t length) noexcept {
    std::optional<GroupRequest> r;
    switch (name) {
        case IP_ADD_MEMBERSHIP:
            r = read_old_form(Kind::join, value, length);
            break;
        case IP_DROP_MEMBERSHIP:
            r = read_old_form(Kind::leave, value, length);
            break;
        case IP_ADD_SOURCE_MEMBERSHIP:
            r = read_head<SourceHead>(Kind::join, value, length);
            break;
        case IP_DROP_SOURCE_MEMBERSHIP:
            r = read_head<SourceHead>(Kind::leave, value, length);
            break;
        case IP_BLOCK_SOURCE:
        case IP_UNBLOCK_SOURCE:
            r = read_head<SourceHead>(Kind::filter, value, length);
            break;
        case IP_MSFILTER:
            r = read_head<FilterHead>(Kind::filter, value, length);
            break;
        case MCAST_JOIN_GROUP:
        case MCAST_JOIN_SOURCE_GROUP:
            r = read_head<IndexHead>(Kind::join, value, length);
            break;
        case MCAST_LEAVE_GROUP:
        case MCAST_LEAVE_SOURCE_GROUP:
            r = read_head<IndexHead>(Kind::leave, value, length);
            break;
        case MCAST_BLOCK_SOURCE:
        case MCAST_UNBLOCK_SOURCE:
        case MCAST_MSFILTER:
            r = read_head<IndexHead>(Kind::filter, value, length);
            break;
        default:
            break;
    }
    if (r && !net::Address(r->group).is_multicast()) r.reset();
    return r;
}

bool GroupRequest::is_about_source(int name) noexcept {
    return (name >= IP_UNBLOCK_SOURCE && name <= IP_DROP_SOURCE_MEMBERSHIP) || name == MCAST_BLOCK_SOURCE ||
           name == MCAST_UNBLOCK_SOURCE || name == MCAST_JOIN_SOURCE_GROUP ||
           name == MCAST_LEAVE_SOURCE_GROUP;
}

// ---- memberships ----

void Memberships::set(in_addr_t group, int ifindex, GroupFilter filter) {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), std::pair(group, ifindex), before);
    if (at != entries_.end() && at->group == group && at->ifindex == ifindex)
        at->filter = std::move(filter);
    else
        entries_.insert(at, {group, ifindex, std::move(filter)});
}

void Memberships::erase(in_addr_t group, int ifindex) noexcept {
    std::erase_if(entries_, [&](const Entry& e) { return e.group == group && e.ifindex == ifindex; });
}

const GroupFilter* Memberships::find(in_addr_t group, int ifindex) const noexcept {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), std::pair(group, ifindex), before);
    return at != entries_.end() && at->group == group && at->ifindex == ifindex ? &at->filter : nullptr;
}

// ---- one socket ----

bool GroupListener::wants(in_addr_t group, in_port_t port, int ifindex) const noexcept {
    if (!listens() || ends.local.port != port || (device != 0 && device != ifindex)) return false;
    if (!ends.local.address.is_any() && ends.local.address.v4() != group) return false;
    const GroupFilter* filter = memberships.find(group, ifindex);
    return filter != nullptr ? filter->exclude || !filter->sources.empty() : all;
}

bool GroupListener::receives(in_addr_t group, in_port_t port, int ifindex,
                             const net::Endpoint& source) const noexcept {
    if (!wants(group, port, ifindex)) return false;
    const net::Endpoint& peer = ends.remote;
    if (!peer.address.is_any() && peer.address != source.address) return false;
    if (peer.port != 0 && peer.port != source.port) return false;
    const GroupFilter* filter = memberships.find(group, ifindex);
    return filter == nullptr || filter->allows(source.address.v4());
}

// ---- the kernel's answer ----

std::optional<GroupFilter> read_group_filter(int fd, in_addr_t group, int ifindex) {
    const ErrnoKept kept;
    std::uint32_t room = kFewSources;
    for (int attempt = 0; attempt < 4; attempt++) {
        const std::size_t size = GROUP_FILTER_SIZE(room);
        std::vector<std::uint64_t> memory(size / sizeof(std::uint64_t) + 1);
        group_filter head{};
        const sockaddr_in name = net::ipv4_name(group, 0);
        head.gf_interface = static_cast<std::uint32_t>(ifindex);
        std::memcpy(&head.gf_group, &name, sizeof name);
        head.gf_numsrc = room;
        std::memcpy(memory.data(), &head, offsetof(group_filter, gf_slist));
        auto length = static_cast<socklen_t>(size);
        if (os::getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, memory.data(), &length) != 0) return {};
        std::memcpy(&head, memory.data(), offsetof(group_filter, gf_slist));
        if (head.gf_numsrc > room) {
            room = head.gf_numsrc;
            continue;
        }
        GroupFilter filter{.exclude = head.gf_fmode == MCAST_EXCLUDE, .sources = {}};
        const auto* list = reinterpret_cast<const std::uint8_t*>(memory.data());
        for (std::uint32_t i = 0; i < head.gf_numsrc; i++) {
            sockaddr_in source;
            std::memcpy(&source, list + offsetof(group_filter, gf_slist) + i * sizeof(sockaddr_storage),
                        sizeof source);
            filter.sources.push_back(source.sin_addr.s_addr);
        }
        return filter;
    }
    return {};
}

}  // namespace vma::sockets
