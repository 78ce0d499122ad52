// SPDX-License-Identifier: BSD-2-Clause
// The rdma device moves frames: rules, tags, checksums, inline sends, large sends, VLANs, time stamps.
#include <gmock/gmock.h>

#include "tests/verbs/sim_rdma/rdma_rig.h"

namespace rdma_rig {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using udp_frames::payload_of;

INSTANTIATE_TEST_SUITE_P(Rdma, RdmaPaths, testing::Bool(), path_name);

TEST_P(RdmaPaths, WhatItSays) {
    Rig a(config(kA));
    const auto& attr = a.device->attr();
    EXPECT_EQ(attr.name, GetParam() ? "mlx5:mlx5_0/1 (sim0)" : "rdma:mlx5_0/1 (sim0)");
    EXPECT_EQ(a.device->is_direct(), GetParam());
    EXPECT_EQ(attr.mac, kMacA);
    EXPECT_EQ(attr.chunk_size, 2048u);
    EXPECT_EQ(attr.rx_offset, 0u);
    EXPECT_EQ(attr.max_recv_wr, 64u);
    EXPECT_TRUE(attr.tx_checksum && attr.rx_checksum && attr.moderation && attr.arrival_times &&
                attr.coarse_steering);
    EXPECT_EQ(attr.max_inline, 204u);
    EXPECT_EQ(attr.max_tso, GetParam() ? 262144u : 0u) << "libmlx5's own is not to be trusted";
    EXPECT_EQ(attr.flow_tags, 0xffffffu);
}

TEST_P(RdmaPaths, FramesBothWays) {
    Rig a(config(kA)), b(config(kB));
    b.rule(three_tuple());
    a.rule({IPPROTO_UDP, inet_addr(kIpA), htons(1000), 0, 0});
    for (int i = 0; i < 300; i++) {  // around every queue
        const Bytes frame = udp(udp_frames::pattern(i * 4, i));
        a.send(frame);
        ASSERT_THAT(b.receive(), ElementsAre(frame));
        Bytes answer = udp_frames::make({kMacB, kMacA, kIpB, kIpA, 2000, 1000, std::to_string(i)});
        b.send(answer);
        ASSERT_THAT(a.receive(), ElementsAre(answer));
        ASSERT_EQ(a.poll(a.send_cq).size(), 1u);
        ASSERT_EQ(b.poll(b.send_cq).size(), 1u);
    }
}

TEST_P(RdmaPaths, WhatNoRuleWantsIsTheKernels) {
    Rig b(config(kB));
    auto& nic = mlx5_sim::nic(kB);
    EXPECT_FALSE(nic.steered(udp("x")));
    auto* flow = b.rule(three_tuple());
    EXPECT_TRUE(nic.steered(udp("x")));
    EXPECT_FALSE(nic.steered(udp("x", 2001)));
    Bytes other_station = udp("x");
    other_station[5] = 9;
    EXPECT_FALSE(nic.steered(other_station));
    b.drop(flow);
    EXPECT_FALSE(nic.steered(udp("x")));
}

TEST_P(RdmaPaths, FiveTuplesBeforeThreeTuples) {
    Rig a(config(kA)), wide(config(kB)), narrow(config(kB));
    wide.rule(three_tuple());
    narrow.rule(five_tuple());
    a.send(udp("for the narrow one"));
    a.send(udp("for the wide one", 2000, 1001));
    EXPECT_THAT(narrow.receive(), ElementsAre(udp("for the narrow one")));
    EXPECT_THAT(wide.receive(), ElementsAre(udp("for the wide one", 2000, 1001)));
}

TEST_P(RdmaPaths, Udp3tRules) {
    RdmaConfig c = config(kB);
    c.rules.udp_3t = true;
    Rig a(config(kA)), b(c);
    auto* one = b.rule(five_tuple());
    auto* two = b.rule(five_tuple(2000, 1001));
    a.send(udp("of anybody", 2000, 5555));
    EXPECT_EQ(b.receive().size(), 1u);
    b.drop(one);
    EXPECT_TRUE(mlx5_sim::nic(kB).steered(udp("x"))) << "the other one needs it";
    b.drop(two);
    EXPECT_FALSE(mlx5_sim::nic(kB).steered(udp("x")));
}

TEST_P(RdmaPaths, Multicast) {
    RdmaConfig l2 = config(kB);
    l2.rules.mc_l2_only = true;
    Rig b(config(kB)), all(l2);
    const FlowSpec group{IPPROTO_UDP, inet_addr("239.1.2.3"), htons(2000), 0, 0};
    b.rule(group);
    all.rule(group);
    auto frame = [](std::uint16_t port) {
        return udp_frames::make(
            {kMacA, {1, 0, 0x5e, 1, 2, 3}, kIpA, "239.1.2.3", 1000, port, "to the group"});
    };
    EXPECT_TRUE(mlx5_sim::nic(kB).receive(frame(2000)));
    EXPECT_TRUE(mlx5_sim::nic(kB).receive(frame(2001)));
    EXPECT_THAT(b.receive(), ElementsAre(frame(2000)));
    EXPECT_THAT(all.receive(), ElementsAre(frame(2000), frame(2001)));
}

TEST_P(RdmaPaths, NewMacOfTheNetdev) {
    Rig b(config(kB));
    b.rule(three_tuple());
    const MacAddress next = {2, 0, 0, 0, 0, 0x77};
    b.device->link_changed(next, 1500);
    EXPECT_FALSE(mlx5_sim::nic(kB).steered(udp("x")));
    Bytes frame = udp("x");
    std::copy(next.begin(), next.end(), frame.begin());
    EXPECT_TRUE(mlx5_sim::nic(kB).steered(frame));
    EXPECT_EQ(b.device->attr().mac, next);
}

// The plain path reads tags with the times only.
TEST_P(RdmaPaths, FlowTags) {
    Rig b(config(kB));
    b.rule(three_tuple(), 0x1234);
    b.rule(three_tuple(2001));
    vma::verbs::Device::want_arrival_times(true);
    mlx5_sim::nic(kB).receive(udp("tagged"));
    ASSERT_EQ(b.receive().size(), 1u);
    EXPECT_TRUE(b.last.wc_flags & vma::verbs::kWcFlowTag);
    EXPECT_EQ(vma::verbs::flow_tag(b.last), 0x1234u);
    mlx5_sim::nic(kB).receive(udp("not tagged", 2001));
    ASSERT_EQ(b.receive().size(), 1u);
    EXPECT_FALSE(b.last.wc_flags & vma::verbs::kWcFlowTag);
    vma::verbs::Device::want_arrival_times(false);
}

TEST_P(RdmaPaths, Checksums) {
    Rig a(config(kA)), b(config(kB));
    b.rule(three_tuple());
    Bytes frame = udp(udp_frames::pattern(400));
    const Bytes right = frame;
    udp_frames::put16(frame, udp_frames::kUdp + 6, udp_frames::pseudo_sum(frame));
    a.send(frame, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM);
    EXPECT_THAT(b.receive(), ElementsAre(right));
    EXPECT_TRUE(b.last.wc_flags & IBV_WC_IP_CSUM_OK);
    Bytes wrong = right;
    wrong.back() ^= 1;
    mlx5_sim::nic(kB).receive(wrong);
    EXPECT_EQ(b.receive().size(), 1u);
    EXPECT_FALSE(b.last.wc_flags & IBV_WC_IP_CSUM_OK);
}

TEST_P(RdmaPaths, Inline) {
    Rig a(config(kA)), b(config(kB));
    b.rule(three_tuple());
    std::vector<Bytes> frames;
    for (std::size_t length : {0u, 1u, 18u, 60u, 100u, 162u}) {
        frames.push_back(udp(udp_frames::pattern(length)));
        ASSERT_LE(frames.back().size(), a.device->attr().max_inline);
        a.send(frames.back(), IBV_SEND_SIGNALED | IBV_SEND_INLINE);  // which overwrites the buffer
    }
    EXPECT_EQ(b.receive(), frames);
}

TEST_P(RdmaPaths, InlineOfAnotherLength) {
    RdmaConfig none = config(kA), more = config(kB);
    none.max_inline = 0;
    more.max_inline = 400;
    Rig a(none), b(more);
    EXPECT_EQ(a.device->attr().max_inline, 0u);
    EXPECT_EQ(b.device->attr().max_inline, 400u);
}

// An IPv4 TCP header with zero sums, for a large send.
Bytes tcp_header() {
    Bytes header(54);
    std::copy(kMacB.begin(), kMacB.end(), header.begin());
    std::copy(kMacA.begin(), kMacA.end(), header.begin() + 6);
    udp_frames::put16(header, 12, 0x0800);
    header[14] = 0x45;
    header[22] = 64;
    header[23] = IPPROTO_TCP;
    const in_addr_t src = inet_addr(kIpA), dst = inet_addr(kIpB);
    std::memcpy(&header[26], &src, 4);
    std::memcpy(&header[30], &dst, 4);
    udp_frames::put16(header, 34, 1000);
    udp_frames::put16(header, 36, 2000);
    header[46] = 5 << 4;
    header[47] = 0x18;  // PSH, ACK
    return header;
}

int send_large(Rig& a, Bytes& header, const std::string& payload, std::uint16_t mss) {
    std::uint8_t* at = a.buffer(64) + a.device->attr().tx_headroom;
    ibv_sge sge[2] = {};
    const std::uint32_t first = std::min<std::uint32_t>(static_cast<std::uint32_t>(payload.size()), 1900);
    std::memcpy(at, payload.data(), first);
    std::memcpy(a.buffer(65), payload.data() + first, payload.size() - first);
    sge[0] = {reinterpret_cast<std::uintptr_t>(at), first, a.mr->lkey};
    sge[1] = {reinterpret_cast<std::uintptr_t>(a.buffer(65)),
              static_cast<std::uint32_t>(payload.size()) - first, a.mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = sge;
    wr.num_sge = 2;
    wr.opcode = IBV_WR_TSO;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
    wr.tso.hdr = header.data();
    wr.tso.hdr_sz = static_cast<std::uint16_t>(header.size());
    wr.tso.mss = mss;
    const int error = ibv_post_send(a.qp, &wr, &bad);
    mlx5_sim::settle();
    return error;
}

TEST_P(RdmaPaths, LargeSends) {
    Rig a(config(kA)), b(config(kB));
    if (a.device->attr().max_tso == 0) return;  // see WhatItSays
    b.rule({IPPROTO_TCP, inet_addr(kIpB), htons(2000), 0, 0});
    const std::string payload = udp_frames::pattern(3500);
    Bytes header = tcp_header();
    ASSERT_EQ(send_large(a, header, payload, 1400), 0);
    std::string got;
    std::vector<std::size_t> sizes;
    for (const Bytes& frame : b.receive()) {
        got.append(frame.begin() + 54, frame.end());
        sizes.push_back(frame.size() - 54);
        EXPECT_TRUE(b.last.wc_flags & IBV_WC_IP_CSUM_OK);
    }
    EXPECT_THAT(sizes, ElementsAre(1400, 1400, 700));
    EXPECT_EQ(got, payload);
}

// ---- VLAN ----

Bytes tagged(const Bytes& frame, std::uint16_t vlan) {
    Bytes with(frame.begin(), frame.begin() + 12);
    with.insert(with.end(), {0x81, 0, static_cast<std::uint8_t>(vlan >> 8), static_cast<std::uint8_t>(vlan)});
    with.insert(with.end(), frame.begin() + 12, frame.end());
    return with;
}

TEST_P(RdmaPaths, VlanBothWays) {
    RdmaConfig on_vlan = config(kB), sender = config(kA);
    on_vlan.vlan = sender.vlan = 300;
    Rig a(sender), b(on_vlan);
    EXPECT_EQ(b.device->attr().rx_offset, 4u);
    EXPECT_GE(b.device->attr().tx_headroom, 4u);
    b.rule(three_tuple());
    std::vector<Bytes> wire;
    mlx5_sim::nic(kA).on_transmit([&](mlx5_sim::Frame frame) { wire.push_back(without_padding(frame)); });
    EXPECT_FALSE(mlx5_sim::nic(kB).steered(udp("untagged")));
    EXPECT_FALSE(mlx5_sim::nic(kB).steered(tagged(udp("another VLAN"), 301)));
    for (int i = 0; i < 100; i++) {
        const Bytes frame = udp(udp_frames::pattern(10 + i, i));
        a.send(frame, i % 2 == 0 ? IBV_SEND_SIGNALED : IBV_SEND_SIGNALED | IBV_SEND_INLINE);
        ASSERT_EQ(a.poll(a.send_cq).size(), 1u);
        ASSERT_THAT(wire, ElementsAre(tagged(frame, 300)));
        ASSERT_TRUE(mlx5_sim::nic(kB).receive(tagged(frame, 300 | 5 << 13))) << "whatever the priority";
        ASSERT_THAT(b.receive(), ElementsAre(frame));
        wire.clear();
    }
    Bytes full = udp(udp_frames::pattern(1472));
    ASSERT_TRUE(mlx5_sim::nic(kB).receive(tagged(full, 300)));
    EXPECT_THAT(b.receive(), ElementsAre(full));
}

TEST_P(RdmaPaths, LargeSendsOnAVlan) {
    RdmaConfig sender = config(kA);
    sender.vlan = 7;
    Rig a(sender);
    if (a.device->attr().max_tso == 0) return;  // see WhatItSays
    std::vector<Bytes> wire;
    mlx5_sim::nic(kA).on_transmit([&](mlx5_sim::Frame frame) { wire.push_back(std::move(frame)); });
    Bytes header = tcp_header();
    ASSERT_EQ(send_large(a, header, udp_frames::pattern(2500), 1400), 0);
    ASSERT_EQ(wire.size(), 2u);
    for (const Bytes& frame : wire) EXPECT_EQ(udp_frames::get16(frame, 12), 0x8100u);
    EXPECT_EQ(wire[0].size(), 58u + 1400);
}

// ---- time stamps ----

TEST_P(RdmaPaths, RawTimeStamps) {
    RdmaConfig raw = config(kB);
    raw.hw_ts = vma::verbs::rdma::Conversion::raw;
    Rig b(raw);
    b.rule(three_tuple());
    std::uint64_t ticks = 1'000'000;
    mlx5_sim::set_clock(kB, [&] { return ticks; });
    mlx5_sim::nic(kB).receive(udp("nobody wants to know"));
    ASSERT_EQ(b.receive().size(), 1u);
    EXPECT_FALSE(b.last.wc_flags & vma::verbs::kWcTimestamp);
    vma::verbs::Device::want_arrival_times(true);
    for (int i = 0; i < 100; i++) {
        ticks += 1000;
        mlx5_sim::nic(kB).receive(udp("now"));
        ASSERT_EQ(b.receive().size(), 1u);
        ASSERT_TRUE(b.last.wc_flags & vma::verbs::kWcTimestamp);
        ASSERT_NEAR(static_cast<double>(vma::verbs::arrival_ns(b.last)), static_cast<double>(ticks) * 6.4, 1);
    }
    vma::verbs::Device::want_arrival_times(false);
}

TEST_P(RdmaPaths, TimeStampsOfTheSystem) {
    Rig b(config(kB));
    b.rule(three_tuple());
    vma::verbs::Device::want_arrival_times(true);
    mlx5_sim::nic(kB).receive(udp("x"));
    ASSERT_EQ(b.receive().size(), 1u);
    vma::verbs::Device::want_arrival_times(false);
    ASSERT_TRUE(b.last.wc_flags & vma::verbs::kWcTimestamp);
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t ns =
        static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
    const std::uint64_t got = vma::verbs::arrival_ns(b.last);
    EXPECT_LT(got > ns ? got - ns : ns - got, 3'600'000'000'000u)
        << "the right epoch; how exactly is rdma_clock_test's";
}

TEST_P(RdmaPaths, WithoutTimeStamps) {
    RdmaConfig none = config(kB);
    none.hw_ts = vma::verbs::rdma::Conversion::none;
    Rig b(none);
    EXPECT_FALSE(b.device->attr().arrival_times);
    b.rule(three_tuple());
    vma::verbs::Device::want_arrival_times(true);
    mlx5_sim::nic(kB).receive(udp("x"));
    EXPECT_EQ(b.receive().size(), 1u);
    EXPECT_FALSE(b.last.wc_flags & vma::verbs::kWcTimestamp);
    vma::verbs::Device::want_arrival_times(false);
}

}  // namespace
}  // namespace rdma_rig
