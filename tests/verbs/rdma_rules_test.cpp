// SPDX-License-Identifier: BSD-2-Clause
// What a FlowSpec becomes for an adapter, byte by byte, and how specs share rules.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "libvma/verbs/rdma/flow_table.h"
#include "libvma/verbs/rdma/rules.h"

namespace {

using namespace vma::verbs;
using namespace vma::verbs::rdma;

constexpr MacAddress kOwnMac = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};
in_addr_t ip(const char* text) { return inet_addr(text); }

const FlowSpec kUdp3{IPPROTO_UDP, ip("198.18.0.1"), htons(7000), 0, 0};
const FlowSpec kUdp5{IPPROTO_UDP, ip("198.18.0.1"), htons(7000), ip("198.18.0.2"), htons(8000)};
const FlowSpec kTcp3{IPPROTO_TCP, ip("198.18.0.1"), htons(80), 0, 0};
const FlowSpec kTcp5{IPPROTO_TCP, ip("198.18.0.1"), htons(80), ip("198.18.0.2"), htons(40000)};
const FlowSpec kGroup{IPPROTO_UDP, ip("239.129.2.3"), htons(7000), 0, 0};

// The specs behind an ibv_flow_attr.
struct Parts {
    ibv_flow_attr attr{};
    ibv_flow_spec_eth eth{};
    ibv_flow_spec_ipv4 ip{};
    ibv_flow_spec_tcp_udp l4{};
    ibv_flow_spec_action_tag tag{};

    explicit Parts(const ibv_flow_attr* from) {
        std::memcpy(&attr, from, sizeof attr);
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
        std::size_t at = sizeof attr;
        for (unsigned i = 0; i < attr.num_of_specs; i++) {
            ibv_flow_spec spec;
            std::memcpy(&spec.hdr, bytes + at, sizeof spec.hdr);
            switch (spec.hdr.type) {
                case IBV_FLOW_SPEC_ETH:
                    std::memcpy(&eth, bytes + at, sizeof eth);
                    break;
                case IBV_FLOW_SPEC_IPV4:
                    std::memcpy(&ip, bytes + at, sizeof ip);
                    break;
                case IBV_FLOW_SPEC_TCP:
                case IBV_FLOW_SPEC_UDP:
                    std::memcpy(&l4, bytes + at, sizeof l4);
                    break;
                case IBV_FLOW_SPEC_ACTION_TAG:
                    std::memcpy(&tag, bytes + at, sizeof tag);
                    break;
                default:
                    ADD_FAILURE() << "spec " << spec.hdr.type;
            }
            at += spec.hdr.size;
        }
        EXPECT_EQ(at, attr.size);
    }
};
Parts parts(const FlowSpec& spec, RuleOptions options, std::uint32_t tag = 0) {
    options.mac = kOwnMac;
    FlowAttr attr(hw_rule(spec, options), 1, tag);
    EXPECT_EQ(attr.size(), attr.get()->size);
    return Parts(attr.get());
}

TEST(RdmaRules, FiveTuple) {
    const Parts p = parts(kTcp5, {});
    EXPECT_EQ(p.attr.type, IBV_FLOW_ATTR_NORMAL);
    EXPECT_EQ(p.attr.priority, 1);
    EXPECT_EQ(p.attr.port, 1);
    EXPECT_EQ(p.attr.num_of_specs, 3);
    EXPECT_EQ(std::memcmp(p.eth.val.dst_mac, kOwnMac.data(), 6), 0);
    EXPECT_EQ(std::memcmp(p.eth.mask.dst_mac, "\xff\xff\xff\xff\xff\xff", 6), 0);
    EXPECT_EQ(p.eth.mask.vlan_tag, 0);
    EXPECT_EQ(p.eth.mask.ether_type, 0);
    EXPECT_EQ(p.ip.val.dst_ip, kTcp5.dst_addr);
    EXPECT_EQ(p.ip.val.src_ip, kTcp5.src_addr);
    EXPECT_EQ(p.ip.mask.dst_ip, 0xffffffffu);
    EXPECT_EQ(p.ip.mask.src_ip, 0xffffffffu);
    EXPECT_EQ(p.l4.type, IBV_FLOW_SPEC_TCP);
    EXPECT_EQ(p.l4.val.dst_port, kTcp5.dst_port);
    EXPECT_EQ(p.l4.val.src_port, kTcp5.src_port);
    EXPECT_EQ(p.l4.mask.src_port, 0xffff);
}

TEST(RdmaRules, ThreeTupleComesAfterFiveTuples) {
    const Parts p = parts(kUdp3, {});
    EXPECT_EQ(p.attr.priority, 3);
    EXPECT_EQ(p.l4.type, IBV_FLOW_SPEC_UDP);
    EXPECT_EQ(p.ip.mask.src_ip, 0u);
    EXPECT_EQ(p.l4.mask.src_port, 0);
    EXPECT_EQ(p.l4.mask.dst_port, 0xffff);
}

TEST(RdmaRules, TagAndVlan) {
    const Parts p = parts(kUdp5, {.vlan = 100}, 77);
    EXPECT_EQ(p.attr.num_of_specs, 4);
    EXPECT_EQ(p.tag.tag_id, 77u);
    EXPECT_EQ(p.tag.size, sizeof p.tag);
    EXPECT_EQ(p.eth.val.vlan_tag, htons(100));
    EXPECT_EQ(p.eth.mask.vlan_tag, htons(0x0fff));
}

TEST(RdmaRules, Multicast) {
    const Parts p = parts(kGroup, {});
    const MacAddress mac = {0x01, 0x00, 0x5e, 0x01, 0x02, 0x03};  // 23 bits of the group
    EXPECT_EQ(std::memcmp(p.eth.val.dst_mac, mac.data(), 6), 0);
    EXPECT_EQ(p.ip.val.dst_ip, kGroup.dst_addr);
    const Parts l2 = parts(kGroup, {.mc_l2_only = true});
    EXPECT_EQ(l2.attr.num_of_specs, 1);
    EXPECT_EQ(l2.attr.priority, 5);
    EXPECT_EQ(std::memcmp(l2.eth.val.dst_mac, mac.data(), 6), 0);
    EXPECT_EQ(parts(kUdp3, {.mc_l2_only = true}).attr.num_of_specs, 3) << "unicast is not meant";
}

TEST(RdmaRules, ThreeTupleParameters) {
    EXPECT_EQ(hw_rule(kTcp5, {.tcp_3t = true}), hw_rule(kTcp3, {.tcp_3t = true}));
    EXPECT_NE(hw_rule(kTcp5, {.udp_3t = true}), hw_rule(kTcp3, {.udp_3t = true}));
    EXPECT_EQ(hw_rule(kUdp5, {.udp_3t = true}), hw_rule(kUdp3, {.udp_3t = true}));
    // Who has a rule for itself.
    const auto alone = [](const FlowSpec& spec, const RuleOptions& o) {
        return is_only_for(hw_rule(spec, o), spec, o);
    };
    EXPECT_TRUE(alone(kUdp3, {}) && alone(kTcp5, {}) && alone(kGroup, {}));
    EXPECT_FALSE(alone(kUdp5, {.udp_3t = true}));
    EXPECT_FALSE(alone(kUdp3, {.udp_3t = true}));
    EXPECT_TRUE(alone(kTcp3, {.udp_3t = true}));
    EXPECT_FALSE(alone(kGroup, {.mc_l2_only = true}));
}

TEST(RdmaRules, ErrorsSayWhatToDo) {
    const HwRule rule = hw_rule(kTcp5, {.mac = kOwnMac});
    EXPECT_NE(flow_error(EPERM, rule, "mlx5_0").what.find("CAP_NET_RAW"), std::string::npos);
    EXPECT_NE(flow_error(ENOMEM, rule, "mlx5_0").what.find("VMA_TCP_3T_RULES"), std::string::npos);
    EXPECT_NE(flow_error(EOPNOTSUPP, rule, "mlx4_0").what.find("flow steering"), std::string::npos);
    EXPECT_EQ(flow_error(EBUSY, rule, "x").code, EBUSY);
    EXPECT_NE(flow_error(EBUSY, rule, "x").what.find("tcp to 198.18.0.1:80 from 198.18.0.2:40000"),
              std::string::npos);
}

// An adapter's table of rules.
struct Adapter {
    std::vector<std::pair<ibv_flow*, Parts>> rules;
    int refuse = 0;  // errno of the next call
    bool takes_tags = true;

    FlowTable::Calls calls() {
        return {[this](ibv_flow_attr* attr) -> ibv_flow* {
                    Parts parts(attr);
                    if (refuse != 0 || (parts.tag.size != 0 && !takes_tags)) {
                        errno = refuse != 0 ? std::exchange(refuse, 0) : EOPNOTSUPP;
                        return nullptr;
                    }
                    rules.emplace_back(new ibv_flow{}, parts);
                    return rules.back().first;
                },
                [this](ibv_flow* flow) {
                    EXPECT_EQ(std::erase_if(rules, [&](auto& r) { return r.first == flow; }), 1u);
                    delete flow;
                }};
    }
};

TEST(FlowTable, SharedRulesAreCountedAndNeverAbsent) {
    Adapter adapter;
    FlowTable table(adapter.calls(), {.mac = kOwnMac, .tcp_3t = true}, 1, "mlx5_0");
    Flow* listener = *table.add(kTcp3, 5);
    ASSERT_EQ(adapter.rules.size(), 1u);
    EXPECT_EQ(adapter.rules[0].second.tag.tag_id, 0u)
        << "a tag would say whose frame it is for the first one only";
    const ibv_flow* const made = adapter.rules[0].first;
    Flow* accepted = *table.add(kTcp5, 6);
    ASSERT_EQ(adapter.rules.size(), 1u);
    EXPECT_EQ(adapter.rules[0].first, made) << "made anew, it was absent in between";
    EXPECT_EQ(accepted->spec, kTcp5);
    table.remove(listener);
    EXPECT_EQ(adapter.rules.size(), 1u);
    table.remove(accepted);
    EXPECT_TRUE(adapter.rules.empty());
    EXPECT_EQ(table.rules(), 0u);
}

TEST(FlowTable, TagsOnlyWhereTaken) {
    Adapter adapter;
    adapter.takes_tags = false;
    FlowTable table(adapter.calls(), {.mac = kOwnMac}, 1, "mlx4_0");
    Flow* flow = *table.add(kUdp5, 9);
    ASSERT_EQ(adapter.rules.size(), 1u);
    EXPECT_EQ(adapter.rules[0].second.tag.tag_id, 0u);
    table.remove(flow);
}

TEST(FlowTable, Refusal) {
    Adapter adapter;
    FlowTable table(adapter.calls(), {.mac = kOwnMac}, 1, "mlx5_0");
    adapter.refuse = ENOMEM;
    auto refused = table.add(kUdp3, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ENOMEM);
    EXPECT_EQ(table.rules(), 0u);
    table.remove(*table.add(kUdp3, 0));
}

TEST(FlowTable, NewMac) {
    Adapter adapter;
    FlowTable table(adapter.calls(), {.mac = kOwnMac}, 1, "mlx5_0");
    Flow* unicast = *table.add(kUdp5, 0);
    Flow* group = *table.add(kGroup, 0);
    const MacAddress next = {2, 0, 0, 0, 0, 9};
    adapter.refuse = ENOMEM;
    table.set_mac(next);
    ASSERT_EQ(adapter.rules.size(), 2u) << "what cannot be made anew stays";
    table.set_mac(kOwnMac);
    table.set_mac(next);
    ASSERT_EQ(adapter.rules.size(), 2u);
    EXPECT_EQ(std::memcmp(adapter.rules[1].second.eth.val.dst_mac, next.data(), 6), 0);
    EXPECT_EQ(adapter.rules[0].second.eth.val.dst_mac[0], 1) << "the group's is its own";
    Flow* same = *table.add(kUdp5, 0);
    EXPECT_EQ(adapter.rules.size(), 2u) << "the rule is known by what it was made for";
    for (Flow* flow : {unicast, group, same}) table.remove(flow);
    EXPECT_TRUE(adapter.rules.empty());
}

// At no time two QPs have the rule at the same place, and at no time none has.
TEST(FlowTable, RulesMoveToAnotherQp) {
    Adapter adapter;
    const RuleOptions options{.mac = kOwnMac, .udp_3t = true};
    std::size_t fewest = 9, most = 0;
    FlowTable::Calls watched = adapter.calls();
    FlowTable::Calls calls{[&](ibv_flow_attr* attr) {
                               ibv_flow* made = watched.create(attr);
                               most = std::max(most, adapter.rules.size());
                               return made;
                           },
                           [&](ibv_flow* flow) {
                               watched.destroy(flow);
                               fewest = std::min(fewest, adapter.rules.size());
                           }};
    FlowTable from(calls, options, 1, "mlx5_0"), to(calls, options, 1, "mlx5_0");
    Flow* flow = *from.add(kTcp5, 3);
    fewest = 9;
    flow = *to.take(from, flow, 4);
    EXPECT_EQ(fewest, 1u);
    EXPECT_EQ(most, 2u);
    ASSERT_EQ(adapter.rules.size(), 1u);
    EXPECT_EQ(adapter.rules[0].second.attr.priority, 1) << "it has the ordinary place again";
    EXPECT_EQ(adapter.rules[0].second.tag.tag_id, 4u);
    EXPECT_EQ(from.rules(), 0u);
    flow = *from.take(to, flow, 5);  // and back
    EXPECT_EQ(to.rules(), 0u);
    adapter.refuse = ENOMEM;
    auto refused = to.take(from, flow, 6);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ENOMEM);
    EXPECT_EQ(adapter.rules.size(), 1u) << "it stays";
    EXPECT_EQ(from.rules(), 1u);
    from.remove(flow);
    Flow *one = *from.add(kUdp3, 0), *other = *from.add(kUdp5, 0);  // they share a rule
    refused = to.take(from, one, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, EBUSY);
    for (Flow* each : {one, other}) from.remove(each);
    EXPECT_TRUE(adapter.rules.empty());
}

// Processes share what an adapter copies on purpose, and what only one of them can have.
TEST(FlowTable, ClaimsOfRules) {
    const auto claim = [](const FlowSpec& spec, RuleOptions options = {}, std::uint8_t port = 1) {
        return claim_of(hw_rule(spec, options), port);
    };
    EXPECT_EQ(claim(kGroup), 0u);
    EXPECT_EQ(claim(kGroup, {.mc_l2_only = true}), 0u);
    EXPECT_EQ(claim(kTcp5), 0u);
    EXPECT_EQ(claim(kTcp5, {.tcp_3t = true}), claim(kTcp3)) << "the listener's rule takes its frames";
    EXPECT_EQ(claim(kUdp5, {.udp_3t = true}), claim(kUdp3));
    FlowSpec other = kUdp3;
    other.dst_port = htons(7001);
    std::vector<std::uint64_t> claims = {
        claim(kUdp3),       claim(kUdp5), claim(kTcp3), claim(other), claim(kUdp3, {.vlan = 5}),
        claim(kUdp3, {}, 2)};
    for (std::uint64_t each : claims) EXPECT_NE(each, 0u);
    std::sort(claims.begin(), claims.end());
    EXPECT_EQ(std::adjacent_find(claims.begin(), claims.end()), claims.end());
    EXPECT_EQ(claim(kUdp3, {.mac = kOwnMac}), claim(kUdp3)) << "a new MAC is no new rule";
}

// Two processes with the adapter open. Where rules leave out the peer, the second one has a rule for its peer
// alone, which goes before the port's.
TEST(FlowTable, RulesOfTwoProcesses) {
    const int one_fd = memfd_create("device", MFD_CLOEXEC);
    const int other_fd = open(("/proc/self/fd/" + std::to_string(one_fd)).c_str(), O_RDWR | O_CLOEXEC);
    RuleClaims one_claims(one_fd), other_claims(other_fd);
    Adapter adapter;
    const RuleOptions options{.mac = kOwnMac, .tcp_3t = true, .udp_3t = true};
    FlowTable one(adapter.calls(), options, 1, "mlx5_0", &one_claims),
        other(adapter.calls(), options, 1, "mlx5_0", &other_claims);
    for (const auto& [three, five] : {std::pair{kUdp3, kUdp5}, {kTcp3, kTcp5}}) {
        Flow* port = *one.add(three, 0);
        auto refused = other.add(three, 0);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, EBUSY);
        EXPECT_EQ(adapter.rules.size(), 1u);
        Flow* peer = *other.add(five, 0);
        ASSERT_EQ(adapter.rules.size(), 2u);
        EXPECT_EQ(adapter.rules[1].second.attr.priority, 1);
        EXPECT_EQ(adapter.rules[1].second.ip.val.src_ip, five.src_addr);
        Flow* same = *other.add(five, 0);
        EXPECT_EQ(adapter.rules.size(), 2u);
        other.remove(same);
        other.remove(peer);
        one.remove(port);
        EXPECT_TRUE(adapter.rules.empty());
        other.remove(*other.add(three, 0));
    }
    Flow* group = *one.add(kGroup, 0);
    other.remove(*other.add(kGroup, 0));
    one.remove(group);
    EXPECT_TRUE(adapter.rules.empty());
    for (const int fd : {one_fd, other_fd}) close(fd);
}

TEST(FlowTable, Withdrawn) {
    Adapter adapter;
    FlowTable table(adapter.calls(), {.mac = kOwnMac}, 1, "mlx5_0");
    Flow* flow = *table.add(kUdp5, 0);
    table.withdraw();
    EXPECT_TRUE(adapter.rules.empty());
    EXPECT_FALSE(table.add(kUdp3, 0));
    table.set_mac({2, 0, 0, 0, 0, 9});
    EXPECT_TRUE(adapter.rules.empty());
    table.remove(flow);
}

}  // namespace
