// SPDX-License-Identifier: BSD-2-Clause
// What an announcement says of a VLAN, and of what it stands on. Messages are made here, since not every
// kernel has VLANs.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#include <cstring>
#include <string>
#include <vector>

#include "libvma/net/decode.h"
#include "libvma/net/vlan_priorities.h"

namespace {

using namespace vma::net;

class Message {
  public:
    Message() : bytes_(NLMSG_LENGTH(sizeof(ifinfomsg))) {
        ifinfomsg info{};
        info.ifi_index = 7;
        info.ifi_type = ARPHRD_ETHER;
        std::memcpy(bytes_.data() + NLMSG_HDRLEN, &info, sizeof info);
    }
    template <class T>
    Message& add(int type, const T& value) {
        return append(type, &value, sizeof value);
    }
    Message& text(int type, const char* value) { return append(type, value, std::strlen(value) + 1); }
    template <class F>
    Message& nest(int type, F&& fill) {
        const std::size_t at = bytes_.size();
        append(type, nullptr, 0);
        fill(*this);
        reinterpret_cast<rtattr*>(bytes_.data() + at)->rta_len =
            static_cast<unsigned short>(bytes_.size() - at);
        return *this;
    }
    VlanPriorities priorities() { return decode_vlan_priorities(finish()); }
    Link decode() {
        LinkEntry entry;
        EXPECT_TRUE(decode_link(finish(), entry));
        return entry.link;
    }

  private:
    nlmsghdr* finish() {
        auto* header = reinterpret_cast<nlmsghdr*>(bytes_.data());
        header->nlmsg_len = static_cast<unsigned>(bytes_.size());
        header->nlmsg_type = RTM_NEWLINK;
        return header;
    }
    Message& append(int type, const void* value, std::size_t length) {
        rtattr head{static_cast<unsigned short>(RTA_LENGTH(length)), static_cast<unsigned short>(type)};
        const std::size_t at = bytes_.size();
        bytes_.resize(at + RTA_SPACE(length));
        std::memcpy(bytes_.data() + at, &head, sizeof head);
        if (length != 0) std::memcpy(bytes_.data() + at + RTA_LENGTH(0), value, length);
        return *this;
    }
    std::vector<std::uint8_t> bytes_;
};

Message vlan(std::uint16_t id, std::uint16_t protocol = ETH_P_8021Q) {
    Message message;
    message.text(IFLA_IFNAME, "eth2.100").add(IFLA_LINK, std::uint32_t{3});
    message.nest(IFLA_LINKINFO, [&](Message& m) {
        m.text(IFLA_INFO_KIND, "vlan").nest(IFLA_INFO_DATA, [&](Message& data) {
            data.add(IFLA_VLAN_ID, id).add(IFLA_VLAN_PROTOCOL, htons(protocol));
        });
    });
    return message;
}

TEST(DecodeLink, Vlan) {
    const Link link = vlan(100).decode();
    EXPECT_EQ(link.kind, "vlan");
    EXPECT_EQ(link.vlan, 100);
    EXPECT_EQ(link.lower, 3);
}

TEST(DecodeLink, VlanOfAnotherNamespace) {
    Message message = vlan(100);
    message.add(IFLA_LINK_NETNSID, std::int32_t{0});
    const Link link = message.decode();
    EXPECT_EQ(link.vlan, 100);
    EXPECT_EQ(link.lower, 0);
}

TEST(DecodeLink, ServiceTag) {
    const Link link = vlan(100, ETH_P_8021AD).decode();
    EXPECT_EQ(link.vlan, 0);
    EXPECT_EQ(link.lower, 0);
}

TEST(DecodeLink, NoVlan) {
    Message message;
    message.text(IFLA_IFNAME, "veth0").add(IFLA_LINK, std::uint32_t{8});
    message.nest(IFLA_LINKINFO, [&](Message& m) { m.text(IFLA_INFO_KIND, "veth"); });
    EXPECT_EQ(message.decode().lower, 0) << "a veth's peer is not below it";
    Message bare;
    bare.nest(IFLA_LINKINFO, [&](Message& m) { m.text(IFLA_INFO_KIND, "vlan"); });
    EXPECT_EQ(bare.decode().vlan, 0);
}

// A VLAN with an egress-qos-map.
Message mapped(std::vector<ifla_vlan_qos_mapping> map, const char* kind = "vlan") {
    Message message;
    message.nest(IFLA_LINKINFO, [&](Message& m) {
        m.text(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, [&](Message& data) {
            data.add(IFLA_VLAN_ID, std::uint16_t{100});
            data.nest(IFLA_VLAN_EGRESS_QOS, [&](Message& qos) {
                for (const auto& one : map) qos.add(IFLA_VLAN_QOS_MAPPING, one);
            });
        });
    });
    return message;
}

// As IP_TOS changes SO_PRIORITY on the kernel.
TEST(DecodeLink, VlanPriorities) {
    const VlanPriorities p = mapped({{6, 5}, {2, 1}, {0, 3}, {7, 7}, {4, 9}}).priorities();
    EXPECT_TRUE(p.any());
    for (unsigned tos : {0x00, 0x02, 0x04, 0x20, 0xe0}) EXPECT_EQ(p.pcp(tos), 3) << tos;
    for (unsigned tos : {0x08, 0x0b, 0x28, 0x88}) EXPECT_EQ(p.pcp(tos), 1) << tos;
    for (unsigned tos : {0x10, 0x13, 0xb0, 0x10}) EXPECT_EQ(p.pcp(tos), 5) << tos;
    for (unsigned tos : {0x18, 0x1c, 0xb8}) EXPECT_EQ(p.pcp(tos), 1) << tos << ": three bits of 9";
}

TEST(DecodeLink, NoVlanPriorities) {
    EXPECT_FALSE(vlan(100).priorities().any());
    EXPECT_FALSE(mapped({}).priorities().any());
    EXPECT_FALSE(mapped({{1, 5}, {3, 5}, {0xffffffff, 5}}).priorities().any()) << "no TOS has these";
    EXPECT_FALSE(mapped({{6, 5}}, "macvlan").priorities().any());
    Message message;
    message.nest(IFLA_LINKINFO, [](Message& m) {
        m.text(IFLA_INFO_KIND, "vlan").nest(IFLA_INFO_DATA, [](Message& data) {
            data.nest(IFLA_VLAN_EGRESS_QOS, [](Message& qos) {
                qos.add(IFLA_VLAN_QOS_MAPPING, std::uint32_t{6});  // half a mapping
                qos.add(99, ifla_vlan_qos_mapping{6, 5});
            });
        });
    });
    EXPECT_FALSE(message.priorities().any());
}

}  // namespace
