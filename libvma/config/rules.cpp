// SPDX-License-Identifier: BSD-2-Clause
// Matches the rules of libvma.conf. rules_parser.cpp parses them, rules_file.cpp reads the file.
#include "libvma/config/rules.h"

#include <cstring>

namespace vma::config {
namespace {

bool same_bits(const std::uint8_t* a, const std::uint8_t* b, unsigned bits) noexcept {
    const unsigned whole = bits / 8, rest = bits % 8;
    if (std::memcmp(a, b, whole) != 0) return false;
    return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

}  // namespace

bool RuleTable::Addresses::matches(const net::Endpoint& endpoint) const noexcept {
    if (!same_family(endpoint.address)) return false;
    const std::uint16_t port = ntohs(endpoint.port);
    if (port < low || port > high) return false;
    const in6_addr address = endpoint.address.v6();
    const std::size_t skipped = family == AF_INET ? sizeof address - sizeof(in_addr) : 0;
    return same_bits(address.s6_addr + skipped, bytes.data(), prefix);
}

bool RuleTable::Addresses::covers(const Addresses& other) const noexcept {
    if (low > other.low || high < other.high) return false;
    if (family == AF_UNSPEC) return true;
    return family == other.family && prefix <= other.prefix &&
           same_bits(bytes.data(), other.bytes.data(), prefix);
}

bool RuleTable::Rule::covers(const Rule& other) const noexcept {
    if (!first.covers(other.first)) return false;
    static constexpr Addresses kAny;
    return !second || second->covers(other.second ? *other.second : kAny);
}

Verdict RuleTable::match(Role role, const net::Endpoint& first, const net::Endpoint* second) const {
    for (const Rule& rule : lists_[static_cast<std::size_t>(role)]) {
        if (!rule.first.matches(first)) continue;
        if (rule.second && second != nullptr && !rule.second->matches(*second)) continue;
        if (rule.second && !rule.second->same_family(first.address)) continue;
        bool os = rule.transport == Word::os;
        if (rule.transport == Word::any) {
            const bool unicast_receiver = role == Role::udp_receiver && !first.address.is_multicast();
            os = role == Role::tcp_client || role == Role::udp_connect || unicast_receiver;
        }
        return {os ? Transport::os : Transport::vma, &rule.text};
    }
    return {};
}

RuleTable RuleTable::behind(const RuleTable& other) const {
    RuleTable all = other;
    for (std::size_t i = 0; i < lists_.size(); i++)
        all.lists_[i].insert(all.lists_[i].end(), lists_[i].begin(), lists_[i].end());
    return all;
}

bool RuleTable::empty() const noexcept {
    for (const auto& list : lists_)
        if (!list.empty()) return false;
    return true;
}

const std::string* RuleTable::all_os(Role role) const {
    for (const Rule& rule : lists_[static_cast<std::size_t>(role)]) {
        if (rule.first.family == AF_INET6) continue;
        if (rule.transport != Word::os) return nullptr;
        if (rule.first.everything() && (!rule.second || rule.second->everything())) return &rule.text;
    }
    return nullptr;
}

}  // namespace vma::config
