// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/xdp_link.h"

#include <gtest/gtest.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace vma::net {
namespace {

// A netlink message, written piece by piece.
class Message {
  public:
    Message(std::uint16_t type, std::uint16_t flags) {
        const nlmsghdr head{0, type, flags, 1, 0};
        put(&head, sizeof head);
    }
    Message& put(const void* data, std::size_t length) {
        const auto* bytes = static_cast<const std::uint8_t*>(data);
        bytes_.insert(bytes_.end(), bytes, bytes + length);
        bytes_.resize(NLMSG_ALIGN(bytes_.size()));
        return *this;
    }
    Message& attribute(std::uint16_t type, const void* data, std::size_t length) {
        const std::uint16_t head[]{static_cast<std::uint16_t>(4 + length), type};
        bytes_.insert(bytes_.end(), reinterpret_cast<const std::uint8_t*>(head),
                      reinterpret_cast<const std::uint8_t*>(head) + sizeof head);
        return put(data, length);
    }
    Message& cut(std::size_t bytes) {
        bytes_.resize(bytes_.size() - bytes);
        return *this;
    }
    nlmsghdr* get() {
        auto* message = reinterpret_cast<nlmsghdr*>(bytes_.data());
        message->nlmsg_len = static_cast<std::uint32_t>(bytes_.size());
        return message;
    }

  private:
    std::vector<std::uint8_t> bytes_;
};

// Of interface 7, with a program of this kind (IFLA_XDP_*_PROG_ID).
Message link_with(std::uint16_t kind, std::uint32_t id) {
    ifinfomsg info{};
    info.ifi_index = 7;
    Message message(RTM_NEWLINK, 0);
    message.put(&info, sizeof info);
    const std::uint16_t inner[]{8, kind};
    std::uint8_t nested[8];
    std::memcpy(nested, inner, 4);
    std::memcpy(nested + 4, &id, 4);
    message.attribute(IFLA_XDP | NLA_F_NESTED, nested, sizeof nested);
    return message;
}

TEST(XdpLink, ProgramsOfAnyKindAreFound) {
    for (const std::uint16_t kind :
         {IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID}) {
        EXPECT_EQ(decode_xdp_program(link_with(kind, 0x12345).get(), 7), 0x12345u);
        EXPECT_EQ(decode_xdp_program(link_with(kind, 0x12345).get(), 8), 0u);
    }
    EXPECT_EQ(decode_xdp_program(link_with(IFLA_XDP_ATTACHED, 0x12345).get(), 7), 0u);
}

TEST(XdpLink, ShortMessagesHaveNoProgram) {
    for (std::size_t cut = 4; cut <= 24; cut += 4)
        EXPECT_EQ(decode_xdp_program(link_with(IFLA_XDP_PROG_ID, 9).cut(cut).get(), 7), 0u) << cut;
}

// What the kernel answers: the request's header alone (capped), or the whole request before the words.
Message refusal(std::uint16_t flags, std::uint32_t request, const std::string& words) {
    nlmsgerr error{};
    error.error = -EOPNOTSUPP;
    error.msg.nlmsg_len = request;
    Message message(NLMSG_ERROR, static_cast<std::uint16_t>(NLM_F_ACK_TLVS | flags));
    message.put(&error, sizeof error);
    if ((flags & NLM_F_CAPPED) == 0) {
        const std::vector<std::uint8_t> echoed(request - NLMSG_HDRLEN);
        message.put(echoed.data(), echoed.size());
    }
    message.attribute(NLMSGERR_ATTR_MSG, words.c_str(), words.size() + 1);
    return message;
}

TEST(XdpLink, WordsOfARefusal) {
    const std::string words = "driver does not want it";
    EXPECT_EQ(decode_refusal(refusal(NLM_F_CAPPED, 60, words).get()), words);
    EXPECT_EQ(decode_refusal(refusal(0, 60, words).get()), words);
    EXPECT_EQ(decode_refusal(refusal(0, NLMSG_HDRLEN, words).get()), words);
}

TEST(XdpLink, RefusalsWithoutWords) {
    EXPECT_EQ(decode_refusal(Message(NLMSG_ERROR, NLM_F_ACK_TLVS).get()), "");
    EXPECT_EQ(decode_refusal(Message(RTM_NEWLINK, NLM_F_ACK_TLVS).get()), "");
    nlmsgerr error{};
    EXPECT_EQ(decode_refusal(Message(NLMSG_ERROR, 0).put(&error, sizeof error).get()), "");
    // A request of a length that cannot be.
    for (const std::uint32_t length : {0u, 15u, 4000u, 0xffffffffu}) {
        error.msg.nlmsg_len = length;
        EXPECT_EQ(decode_refusal(Message(NLMSG_ERROR, NLM_F_ACK_TLVS).put(&error, sizeof error).get()), "");
    }
    EXPECT_EQ(decode_refusal(refusal(NLM_F_CAPPED, 60, "words").cut(12).get()), "");
}

}  // namespace
}  // namespace vma::net
