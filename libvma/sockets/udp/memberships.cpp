// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/memberships.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/membership_options.h"
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

std::optional<GroupRequest> read_mreq(const void* value, socklen_t length) noexcept {
    if (ip_mreqn n; copy(value, length, n))
        return GroupRequest{n.imr_multiaddr.s_addr, n.imr_address.s_addr, n.imr_ifindex};
    if (ip_mreq r; copy(value, length, r))
        return GroupRequest{r.imr_multiaddr.s_addr, r.imr_interface.s_addr, 0};
    return {};
}

std::optional<GroupRequest> read_addresses(const void* value, socklen_t length) noexcept {
    if (ip_mreq r; copy(value, length, r))
        return GroupRequest{r.imr_multiaddr.s_addr, r.imr_interface.s_addr, 0};
    return {};
}

std::optional<GroupRequest> read_index(const void* value, socklen_t length) noexcept {
    if (group_req r; copy(value, length, r))
        return GroupRequest{group_of(r.gr_group), 0, static_cast<int>(r.gr_interface)};
    return {};
}

bool before(const Memberships::Entry& e, std::pair<in_addr_t, int> key) noexcept {
    return std::pair(e.group, e.ifindex) < key;
}

}  // namespace

bool GroupFilter::allows(in_addr_t source) const noexcept {
    return (std::find(sources.begin(), sources.end(), source) != sources.end()) != exclude;
}

std::optional<GroupRequest> GroupRequest::read(int name, const void* value, socklen_t length) noexcept {
    const MembershipOption* option = find_membership_option(name);
    if (option == nullptr) return {};
    std::optional<GroupRequest> r;
    switch (option->form) {
        case MembershipOption::Form::mreq:
            r = read_mreq(value, length);
            break;
        case MembershipOption::Form::addresses:
            r = read_addresses(value, length);
            break;
        case MembershipOption::Form::index:
            r = read_index(value, length);
            break;
    }
    if (r && !net::Address(r->group).is_multicast()) r.reset();
    return r;
}

// ---- memberships ----

void Memberships::set(in_addr_t group, int ifindex, GroupFilter filter) {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), std::pair(group, ifindex), before);
    if (at != entries_.end() && at->group == group && at->ifindex == ifindex)
        at->filter = std::move(filter);
    else
        entries_.insert(at, {group, ifindex, std::move(filter), std::make_shared<stats::GroupCounters>()});
}

void Memberships::erase(in_addr_t group, int ifindex) noexcept {
    std::erase_if(entries_, [&](const Entry& e) { return e.group == group && e.ifindex == ifindex; });
}

const Memberships::Entry* Memberships::find(in_addr_t group, int ifindex) const noexcept {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), std::pair(group, ifindex), before);
    return at != entries_.end() && at->group == group && at->ifindex == ifindex ? &*at : nullptr;
}

// ---- one socket ----

bool GroupListener::wants(in_addr_t group, in_port_t port, int ifindex) const noexcept {
    if (!listens() || ends.local.port != port || (device != 0 && device != ifindex)) return false;
    if (!ends.local.address.is_any() && ends.local.address.v4() != group) return false;
    const Memberships::Entry* joined = memberships.find(group, ifindex);
    return joined != nullptr ? !joined->filter.allows_none() : all;
}

GroupSenders GroupListener::senders(in_addr_t group, int ifindex) const {
    const Memberships::Entry* joined = memberships.find(group, ifindex);
    return {ends.remote.address.v4(), ends.remote.port, joined != nullptr ? joined->filter : GroupFilter{}};
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
