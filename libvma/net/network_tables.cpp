// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/network_tables.h"

#include <linux/rtnetlink.h>
#include <netlink/msg.h>

#include <utility>

#include "libvma/net/section.h"

namespace vma::net {
namespace {

bool same(const Link& a, const Link& b) {
    return a.ifindex == b.ifindex && a.name == b.name && a.kind == b.kind && a.mac == b.mac &&
           a.mtu == b.mtu && a.rx_queues == b.rx_queues && a.master == b.master && a.lower == b.lower &&
           a.vlan == b.vlan && a.up == b.up && a.loopback == b.loopback && a.ethernet == b.ethernet;
}

bool usable(const Neighbour& n) { return n.state == Neighbour::State::usable; }

// `part` of each entry; nothing when the lock is not to be had.
template <class Table, class Part>
auto each_of(const Table& table, Lock& lock, Part&& part) {
    std::vector<decltype(part(*table.begin()))> result;
    Section section(lock);
    if (!section.entered()) return result;
    result.reserve(table.size());
    for (const auto& entry : table) result.push_back(part(entry));
    return result;
}

}  // namespace

std::uint64_t neighbour_key(int ifindex, in_addr_t address) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(ifindex)) << 32 | address;
}

void NetworkTables::apply_link(nlmsghdr* message, Changes& changes) {
    LinkEntry entry;
    if (!decode_link(message, entry)) return;
    const int ifindex = entry.link.ifindex;
    if (message->nlmsg_type == RTM_DELLINK) {
        entry.link.up = false;
        {
            Section section(table_lock_);
            links_.erase(ifindex);
        }
        Section section(neighbour_lock_);
        std::erase_if(neighbours_,
                      [&](const auto& item) { return static_cast<int>(item.first >> 32) == ifindex; });
        changes.any = true;
        changes.links[ifindex] = entry.link;
        return;
    }
    Section section(table_lock_);
    LinkEntry& known = links_[ifindex];
    // Flags count on their own: taking a link without carrier down removes routes, and the kernel announces
    // only the flags.
    if (known.flags == entry.flags && same(known.link, entry.link)) return;
    changes.any = true;
    if (!same(known.link, entry.link)) changes.links[ifindex] = entry.link;
    known = std::move(entry);
}

void NetworkTables::apply_neighbour(nlmsghdr* message, Changes& changes) {
    NeighbourEntry entry;
    if (!decode_neighbour(message, entry)) return;
    const auto key = neighbour_key(entry.ifindex, entry.address);
    Section section(neighbour_lock_);
    if (message->nlmsg_type == RTM_DELNEIGH) {
        auto known = neighbours_.find(key);
        if (known == neighbours_.end()) return;
        changes.neighbours |= usable(known->second);
        neighbours_.erase(known);
        return;
    }
    Neighbour& known = neighbours_[key];
    changes.neighbours |=
        usable(known) != usable(entry.neighbour) || (usable(known) && known.mac != entry.neighbour.mac);
    known = entry.neighbour;
    if (known.state == Neighbour::State::failed) known.failed_at = clock::monotonic();
}

void NetworkTables::replace(Addresses&& fresh, Changes& changes) {
    Section section(table_lock_);
    if (fresh == addresses_) return;
    addresses_.swap(fresh);
    changes.any = changes.addresses = true;
}

void NetworkTables::replace(Links&& links, Addresses&& addresses, Neighbours&& neighbours, Changes& changes) {
    {
        Section section(table_lock_);
        for (const auto& [ifindex, known] : links_)
            if (!links.contains(ifindex)) {
                changes.links[ifindex] = known.link;
                changes.links[ifindex].up = false;
            }
        for (const auto& [ifindex, entry] : links) {
            auto known = links_.find(ifindex);
            if (known == links_.end() || !same(known->second.link, entry.link))
                changes.links[ifindex] = entry.link;
        }
        changes.addresses |= addresses != addresses_;
        links_.swap(links);
        addresses_.swap(addresses);
    }
    Section section(neighbour_lock_);
    neighbours_.swap(neighbours);
}

std::uint32_t NetworkTables::link_mtu(int ifindex) const noexcept {
    Section section(table_lock_);
    if (!section.entered()) return 0;
    auto found = links_.find(ifindex);
    return found == links_.end() ? 0 : found->second.link.mtu;
}

Neighbour NetworkTables::neighbour(int ifindex, in_addr_t address) const {
    Section section(neighbour_lock_);
    if (!section.entered()) return {};
    auto found = neighbours_.find(neighbour_key(ifindex, address));
    return found == neighbours_.end() ? Neighbour{} : found->second;
}

bool NetworkTables::to_solicit(int ifindex, in_addr_t address) noexcept {
    Section section(neighbour_lock_);
    if (!section.entered()) return false;
    auto known = neighbours_.find(neighbour_key(ifindex, address));
    if (known == neighbours_.end()) return true;
    // The kernel would make a permanent entry an ordinary one.
    if (usable(known->second) && !known->second.stale) return false;
    // The kernel announces the outcome, not that it asks again.
    if (known->second.state == Neighbour::State::failed) known->second.state = Neighbour::State::incomplete;
    return true;
}

bool NetworkTables::link(int ifindex, Link& out) const {
    Section section(table_lock_);
    if (!section.entered()) return false;
    auto found = links_.find(ifindex);
    if (found == links_.end()) return false;
    out = found->second.link;
    return true;
}

std::vector<Link> NetworkTables::links() const {
    return each_of(links_, table_lock_, [](const auto& item) { return item.second.link; });
}

std::vector<LocalAddress> NetworkTables::addresses() const {
    return each_of(addresses_, table_lock_, [](const auto& entry) { return entry.local; });
}

bool NetworkTables::is_local(in_addr_t address, int* ifindex) const {
    Section section(table_lock_);
    if (!section.entered()) return false;
    const AddressEntry* found = nullptr;
    for (const auto& entry : addresses_) {
        if (entry.local.address == address) {
            found = &entry;
            break;
        }
        const in_addr_t mask =
            entry.prefix_length == 0 ? 0 : htonl(~std::uint32_t{0} << (32 - entry.prefix_length));
        if (found == nullptr && ((entry.local.address ^ address) & mask) == 0) {
            auto link = links_.find(entry.local.ifindex);
            if (link != links_.end() && link->second.link.loopback) found = &entry;
        }
    }
    if (found != nullptr && ifindex != nullptr) *ifindex = found->local.ifindex;
    return found != nullptr;
}

}  // namespace vma::net
