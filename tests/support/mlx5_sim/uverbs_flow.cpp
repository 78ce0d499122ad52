// SPDX-License-Identifier: BSD-2-Clause
// Flow rules: ib_uverbs_flow_attr and the specifications behind it become a Rule of the model.
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <optional>

#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

constexpr std::uint16_t kLastPriority = 15;         // of the driver; beyond it ENOSPC
constexpr std::uint16_t kDefaultPriority = 0xffff;  // of the rules for what nobody wants
constexpr std::uint32_t kLastTag = (1u << 24) - 1;
constexpr unsigned kMostSpecs = 10;

// One specification: a value and a mask of equal length, which may be shorter or longer than we know them.
template <class Filter>
struct Fields {
    Filter value{}, mask{};
    bool known = true;  // the mask is 0 beyond what we know
};
template <class Filter>
Fields<Filter> fields(std::span<const std::byte> spec) {
    const auto body = spec.subspan(sizeof(ib_uverbs_flow_spec_hdr));
    const std::size_t half = body.size() / 2;
    Fields<Filter> result;
    std::memcpy(&result.value, body.data(), std::min(half, sizeof(Filter)));
    std::memcpy(&result.mask, body.data() + half, std::min(half, sizeof(Filter)));
    for (std::size_t i = sizeof(Filter); i < half; ++i)
        result.known = result.known && body[half + i] == std::byte{0};
    return result;
}

bool same(const Match& a, const Match& b) {
    return a.dst_mac == b.dst_mac && a.dst_mac_mask == b.dst_mac_mask && a.src_mac == b.src_mac &&
           a.src_mac_mask == b.src_mac_mask && a.vlan == b.vlan && a.vlan_mask == b.vlan_mask &&
           a.ether_type == b.ether_type && a.ether_type_mask == b.ether_type_mask && a.src_ip == b.src_ip &&
           a.src_ip_mask == b.src_ip_mask && a.dst_ip == b.dst_ip && a.dst_ip_mask == b.dst_ip_mask &&
           a.protocol == b.protocol && a.protocol_mask == b.protocol_mask && a.src_port == b.src_port &&
           a.src_port_mask == b.src_port_mask && a.dst_port == b.dst_port &&
           a.dst_port_mask == b.dst_port_mask;
}

int add_ethernet(std::span<const std::byte> spec, Match& match) {
    const auto [value, mask, known] = fields<ib_uverbs_flow_eth_filter>(spec);
    if (!known) return EINVAL;
    for (unsigned i = 0; i < 6; ++i) {
        match.dst_mac_mask[i] = mask.dst_mac[i];
        match.dst_mac[i] = value.dst_mac[i] & mask.dst_mac[i];
        match.src_mac_mask[i] = mask.src_mac[i];
        match.src_mac[i] = value.src_mac[i] & mask.src_mac[i];
    }
    match.vlan_mask = mask.vlan_tag;
    match.vlan = value.vlan_tag & mask.vlan_tag;
    if (mask.ether_type != 0) {
        // An IP specification has said already which type it is.
        const auto wanted = static_cast<std::uint16_t>(value.ether_type & mask.ether_type);
        if (match.ether_type_mask != 0 && wanted != (match.ether_type & mask.ether_type)) return EINVAL;
        match.ether_type_mask |= mask.ether_type;
        match.ether_type |= wanted;
    }
    return 0;
}

int add_ipv4(std::span<const std::byte> spec, Match& match) {
    const auto [value, mask, known] = fields<ib_uverbs_flow_ipv4_filter>(spec);
    if (!known) return EINVAL;
    if (mask.tos != 0 || mask.ttl != 0 || mask.flags != 0) return EOPNOTSUPP;
    const std::uint16_t ip = htons(0x0800);
    if (match.ether_type_mask != 0 &&
        (match.ether_type & match.ether_type_mask) != (ip & match.ether_type_mask))
        return EINVAL;
    match.ether_type = ip;
    match.ether_type_mask = 0xffff;
    match.src_ip_mask = mask.src_ip;
    match.src_ip = value.src_ip & mask.src_ip;
    match.dst_ip_mask = mask.dst_ip;
    match.dst_ip = value.dst_ip & mask.dst_ip;
    if (mask.proto == 0) return 0;
    if (match.protocol_mask != 0 && (match.protocol & mask.proto) != (value.proto & mask.proto))
        return EINVAL;
    match.protocol_mask |= mask.proto;
    match.protocol |= value.proto & mask.proto;
    return 0;
}

int add_ports(std::span<const std::byte> spec, std::uint8_t protocol, Match& match) {
    const auto [value, mask, known] = fields<ib_uverbs_flow_tcp_udp_filter>(spec);
    if (!known) return EINVAL;
    if (match.protocol_mask != 0 &&
        (match.protocol & match.protocol_mask) != (protocol & match.protocol_mask))
        return EINVAL;
    match.protocol = protocol;
    match.protocol_mask = 0xff;
    match.dst_port_mask = mask.dst_port;
    match.dst_port = value.dst_port & mask.dst_port;
    match.src_port_mask = mask.src_port;
    match.src_port = value.src_port & mask.src_port;
    return 0;
}

int add_spec(std::uint32_t type, std::span<const std::byte> spec, Rule& rule) {
    switch (type) {
        case IBV_FLOW_SPEC_ETH:
            return add_ethernet(spec, rule.match);
        case IBV_FLOW_SPEC_IPV4:
            return add_ipv4(spec, rule.match);
        case IBV_FLOW_SPEC_TCP:
            return add_ports(spec, IPPROTO_TCP, rule.match);
        case IBV_FLOW_SPEC_UDP:
            return add_ports(spec, IPPROTO_UDP, rule.match);
        case IBV_FLOW_SPEC_ACTION_TAG: {
            ib_uverbs_flow_spec_action_tag tag{};
            if (spec.size() != sizeof(tag)) return EINVAL;
            std::memcpy(&tag, spec.data(), sizeof(tag));
            if (tag.reserved1 != 0 || tag.tag_id > kLastTag) return EINVAL;
            rule.tag = tag.tag_id;
            return 0;
        }
        default:
            return EOPNOTSUPP;
    }
}

int add_specs(std::span<const std::byte> specs, unsigned count, Rule& rule) {
    for (unsigned i = 0; i < count; ++i) {
        ib_uverbs_flow_spec_hdr header{};
        if (specs.size() < sizeof(header)) return EINVAL;
        std::memcpy(&header, specs.data(), sizeof(header));
        if (header.size < sizeof(header) || header.size > specs.size() || header.reserved != 0) return EINVAL;
        if (const int error = add_spec(header.type, specs.first(header.size), rule)) return error;
        specs = specs.subspan(header.size);
    }
    return specs.empty() ? 0 : EINVAL;
}

// What the type of the rule says beside its specifications.
int apply_type(const ib_uverbs_flow_attr& attr, Rule& rule) {
    switch (attr.type) {
        case IBV_FLOW_ATTR_NORMAL:
            rule.priority = attr.priority;
            return 0;
        case IBV_FLOW_ATTR_ALL_DEFAULT:
            rule.priority = kDefaultPriority;
            rule.sniffs_all = true;
            return 0;
        case IBV_FLOW_ATTR_MC_DEFAULT:
            rule.priority = kDefaultPriority;
            rule.match.dst_mac[0] = rule.match.dst_mac_mask[0] = 0x01;
            return 0;
        default:
            return attr.type == IBV_FLOW_ATTR_SNIFFER ? EOPNOTSUPP : EINVAL;
    }
}

}  // namespace

int create_flow(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_create_flow>();
    const ib_uverbs_flow_attr& attr = wish.flow_attr;
    if (wish.comp_mask != 0) return EINVAL;
    if (!may_use_raw()) return EPERM;
    if (attr.num_of_specs > kMostSpecs || attr.reserved[0] != 0 || attr.reserved[1] != 0 || attr.port != 1)
        return EINVAL;
    const auto specs = request.beyond(sizeof(wish));
    if (specs.size() < attr.size) return ENOSPC;
    QpObject* const qp = context.qps.find(wish.qp_handle);
    if (qp == nullptr) return EINVAL;
    if (attr.priority > kLastPriority) return ENOSPC;
    if (attr.flags != 0) return EOPNOTSUPP;  // neither "don't trap" nor rules for what is sent

    Rule rule;
    rule.qpn = qp->qpn;
    if (const int error = apply_type(attr, rule)) return error;
    if (attr.type != IBV_FLOW_ATTR_NORMAL && attr.num_of_specs != 0) return EINVAL;
    if (const int error = add_specs(specs.first(attr.size), attr.num_of_specs, rule)) return error;
    // One entry of the flow table may have several receivers, but only one tag.
    for (const auto& other : context.device.rules) {
        if (other.rule.priority == rule.priority && other.rule.tag != rule.tag &&
            same(other.rule.match, rule.match))
            return EEXIST;
    }

    std::uint64_t handle = 0;
    context.engine.run(
        [&] { handle = context.device.nic.create_rule(rule); });  // the wire may have to change its filter
    context.device.rules.push_back({handle, rule});
    ++qp->users;
    request.answer(ib_uverbs_create_flow_resp{0, context.flows.add({wish.qp_handle, handle})});
    return 0;
}

int destroy_flow(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_destroy_flow>();
    if (wish.comp_mask != 0) return EINVAL;
    if (context.flows.find(wish.flow_handle) == nullptr) return ENOENT;
    destroy_flow(context, wish.flow_handle);
    return 0;
}

void destroy_flow(Context& context, std::uint32_t handle) {
    const FlowObject flow = *context.flows.find(handle);
    context.engine.run([&] { context.device.nic.destroy_rule(flow.nic_handle); });
    std::erase_if(context.device.rules, [&](const auto& rule) { return rule.handle == flow.nic_handle; });
    --context.qps.find(flow.qp)->users;
    context.flows.erase(handle);
}

}  // namespace mlx5_sim
