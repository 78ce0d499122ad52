// SPDX-License-Identifier: BSD-2-Clause
// What the simulated adapter reads in frames: cut off, broken, with options, of IPv6.
#include "tests/support/mlx5_sim/nic/nic_frames.h"

#include <random>

#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

// An IPv6 frame with a TCP segment, without a sum.
Frame ipv6_frame(std::size_t payload) {
    Frame frame = {0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0};
    frame.resize(54 + 20 + payload);
    frame[18] = static_cast<std::uint8_t>((20 + payload) >> 8);
    frame[19] = static_cast<std::uint8_t>(20 + payload);
    frame[20] = IPPROTO_TCP;
    frame[21] = 64;
    for (std::size_t i = 22; i < 54; ++i) frame[i] = static_cast<std::uint8_t>(i);
    frame[54 + 12] = 0x50;
    frame[54 + 13] = 0x18;
    for (std::size_t i = 0; i < payload; ++i) frame[74 + i] = static_cast<std::uint8_t>(i * 11);
    return frame;
}
bool ipv6_sum_right(const Frame& frame) {
    const std::span<const std::uint8_t> bytes(frame);
    const std::size_t length = std::size_t{frame[18]} << 8 | frame[19];
    return plain_sum(bytes.subspan(54, length), plain_sum(bytes.subspan(22, 32)) + IPPROTO_TCP + length) ==
           0xffff;
}

TEST(NicFrames, HeadersAndTheirPlaces) {
    Headers h = parse(make_frame({.payload = 10}));
    EXPECT_EQ(h.ip_version, 4u);
    EXPECT_EQ(h.l3, 14u);
    EXPECT_EQ(h.l4, 34u);
    EXPECT_EQ(h.l4_bytes, 18u);
    h = parse(make_frame({.tcp = true, .payload = 10, .vlan = 0x2005}));
    EXPECT_TRUE(h.tagged);
    EXPECT_EQ(h.tci, htons(0x2005));
    EXPECT_EQ(h.l4, 38u);
    EXPECT_EQ(h.l4_header_bytes, 20u);
    h = parse(ipv6_frame(5));
    EXPECT_EQ(h.ip_version, 6u);
    EXPECT_EQ(h.l4, 54u);
    EXPECT_EQ(h.l4_bytes, 25u);

    Frame options = make_frame({.sums = false});
    options.insert(options.begin() + 34, 4, 1);
    options[14] = 0x46;
    options[17] = static_cast<std::uint8_t>(options.size() - 14);
    complete_checksums(options, true, true);
    h = parse(options);
    EXPECT_EQ(h.l3_bytes, 24u);
    EXPECT_EQ(h.l4, 38u);
    EXPECT_EQ(receive_bits(options).hds_ip_ext, 7);
}

TEST(NicFrames, SumsOfIpv6) {
    Frame frame = ipv6_frame(101);
    complete_checksums(frame, true, true);
    EXPECT_TRUE(ipv6_sum_right(frame));
    EXPECT_EQ(receive_bits(frame).hds_ip_ext, 7);
    EXPECT_EQ(receive_bits(frame).l4_hdr_type_etc, 4 << 4 | MLX5_CQE_L3_HDR_TYPE_IPV6 << 2);
    frame.back() ^= 1;
    EXPECT_EQ(receive_bits(frame).hds_ip_ext, 3);
}

TEST(NicFrames, LargeSendsOfIpv6) {
    const Frame frame = ipv6_frame(2500);
    const std::span<const std::uint8_t> bytes(frame);
    auto frames = cut(bytes.first(74), bytes.subspan(74), 1000);
    ASSERT_EQ(frames.size(), 3u);
    for (Frame& piece : frames) {
        complete_checksums(piece, true, true);
        EXPECT_TRUE(ipv6_sum_right(piece));
    }
    EXPECT_EQ(frames[2].size(), 574u);
    EXPECT_EQ(frames[2][60] << 8 | frames[2][61], 2000);  // the sequence number
}

TEST(NicFrames, WhatIsNoTcpIsNotCut) {
    const Frame udp = make_frame(), tcp = make_frame({.tcp = true});
    const std::span<const std::uint8_t> data(udp);
    EXPECT_TRUE(cut(std::span(udp).first(54), data, 100).empty());
    EXPECT_TRUE(cut(std::span(tcp).first(55), data, 100).empty());
    EXPECT_TRUE(cut(std::span(tcp).first(53), data, 100).empty());
    EXPECT_TRUE(cut(std::span(tcp).first(54), data, 0).empty());
    EXPECT_TRUE(cut({}, data, 100).empty());
    EXPECT_EQ(cut(std::span(tcp).first(54), {}, 100).size(), 1u);
}

// Whatever comes from a wire: nothing is read or written outside of it.
TEST(NicFrames, AnyBytes) {
    std::mt19937 random(1);
    Match match;
    match.dst_ip_mask = match.src_ip_mask = 0xffffffff;
    match.dst_port_mask = match.src_port_mask = 0xffff;
    match.protocol_mask = 0xff;
    const Frame samples[] = {make_frame(), make_frame({.tcp = true}), make_frame({.vlan = 3}),
                             ipv6_frame(30)};
    for (int round = 0; round < 20000; ++round) {
        Frame frame = samples[random() % 4];
        for (unsigned i = random() % 4; i != 0; --i)
            frame[random() % frame.size()] = static_cast<std::uint8_t>(random());
        frame.resize(random() % (frame.size() + 1));
        frame.shrink_to_fit();
        matches(match, frame, parse(frame));
        receive_bits(frame);
        const std::size_t header = random() % (frame.size() + 1);
        cut(std::span(frame).first(header), std::span(frame).subspan(header), 1 + random() % 100);
        const std::size_t before = frame.size();
        complete_checksums(frame, true, true);
        ASSERT_EQ(frame.size(), before);
    }
}

}  // namespace
}  // namespace mlx5_sim
