// SPDX-License-Identifier: BSD-2-Clause
// Turns a socket's FlowSpec into the adapter's flow rule for ibv_create_flow().
//
// A FlowSpec becomes a HwRule, which may match more frames than the spec. VMA_TCP_3T_RULES and
// VMA_UDP_3T_RULES leave the peer out; VMA_ETH_MC_L2_ONLY_RULES leaves out all but the group's Ethernet
// address. Several specs may then share a rule. Pure functions.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <compare>
#include <cstdint>

#include "libvma/verbs/device.h"

namespace vma::verbs::rdma {

struct RuleOptions {
    MacAddress mac{};         // of the netdev
    std::uint16_t vlan = 0;   // VLAN id of the frames, 0: untagged
    bool tcp_3t = false;      // VMA_TCP_3T_RULES
    bool udp_3t = false;      // VMA_UDP_3T_RULES
    bool mc_l2_only = false;  // VMA_ETH_MC_L2_ONLY_RULES
};

// The lower value wins. A frame that matches a rule of each kind follows the narrowest. Between two kinds
// there is room for a rule that moves from one QP to another (FlowTable::take).
enum class Priority : std::uint16_t { five_tuple = 1, three_tuple = 3, layer_2 = 5 };

struct HwRule {
    MacAddress dst_mac{};
    std::uint16_t vlan = 0;
    Priority priority = Priority::three_tuple;
    FlowSpec match;  // without effect for Priority::layer_2
    friend auto operator<=>(const HwRule&, const HwRule&) = default;
};

HwRule hw_rule(const FlowSpec& spec, const RuleOptions& options) noexcept;
// The rule as a number for RuleClaims; 0 where several processes may have it: all get a group's frames, and a
// connection's four numbers are one process's.
std::uint64_t claim_of(const HwRule& rule, std::uint8_t port) noexcept;
// Can no other spec have the same rule, `hw_rule(spec, options)`?
bool is_only_for(const HwRule& rule, const FlowSpec& spec, const RuleOptions& options) noexcept;

// The Ethernet address of an IPv4 group (RFC 1112, section 6.4); `group` in network byte order.
MacAddress multicast_mac(in_addr_t group) noexcept;
inline bool is_multicast(in_addr_t address) noexcept { return (ntohl(address) & 0xf0000000u) == 0xe0000000u; }

// ibv_flow_attr and the specs behind it, in one piece.
class FlowAttr {
  public:
    // `tag` 0: none. `over`: the rule goes before another one for the same frames.
    FlowAttr(const HwRule& rule, std::uint8_t port, std::uint32_t tag, bool over = false) noexcept;
    ibv_flow_attr* get() noexcept { return reinterpret_cast<ibv_flow_attr*>(bytes_.data()); }
    std::size_t size() const noexcept { return used_; }

  private:
    template <class Spec>
    Spec& append(ibv_flow_spec_type type) noexcept;

    static constexpr std::size_t kLargest = sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) +
                                            sizeof(ibv_flow_spec_ipv4) + sizeof(ibv_flow_spec_tcp_udp) +
                                            sizeof(ibv_flow_spec_action_tag);
    alignas(8) std::array<std::uint8_t, kLargest> bytes_{};
    std::size_t used_ = sizeof(ibv_flow_attr);
};

// The reason why ibv_create_flow() failed with `error`, and the remedy.
Error flow_error(int error, const HwRule& rule, const std::string& device);

}  // namespace vma::verbs::rdma
