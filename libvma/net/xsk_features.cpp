// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/xsk_features.h"

#include <linux/genetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>

#include <cstring>
#include <string_view>

#include "libvma/net/netlink.h"

namespace vma::net {
namespace {

// Of linux/netdev.h, which is newer than Debian 12's headers.
constexpr std::uint8_t kDeviceGet = 1;
constexpr int kIfindex = 1, kXskFeatures = 6;
constexpr std::uint64_t kTransmitChecksum = 2;

// The attributes behind the header of a generic message. False: it is malformed.
template <int last>
bool parse(nlmsghdr* message, nlattr* (&found)[last + 1]) noexcept {
    return nlmsg_datalen(message) >= static_cast<int>(GENL_HDRLEN) &&
           nla_parse(found, last,
                     reinterpret_cast<nlattr*>(static_cast<char*>(nlmsg_data(message)) + GENL_HDRLEN),
                     nlmsg_datalen(message) - static_cast<int>(GENL_HDRLEN), nullptr) == 0;
}

template <class Number>
Number number_of(const nlattr* attribute, Number otherwise) noexcept {
    if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof(Number))) return otherwise;
    Number value;
    std::memcpy(&value, nla_data(attribute), sizeof value);
    return value;
}

// The family's number, or 0.
std::uint16_t family_of(NetlinkSocket& socket, std::string_view name) {
    std::uint16_t family = 0;
    const genlmsghdr which{.cmd = CTRL_CMD_GETFAMILY, .version = 1, .reserved = 0};
    (void)socket.dump(
        "families", GENL_ID_CTRL, &which, sizeof which, [] {},
        [&](nlmsghdr* message) {
            nlattr* found[CTRL_ATTR_FAMILY_NAME + 1];
            if (!parse<CTRL_ATTR_FAMILY_NAME>(message, found) || found[CTRL_ATTR_FAMILY_NAME] == nullptr)
                return;
            const nlattr* text = found[CTRL_ATTR_FAMILY_NAME];
            const auto room = static_cast<std::size_t>(nla_len(text));
            const auto* bytes = static_cast<const char*>(nla_data(text));
            if (std::string_view(bytes, strnlen(bytes, room)) == name)
                family = number_of<std::uint16_t>(found[CTRL_ATTR_FAMILY_ID], 0);
        });
    return family;
}

}  // namespace

bool decode_xsk_checksum(nlmsghdr* message, int ifindex) noexcept {
    nlattr* found[kXskFeatures + 1];
    return parse<kXskFeatures>(message, found) &&
           number_of<std::uint32_t>(found[kIfindex], 0) == static_cast<std::uint32_t>(ifindex) &&
           (number_of<std::uint64_t>(found[kXskFeatures], 0) & kTransmitChecksum) != 0;
}

bool xsk_checksum(int ifindex) {
    auto socket = NetlinkSocket::open(NETLINK_GENERIC);
    if (!socket) return false;
    const std::uint16_t family = family_of(*socket, "netdev");
    if (family == 0) return false;
    bool sums = false;
    const genlmsghdr which{.cmd = kDeviceGet, .version = 1, .reserved = 0};
    (void)socket->dump(
        "devices", family, &which, sizeof which, [] {},
        [&](nlmsghdr* message) { sums = sums || decode_xsk_checksum(message, ifindex); });
    return sums;
}

}  // namespace vma::net
