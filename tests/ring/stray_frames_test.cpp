// SPDX-License-Identifier: BSD-2-Clause
// A record of strays.bpf.c becomes a frame. It may hold anything: a peer has sent it.
#include <gtest/gtest.h>

#include <vector>

#include "libvma/net/checksum.h"
#include "libvma/ring/strays/stray_segments.h"
#include "tests/support/attacker/segment.h"

namespace vma::ring {
namespace {

using Bytes = std::vector<std::uint8_t>;

attacker::Segment segment(std::size_t payload) {
    attacker::Segment s;
    s.from = inet_addr("198.18.1.1");
    s.to = inet_addr("198.18.1.2");
    s.from_port = 1234;
    s.to_port = 80;
    s.seq = 17;
    s.flags = attacker::kAck;
    s.payload = std::string(payload, 'p');
    return s;
}

// As the filter writes it.
Bytes record_of(const attacker::Frame& frame) {
    stray_segment head{};
    head.length = static_cast<__u32>(frame.size() - 34);
    std::copy_n(frame.begin(), 14, head.ethernet);
    std::copy_n(frame.begin() + 14, 20, head.ip);
    Bytes record(sizeof head);
    std::memcpy(record.data(), &head, sizeof head);
    record.insert(record.end(), frame.begin() + 34, frame.end());
    return record;
}
Bytes record_of(const attacker::Segment& s) {
    return record_of(attacker::build(s, {2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}));
}

struct StrayFrames : testing::Test {
    bool make(const Bytes& record) {
        frame = frame_of(record, room.data(), parsed);
        return !frame.empty();
    }
    Bytes room = Bytes(sizeof(stray_segment) + 65536);
    std::span<std::uint8_t> frame;
    net::ParsedFrame parsed;
};

TEST_F(StrayFrames, AreThoseThatWereSent) {
    const auto sent = attacker::build(segment(100), {2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2});
    ASSERT_TRUE(make(record_of(sent)));
    const auto heard = attacker::parse(frame);
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->payload, segment(100).payload);
    EXPECT_EQ(parsed.src_port, htons(1234));
    EXPECT_EQ(parsed.payload_length, 100u);
}

// Options, a fragment's offset and a length of its own: what the kernel's IP header has of the first
// fragment.
TEST_F(StrayFrames, HaveAnIpHeaderOfTheirOwn) {
    Bytes record = record_of(segment(3000));
    std::uint8_t* ip = &record[offsetof(stray_segment, ip)];
    ip[0] = 0x4f;
    attacker::put16(ip + 2, 1500);
    attacker::put16(ip + 6, 0x2000);
    attacker::put16(ip + 10, 0x1234);
    ASSERT_TRUE(make(record));
    EXPECT_EQ(frame.size(), 34u + 20 + 3000);
    EXPECT_EQ(attacker::get16(&frame[16]), 20u + 20 + 3000);
    EXPECT_EQ(frame[14], 0x45);
}

TEST_F(StrayFrames, AreLessThanAnIpPacket) {
    EXPECT_TRUE(make(record_of(segment(65535 - 40))));
    Bytes record = record_of(segment(100));
    record.resize(sizeof(stray_segment) + 65536);
    stray_segment head;
    std::memcpy(&head, record.data(), sizeof head);
    head.length = 65516;
    std::memcpy(record.data(), &head, sizeof head);
    EXPECT_FALSE(make(record));
}

TEST_F(StrayFrames, HaveAGoodChecksum) {
    Bytes record = record_of(segment(100));
    record.back() ^= 1;
    EXPECT_FALSE(make(record));
    // The kernel's own has the pseudo header's sum alone.
    record = record_of(segment(100));
    const std::uint64_t sum =
        net::pseudo_header_sum(inet_addr("198.18.1.1"), inet_addr("198.18.1.2"), IPPROTO_TCP, 120);
    const std::uint16_t partial = net::checksum_fold(sum);
    std::memcpy(&record[sizeof(stray_segment) + 16], &partial, 2);
    EXPECT_TRUE(make(record));
}

TEST_F(StrayFrames, AreNothingOfAMalformedRecord) {
    const Bytes good = record_of(segment(10));
    for (std::size_t n = 0; n < good.size(); n++) {
        Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n));
        EXPECT_FALSE(make(cut)) << n;
    }
    Bytes longer = good;
    attacker::put32(&longer[0], 0xffffffff);
    EXPECT_FALSE(make(longer));
    Bytes offset = good;
    offset[sizeof(stray_segment) + 12] = 0xf0;  // a header longer than the segment
    EXPECT_FALSE(make(offset));
    Bytes other = good;
    other[offsetof(stray_segment, ip) + 9] = IPPROTO_UDP;
    EXPECT_FALSE(make(other));
}

}  // namespace
}  // namespace vma::ring
