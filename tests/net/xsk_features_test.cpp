// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/xsk_features.h"

#include <gtest/gtest.h>
#include <linux/genetlink.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace vma::net {
namespace {

// An answer of the family "netdev".
class Answer {
  public:
    Answer() : bytes_(NLMSG_HDRLEN + GENL_HDRLEN) {}
    template <class T>
    Answer& add(std::uint16_t type, T value) {
        const nlattr head{static_cast<std::uint16_t>(NLA_HDRLEN + sizeof value), type};
        const std::size_t at = bytes_.size();
        bytes_.resize(at + NLA_ALIGN(head.nla_len));
        std::memcpy(bytes_.data() + at, &head, sizeof head);
        std::memcpy(bytes_.data() + at + NLA_HDRLEN, &value, sizeof value);
        return *this;
    }
    Answer& cut(std::size_t bytes) {
        bytes_.resize(bytes_.size() - bytes);
        return *this;
    }
    std::optional<XskFeatures> features(int ifindex) {
        auto* message = reinterpret_cast<nlmsghdr*>(bytes_.data());
        message->nlmsg_len = static_cast<std::uint32_t>(bytes_.size());
        return decode_xsk_features(message, ifindex);
    }
    bool sums(int ifindex) { return features(ifindex).value_or(XskFeatures{}).checksum; }
    bool avoids_copies(int ifindex) { return features(ifindex).value_or(XskFeatures{}).zero_copy; }

  private:
    std::vector<std::uint8_t> bytes_;
};

constexpr std::uint16_t kIfindex = 1, kXdpFeatures = 3, kXskFeatures = 6;
constexpr std::uint64_t kTimestamp = 1, kChecksum = 2;

TEST(XskFeatures, AreThoseOfTheInterface) {
    Answer answer;
    answer.add(kIfindex, std::uint32_t{7}).add(kXdpFeatures, std::uint64_t{0x7f});
    EXPECT_FALSE(answer.sums(7)) << "XDP's features are others";
    EXPECT_TRUE(answer.avoids_copies(7));
    answer.add(kXskFeatures, kTimestamp | kChecksum);
    EXPECT_TRUE(answer.sums(7));
    EXPECT_FALSE(answer.sums(8));
    EXPECT_FALSE(answer.sums(0));
    EXPECT_FALSE(answer.avoids_copies(8));
}

TEST(XskFeatures, WithoutZeroCopy) {
    Answer answer;
    answer.add(kIfindex, std::uint32_t{7}).add(kXdpFeatures, std::uint64_t{0x77});
    ASSERT_TRUE(answer.features(7));
    EXPECT_FALSE(answer.avoids_copies(7));
    EXPECT_FALSE(answer.features(8)) << "an answer about another interface says nothing";
    EXPECT_FALSE(Answer().features(7));
}

TEST(XskFeatures, WithoutChecksum) {
    EXPECT_FALSE(Answer().add(kIfindex, std::uint32_t{7}).add(kXskFeatures, kTimestamp).sums(7));
    EXPECT_FALSE(Answer().add(kXskFeatures, kChecksum).sums(7)) << "of no interface";
    EXPECT_FALSE(Answer().sums(7));
}

TEST(XskFeatures, OfAMalformedAnswer) {
    Answer answer;
    answer.add(kIfindex, std::uint32_t{7}).add(kXskFeatures, kChecksum);
    for (std::size_t n = 1; n < NLMSG_HDRLEN + GENL_HDRLEN + 20; n++)
        EXPECT_FALSE(Answer(answer).cut(n).sums(7)) << n;
    EXPECT_FALSE(Answer().add(kIfindex, std::uint16_t{7}).add(kXskFeatures, kChecksum).sums(7));
    EXPECT_FALSE(Answer().add(kIfindex, std::uint32_t{7}).add(kXskFeatures, std::uint32_t{2}).sums(7));
}

// Of the running kernel: neither is bound without copies, so neither promises anything.
TEST(XskFeatures, OfLoopbackAndNobody) {
    const auto loopback = xsk_features(1).value_or(XskFeatures{});
    EXPECT_FALSE(loopback.checksum || loopback.zero_copy);
    EXPECT_FALSE(xsk_features(0x7fffffff));
}

}  // namespace
}  // namespace vma::net
