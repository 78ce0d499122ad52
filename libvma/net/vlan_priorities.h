// SPDX-License-Identifier: BSD-2-Clause
// The priority bits (PCP, IEEE 802.1Q) that a VLAN interface's frames get: `egress-qos-map` of ip-link(8).
#pragma once

#include <linux/netlink.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace vma::net {

// By the class of an IP header's TOS byte: the kernel makes a priority of its bits 3 and 4, and the map of
// the interface makes a PCP of that.
class VlanPriorities {
  public:
    // The kernel's priority (SO_PRIORITY) of packets with such a TOS.
    static constexpr std::uint32_t priority_of(std::uint8_t tos) noexcept {
        constexpr std::uint32_t kBestEffort = 0, kBulk = 2, kInteractive = 6, kInteractiveBulk = 4;
        constexpr std::uint32_t priorities[] = {kBestEffort, kBulk, kInteractive, kInteractiveBulk};
        return priorities[class_of(tos)];
    }
    // An entry of the interface's map.
    void map(std::uint32_t priority, std::uint32_t pcp) noexcept {
        for (unsigned tos = 0; tos < 32; tos += 8)
            if (priority_of(static_cast<std::uint8_t>(tos)) == priority)
                pcp_[class_of(static_cast<std::uint8_t>(tos))] = pcp & 7;
    }
    std::uint8_t pcp(std::uint8_t tos) const noexcept { return pcp_[class_of(tos)]; }
    // Some packets have a PCP other than 0.
    bool any() const noexcept { return pcp_ != decltype(pcp_){}; }

  private:
    static constexpr std::size_t class_of(std::uint8_t tos) noexcept { return tos >> 3 & 3; }
    std::array<std::uint8_t, 4> pcp_{};
};

// What an RTM_NEWLINK message says; all 0 where it is no VLAN's.
VlanPriorities decode_vlan_priorities(nlmsghdr* message);

// What the kernel says of the interface now; all 0 where it cannot be asked.
VlanPriorities vlan_priorities(int ifindex);

}  // namespace vma::net
