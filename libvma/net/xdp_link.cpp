// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/xdp_link.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "libvma/net/netlink.h"
#include "libvma/os/calls.h"

namespace vma::net {
namespace {

// Sets the interface's native program, or removes it (-1). The kernel's answer is in `buffer`: its message,
// or null.
nlmsghdr* set_program(NetlinkSocket& socket, int ifindex, int program, std::span<std::uint8_t> buffer) {
    const std::unique_ptr<nl_msg, void (*)(nl_msg*)> request(
        nlmsg_alloc_simple(RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK), nlmsg_free);
    ifinfomsg which{};
    which.ifi_family = AF_UNSPEC;
    which.ifi_index = ifindex;
    if (!request || nlmsg_append(request.get(), &which, sizeof which, NLMSG_ALIGNTO) != 0) return nullptr;
    nlattr* const xdp = nla_nest_start(request.get(), IFLA_XDP | NLA_F_NESTED);
    const std::uint32_t flags = XDP_FLAGS_DRV_MODE | (program >= 0 ? XDP_FLAGS_UPDATE_IF_NOEXIST : 0);
    if (xdp == nullptr || nla_put_s32(request.get(), IFLA_XDP_FD, program) != 0 ||
        nla_put_u32(request.get(), IFLA_XDP_FLAGS, flags) != 0)
        return nullptr;
    nla_nest_end(request.get(), xdp);
    nlmsg_hdr(request.get())->nlmsg_seq = socket.next_sequence();
    if (socket.send(nlmsg_hdr(request.get())) != 0) return nullptr;
    // The kernel answers within the call that sends.
    const ssize_t length = socket.receive(buffer);
    auto* const answer = reinterpret_cast<nlmsghdr*>(buffer.data());
    return length > 0 && nlmsg_ok(answer, static_cast<int>(length)) ? answer : nullptr;
}

}  // namespace

std::uint32_t decode_xdp_program(nlmsghdr* message, int ifindex) noexcept {
    nlattr *link[IFLA_MAX + 1], *xdp[IFLA_XDP_MAX + 1];
    if (message->nlmsg_type != RTM_NEWLINK ||
        nlmsg_parse(message, sizeof(ifinfomsg), link, IFLA_MAX, nullptr) != 0 ||
        static_cast<const ifinfomsg*>(nlmsg_data(message))->ifi_index != ifindex ||
        link[IFLA_XDP] == nullptr || nla_parse_nested(xdp, IFLA_XDP_MAX, link[IFLA_XDP], nullptr) != 0)
        return 0;
    for (const int kind : {IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID})
        if (xdp[kind] != nullptr && nla_len(xdp[kind]) >= static_cast<int>(sizeof(std::uint32_t)))
            if (const std::uint32_t id = nla_get_u32(xdp[kind]); id != 0) return id;
    return 0;
}

std::uint32_t xdp_program(int ifindex) {
    std::uint32_t id = 0;
    for_each_link([&](nlmsghdr* message) { id = std::max(id, decode_xdp_program(message, ifindex)); });
    return id;
}

std::string decode_refusal(nlmsghdr* message) {
    if (message->nlmsg_type != NLMSG_ERROR || (message->nlmsg_flags & NLM_F_ACK_TLVS) == 0 ||
        nlmsg_datalen(message) < static_cast<int>(sizeof(nlmsgerr)))
        return {};
    const auto& error = *static_cast<const nlmsgerr*>(nlmsg_data(message));
    std::size_t before = sizeof error;
    // The request, whole, unless it is capped.
    if ((message->nlmsg_flags & NLM_F_CAPPED) == 0) before += error.msg.nlmsg_len - NLMSG_HDRLEN;
    const auto room = static_cast<std::size_t>(nlmsg_datalen(message));
    before = NLMSG_ALIGN(before);
    nlattr* found[NLMSGERR_ATTR_MSG + 1];
    if (before >= room ||
        nla_parse(found, NLMSGERR_ATTR_MSG,
                  reinterpret_cast<nlattr*>(static_cast<char*>(nlmsg_data(message)) + before),
                  static_cast<int>(room - before), nullptr) != 0 ||
        found[NLMSGERR_ATTR_MSG] == nullptr)
        return {};
    const auto* const text = static_cast<const char*>(nla_data(found[NLMSGERR_ATTR_MSG]));
    return {text, strnlen(text, static_cast<std::size_t>(nla_len(found[NLMSGERR_ATTR_MSG])))};
}

std::string xdp_refusal(int ifindex, int program) {
    auto socket = NetlinkSocket::open();
    if (!socket) return {};
    for (const int option : {NETLINK_EXT_ACK, NETLINK_CAP_ACK}) {
        const int on = 1;
        os::setsockopt(socket->fd(), SOL_NETLINK, option, &on, sizeof on);
    }
    alignas(nlmsghdr) std::array<std::uint8_t, 1024> buffer{};
    nlmsghdr* const answer = set_program(*socket, ifindex, program, buffer);
    if (answer == nullptr) return {};
    if (answer->nlmsg_type == NLMSG_ERROR && nlmsg_datalen(answer) >= static_cast<int>(sizeof(nlmsgerr)) &&
        static_cast<const nlmsgerr*>(nlmsg_data(answer))->error == 0) {
        (void)set_program(*socket, ifindex, -1, buffer);
        return {};
    }
    return decode_refusal(answer);
}

}  // namespace vma::net
