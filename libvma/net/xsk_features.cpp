// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/xsk_features.h"

#include <linux/genetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>

#include <cstring>
#include <functional>
#include <string_view>

#include "libvma/net/netlink.h"

namespace vma::net {
namespace {

// Of linux/netdev.h, which is newer than Debian 12's headers.
constexpr std::uint8_t kDeviceGet = 1;
constexpr int kIfindex = 1, kXdpFeatures = 3, kXskFeatures = 6;
constexpr std::uint64_t kZeroCopy = 8, kTransmitChecksum = 2;

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

// Calls `each` for the answers of a generic family.
void ask(NetlinkSocket& socket, int family, std::uint8_t command,
         const std::function<void(nlmsghdr*)>& each) {
    const genlmsghdr which{.cmd = command, .version = 1, .reserved = 0};
    (void)socket.dump(
        "generic netlink", family, &which, sizeof which, [] {}, each);
}

}  // namespace

std::optional<XskFeatures> decode_xsk_features(nlmsghdr* message, int ifindex) noexcept {
    nlattr* found[kXskFeatures + 1];
    if (!parse<kXskFeatures>(message, found) ||
        number_of<std::uint32_t>(found[kIfindex], 0) != static_cast<std::uint32_t>(ifindex))
        return std::nullopt;
    return XskFeatures{(number_of<std::uint64_t>(found[kXdpFeatures], 0) & kZeroCopy) != 0,
                       (number_of<std::uint64_t>(found[kXskFeatures], 0) & kTransmitChecksum) != 0};
}

std::optional<XskFeatures> xsk_features(int ifindex) {
    auto socket = NetlinkSocket::open(NETLINK_GENERIC);
    if (!socket) return std::nullopt;
    std::uint16_t family = 0;
    ask(*socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, [&](nlmsghdr* message) {
        nlattr* found[CTRL_ATTR_FAMILY_NAME + 1];
        if (!parse<CTRL_ATTR_FAMILY_NAME>(message, found) || found[CTRL_ATTR_FAMILY_NAME] == nullptr) return;
        const nlattr* name = found[CTRL_ATTR_FAMILY_NAME];
        if (std::string_view(static_cast<const char*>(nla_data(name)),
                             static_cast<std::size_t>(nla_len(name))) == std::string_view("netdev", 7))
            family = number_of<std::uint16_t>(found[CTRL_ATTR_FAMILY_ID], 0);
    });
    std::optional<XskFeatures> features;
    if (family == 0) return features;
    ask(*socket, family, kDeviceGet, [&](nlmsghdr* message) {
        if (!features) features = decode_xsk_features(message, ifindex);
    });
    return features;
}

}  // namespace vma::net
