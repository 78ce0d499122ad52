// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/vlan_priorities.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>

#include <cstring>
#include <string_view>

#include "libvma/net/netlink.h"

namespace vma::net {

VlanPriorities decode_vlan_priorities(nlmsghdr* message) {
    VlanPriorities priorities;
    nlattr *link[IFLA_MAX + 1], *info[IFLA_INFO_MAX + 1], *vlan[IFLA_VLAN_MAX + 1];
    if (message->nlmsg_type != RTM_NEWLINK ||
        nlmsg_parse(message, sizeof(ifinfomsg), link, IFLA_MAX, nullptr) != 0 ||
        link[IFLA_LINKINFO] == nullptr ||
        nla_parse_nested(info, IFLA_INFO_MAX, link[IFLA_LINKINFO], nullptr) != 0 ||
        info[IFLA_INFO_KIND] == nullptr || info[IFLA_INFO_DATA] == nullptr)
        return priorities;
    constexpr std::string_view kKind("vlan", sizeof "vlan");
    const std::string_view kind(static_cast<const char*>(nla_data(info[IFLA_INFO_KIND])),
                                static_cast<std::size_t>(nla_len(info[IFLA_INFO_KIND])));
    if (kind != kKind || nla_parse_nested(vlan, IFLA_VLAN_MAX, info[IFLA_INFO_DATA], nullptr) != 0 ||
        vlan[IFLA_VLAN_EGRESS_QOS] == nullptr)
        return priorities;
    int left = nla_len(vlan[IFLA_VLAN_EGRESS_QOS]);
    for (auto* one = static_cast<nlattr*>(nla_data(vlan[IFLA_VLAN_EGRESS_QOS])); nla_ok(one, left);
         one = nla_next(one, &left)) {
        ifla_vlan_qos_mapping mapping;
        if (nla_type(one) != IFLA_VLAN_QOS_MAPPING || nla_len(one) < static_cast<int>(sizeof mapping))
            continue;
        std::memcpy(&mapping, nla_data(one), sizeof mapping);
        priorities.map(mapping.from, mapping.to);
    }
    return priorities;
}

VlanPriorities vlan_priorities(int ifindex) {
    VlanPriorities priorities;
    for_each_link([&](nlmsghdr* message) {
        if (nlmsg_datalen(message) >= static_cast<int>(sizeof(ifinfomsg)) &&
            static_cast<const ifinfomsg*>(nlmsg_data(message))->ifi_index == ifindex)
            priorities = decode_vlan_priorities(message);
    });
    return priorities;
}

}  // namespace vma::net
