// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace vma::verbs::rdma {
namespace {

std::string text(in_addr_t address, in_port_t port) {
    const std::uint32_t a = ntohl(address);
    return fmt::format("{}.{}.{}.{}:{}", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255, ntohs(port));
}

std::string text(const HwRule& rule) {
    if (rule.priority == Priority::layer_2) return fmt::format("{:02x}", fmt::join(rule.dst_mac, ":"));
    std::string to = (rule.match.protocol == IPPROTO_TCP ? "tcp to " : "udp to ") +
                     text(rule.match.dst_addr, rule.match.dst_port);
    if (rule.match.is_five_tuple()) to += " from " + text(rule.match.src_addr, rule.match.src_port);
    return to;
}

}  // namespace

MacAddress multicast_mac(in_addr_t group) noexcept {
    const std::uint32_t a = ntohl(group);
    return {0x01,
            0x00,
            0x5e,
            static_cast<std::uint8_t>(a >> 16 & 0x7f),
            static_cast<std::uint8_t>(a >> 8),
            static_cast<std::uint8_t>(a)};
}

HwRule hw_rule(const FlowSpec& spec, const RuleOptions& options) noexcept {
    HwRule rule;
    rule.vlan = options.vlan;
    const bool multicast = is_multicast(spec.dst_addr);
    rule.dst_mac = multicast ? multicast_mac(spec.dst_addr) : options.mac;
    if (multicast && options.mc_l2_only) {
        rule.priority = Priority::layer_2;
        return rule;
    }
    rule.match = spec;
    const bool three_tuple = spec.protocol == IPPROTO_TCP ? options.tcp_3t : options.udp_3t;
    if (three_tuple) {
        rule.match.src_addr = 0;
        rule.match.src_port = 0;
    }
    rule.priority = rule.match.is_five_tuple() ? Priority::five_tuple : Priority::three_tuple;
    return rule;
}

std::uint64_t claim_of(const HwRule& rule, std::uint8_t port) noexcept {
    const FlowSpec& m = rule.match;
    if (rule.priority == Priority::layer_2 || is_multicast(m.dst_addr) ||
        (m.protocol == IPPROTO_TCP && m.is_five_tuple()))
        return 0;
    constexpr std::uint64_t kPrime = 0x100000001b3, kBasis = 0xcbf29ce484222325;  // FNV-1a
    std::uint64_t hash = kBasis;
    for (const std::uint64_t part :
         {std::uint64_t{port}, std::uint64_t{rule.vlan}, std::uint64_t{m.protocol}, std::uint64_t{m.dst_addr},
          std::uint64_t{m.dst_port}, std::uint64_t{m.src_addr}, std::uint64_t{m.src_port}})
        for (unsigned shift = 0; shift < 32; shift += 8) hash = (hash ^ (part >> shift & 0xff)) * kPrime;
    return hash == 0 ? 1 : hash;
}

bool is_only_for(const HwRule& rule, const FlowSpec& spec, const RuleOptions& options) noexcept {
    const bool three_tuple = spec.protocol == IPPROTO_TCP ? options.tcp_3t : options.udp_3t;
    return rule.priority != Priority::layer_2 && !three_tuple;
}

template <class Spec>
Spec& FlowAttr::append(ibv_flow_spec_type type) noexcept {
    auto* spec = reinterpret_cast<Spec*>(bytes_.data() + used_);
    spec->type = type;
    spec->size = sizeof *spec;
    used_ += sizeof *spec;
    get()->num_of_specs++;
    get()->size = static_cast<std::uint16_t>(used_);
    return *spec;
}

FlowAttr::FlowAttr(const HwRule& rule, std::uint8_t port, std::uint32_t tag, bool over) noexcept {
    ibv_flow_attr& attr = *get();
    attr.type = IBV_FLOW_ATTR_NORMAL;
    attr.priority = static_cast<std::uint16_t>(static_cast<unsigned>(rule.priority) - (over ? 1 : 0));
    attr.port = port;

    auto& eth = append<ibv_flow_spec_eth>(IBV_FLOW_SPEC_ETH);
    std::memcpy(eth.val.dst_mac, rule.dst_mac.data(), rule.dst_mac.size());
    std::memset(eth.mask.dst_mac, 0xff, sizeof eth.mask.dst_mac);
    if (rule.vlan != 0) {  // the id alone: any priority of the frame
        eth.val.vlan_tag = htons(rule.vlan);
        eth.mask.vlan_tag = htons(0x0fff);
    }
    if (rule.priority != Priority::layer_2) {
        auto& ip = append<ibv_flow_spec_ipv4>(IBV_FLOW_SPEC_IPV4);
        ip.val.dst_ip = rule.match.dst_addr;
        ip.mask.dst_ip = rule.match.dst_addr != 0 ? 0xffffffffu : 0;
        ip.val.src_ip = rule.match.src_addr;
        ip.mask.src_ip = rule.match.src_addr != 0 ? 0xffffffffu : 0;
        auto& l4 = append<ibv_flow_spec_tcp_udp>(rule.match.protocol == IPPROTO_TCP ? IBV_FLOW_SPEC_TCP
                                                                                    : IBV_FLOW_SPEC_UDP);
        l4.val.dst_port = rule.match.dst_port;
        l4.mask.dst_port = rule.match.dst_port != 0 ? 0xffff : 0;
        l4.val.src_port = rule.match.src_port;
        l4.mask.src_port = rule.match.src_port != 0 ? 0xffff : 0;
    }
    if (tag != 0) append<ibv_flow_spec_action_tag>(IBV_FLOW_SPEC_ACTION_TAG).tag_id = tag;
}

Error flow_error(int error, const HwRule& rule, const std::string& device) {
    const std::string what = fmt::format("{} refuses a rule for {}: ", device, text(rule));
    switch (error) {
        case EPERM:
        case EACCES:
            return {EPERM, what +
                               "the process needs CAP_NET_RAW (setcap cap_net_raw+ep, or "
                               "AmbientCapabilities= in a systemd unit)"};
        case ENOMEM:
        case ENOSPC:
            return {
                error,
                what + "its table of rules is full; VMA_TCP_3T_RULES=1 and VMA_UDP_3T_RULES=1 need fewer"};
        case EOPNOTSUPP:
        case ENOSYS:
            return {EOPNOTSUPP, what +
                                    "the device has no flow steering, or its driver has it switched off "
                                    "(virtual functions need it "
                                    "allowed by the host; mlx4_core needs log_num_mgm_entry_size=-1)"};
        case EINVAL:
            return {error, what + "the device does not match on these fields"};
        default:
            return {error, what + strerror(error)};
    }
}

}  // namespace vma::verbs::rdma
