// SPDX-License-Identifier: BSD-2-Clause
// Rules and receive queues: matching, copies, completions, wraps.
#include <gmock/gmock.h>

#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

// A rule for UDP to port 2000 of 198.18.1.1.
Rule udp_rule(std::uint32_t qpn = Rig::kQpn) {
    Rule rule;
    rule.qpn = qpn;
    rule.match.ether_type = htons(0x0800);
    rule.match.ether_type_mask = 0xffff;
    rule.match.dst_ip = inet_addr("198.18.1.1");
    rule.match.dst_ip_mask = 0xffffffff;
    rule.match.protocol = IPPROTO_UDP;
    rule.match.protocol_mask = 0xff;
    rule.match.dst_port = htons(2000);
    rule.match.dst_port_mask = 0xffff;
    return rule;
}

bool arrived(const Rig& rig, const Frame& frame, std::size_t offset) {
    return std::memcmp(&rig.arena[offset], frame.data(), frame.size()) == 0;
}

TEST(NicReceive, AFrameAndItsCompletion) {
    Rig rig;
    Rule rule = udp_rule();
    rule.tag = 0x4711;
    rig.nic.create_rule(rule);
    rig.post_receive(100, 2048);
    const Frame frame = make_frame();
    rig.now = 5555;
    EXPECT_TRUE(rig.nic.receive(frame));
    const auto cqe = rig.poll(rig.recv_cq);
    ASSERT_TRUE(cqe);
    EXPECT_EQ(cqe->op_own >> 4, MLX5_CQE_RESP_SEND);
    EXPECT_EQ(be32toh(cqe->byte_cnt), frame.size());
    EXPECT_EQ(be32toh(cqe->srqn_uidx), Rig::kUser);
    EXPECT_EQ(be32toh(cqe->sop_drop_qpn), 0x4711u);
    EXPECT_EQ(be16toh(cqe->wqe_counter), 0);
    EXPECT_EQ(be64toh(cqe->timestamp), 5555u);
    EXPECT_EQ(cqe->hds_ip_ext, MLX5_CQE_L2_OK | MLX5_CQE_L3_OK | MLX5_CQE_L4_OK);
    EXPECT_EQ(cqe->l4_hdr_type_etc, 2 << 4 | MLX5_CQE_L3_HDR_TYPE_IPV4 << 2);
    EXPECT_TRUE(arrived(rig, frame, 100));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, ChecksumBits) {
    Rig rig;
    rig.take_all();
    const auto bits = [&](const Frame& frame) {
        rig.post_receive(0, 2048);
        rig.nic.receive(frame);
        const auto cqe = rig.poll(rig.recv_cq);
        return cqe ? std::pair<int, int>(cqe->hds_ip_ext, cqe->l4_hdr_type_etc) : std::pair(-1, -1);
    };
    constexpr int kIp = MLX5_CQE_L3_HDR_TYPE_IPV4 << 2;
    EXPECT_EQ(bits(make_frame({.tcp = true})), std::pair(7, 4 << 4 | kIp));
    EXPECT_EQ(bits(make_frame({.tcp = true, .payload = 0})), std::pair(7, 3 << 4 | kIp));
    EXPECT_EQ(bits(make_frame({.tcp = true, .tcp_flags = 0x02})), std::pair(7, 1 << 4 | kIp));
    Frame frame = make_frame();
    frame.back() ^= 1;
    EXPECT_EQ(bits(frame), std::pair(3, 2 << 4 | kIp));
    frame = make_frame();
    frame[22] ^= 1;  // the TTL
    EXPECT_EQ(bits(frame), std::pair(5, 2 << 4 | kIp));
    frame = make_frame();
    frame[40] = frame[41] = 0;  // UDP without a sum
    EXPECT_EQ(bits(frame), std::pair(7, 2 << 4 | kIp));
    EXPECT_EQ(bits(make_frame({.fragment = 0x2000})), std::pair(3, kIp));
    EXPECT_EQ(bits(make_frame({.vlan = 7})), std::pair(7, 2 << 4 | kIp));
    frame = make_frame({.payload = 1});
    frame.resize(60);  // padding is not summed
    EXPECT_EQ(bits(frame), std::pair(7, 2 << 4 | kIp));
    EXPECT_EQ(bits(Frame(64, 0xff)), std::pair(1, 0));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, SeveralSegmentsAndTheEndMarker) {
    Rig rig({.recv_shift = 6});
    rig.take_all();
    const Frame frame = make_frame({.payload = 300});
    rig.put_receive({rig.segment(1000, 100), rig.segment(5000, 1000)});  // and the marker
    rig.put_receive(
        {rig.segment(0, 64), rig.segment(100, 64), rig.segment(200, 64), rig.segment(300, 1000)});  // full
    rig.write_receive_record();
    ASSERT_TRUE(rig.nic.receive(frame));
    EXPECT_EQ(std::memcmp(&rig.arena[1000], &frame[0], 100), 0);
    EXPECT_EQ(std::memcmp(&rig.arena[5000], &frame[100], frame.size() - 100), 0);
    ASSERT_TRUE(rig.nic.receive(frame));
    EXPECT_EQ(std::memcmp(&rig.arena[300], &frame[192], frame.size() - 192), 0);
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, QueueAndCompletionsWrap) {
    for (std::uint32_t cqe_size : {64u, 128u}) {
        Rig rig({.recv_entries = 4, .cqes = 8, .cqe_size = cqe_size});
        rig.take_all();
        const Frame frame = make_frame();
        for (int i = 0; i < 70000; ++i) {  // past 16 bits of requests and many turns of the owner bit
            rig.post_receive(static_cast<std::size_t>(i % 4) * 2048, 2048);
            ASSERT_TRUE(rig.nic.receive(frame));
            const auto cqe = rig.poll(rig.recv_cq);
            ASSERT_TRUE(cqe) << i;
            ASSERT_EQ(be16toh(cqe->wqe_counter), i & 0xffff);
        }
        EXPECT_EQ(rig.nic.counters().received, 70000u);
        EXPECT_EQ(rig.violations(), "");
    }
}

TEST(NicReceive, TheConsumerIndexWrapsAt24Bits) {
    Rig rig({.first_cqe = (1u << 24) - 5});
    rig.take_all();
    for (int i = 0; i < 10; ++i) {
        rig.arm(rig.recv_cq);
        rig.nic.step();
        EXPECT_EQ(rig.recv_cq.events, 0u);
        rig.post_receive(0, 2048);
        ASSERT_TRUE(rig.nic.receive(make_frame()));
        EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
        ASSERT_TRUE(rig.poll(rig.recv_cq));
    }
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, WithoutARequestFramesAreDropped) {
    Rig rig;
    rig.take_all();
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(rig.nic.counters().no_receive, 1u);
    EXPECT_FALSE(rig.poll(rig.recv_cq));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, RulesMatchByEachField) {
    Rig rig;
    rig.nic.create_rule(udp_rule());
    const auto takes = [&](const Frame& frame) { return rig.nic.steered(frame); };
    EXPECT_TRUE(takes(make_frame()));
    EXPECT_TRUE(takes(make_frame({.vlan = 9})));  // tagged or not, since no tag is asked for
    EXPECT_FALSE(takes(make_frame({.tcp = true})));
    EXPECT_FALSE(takes(make_frame({.dst_port = 2001})));
    EXPECT_FALSE(takes(make_frame({.fragment = 0x2000})));
    EXPECT_FALSE(takes(make_frame({.fragment = 0x0010})));
    Frame frame = make_frame();
    frame[33] = 9;  // the destination's last byte
    EXPECT_FALSE(takes(frame));
    EXPECT_FALSE(takes(Frame(10, 0)));

    Rig tagged;
    Rule rule = udp_rule();
    rule.match.vlan = htons(5);
    rule.match.vlan_mask = htons(0x0fff);
    rule.match.src_port = htons(1000);
    rule.match.src_port_mask = 0xffff;
    rule.match.src_ip = inet_addr("198.18.1.2");
    rule.match.src_ip_mask = 0xffffffff;
    rule.match.dst_mac = {0x02, 0, 0, 0, 0, 1};
    rule.match.dst_mac_mask.fill(0xff);
    rule.match.src_mac = {0x02, 0, 0, 0, 0, 2};
    rule.match.src_mac_mask.fill(0xff);
    const auto handle = tagged.nic.create_rule(rule);
    EXPECT_TRUE(tagged.nic.steered(make_frame({.vlan = 0x6005})));
    EXPECT_FALSE(tagged.nic.steered(make_frame({.vlan = 6})));
    EXPECT_FALSE(tagged.nic.steered(make_frame()));
    EXPECT_FALSE(tagged.nic.steered(make_frame({.src_port = 7, .vlan = 5})));
    EXPECT_FALSE(tagged.nic.steered(make_frame({.vlan = 5, .dst_first = 0x06})));
    tagged.nic.destroy_rule(handle);
    EXPECT_FALSE(tagged.nic.steered(make_frame({.vlan = 5})));
}

TEST(NicReceive, PriorityThenAge) {
    Rig rig;
    Rule rule = udp_rule();
    const auto tag_of = [&] {
        rig.post_receive(0, 2048);
        rig.nic.receive(make_frame());
        const auto cqe = rig.poll(rig.recv_cq);
        return cqe ? be32toh(cqe->sop_drop_qpn) : 0;
    };
    rule.sniffs_all = true;
    rule.tag = 9;
    rig.nic.create_rule(rule);
    rule.sniffs_all = false;
    rule.priority = 2;
    rule.tag = 1;
    rig.nic.create_rule(rule);
    EXPECT_EQ(tag_of(), 1u);
    rule.tag = 2;
    const auto equal = rig.nic.create_rule(rule);
    EXPECT_EQ(tag_of(), 1u);
    rule.priority = 1;
    rule.tag = 3;
    const auto better = rig.nic.create_rule(rule);
    EXPECT_EQ(tag_of(), 3u);
    rig.nic.destroy_rule(better);
    rig.nic.destroy_rule(equal);
    EXPECT_EQ(tag_of(), 1u);
    rig.post_receive(0, 2048);
    EXPECT_TRUE(rig.nic.receive(make_frame({.tcp = true})));  // the one that sniffs all
}

TEST(NicReceive, MulticastGoesToAllThatMatch) {
    Rig rig;
    std::vector<std::uint8_t> queue(64);
    std::vector<std::uint32_t> record = {htobe32(1), 0};
    QpAttr attr;
    attr.qpn = 0x99;
    attr.send_buffer = attr.recv_buffer = queue.data();
    attr.send_entries = attr.recv_entries = 1;
    attr.doorbell_record = record.data();
    attr.send_cqn = attr.recv_cqn = Rig::kSendCq;
    attr.uar = Rig::kUar;
    rig.nic.create_qp(attr);
    rig.nic.modify_qp(0x99, QpState::init);  // enough
    const mlx5_wqe_data_seg there = rig.segment(30000, 2048);
    std::memcpy(queue.data(), &there, sizeof there);
    rig.nic.create_rule(udp_rule());
    rig.nic.create_rule(udp_rule());  // a second of the same QP: still one copy
    rig.nic.create_rule(udp_rule(0x99));
    for (int i = 0; i < 2; ++i) rig.put_receive({rig.segment(0, 2048)});
    rig.write_receive_record();
    const Frame group = make_frame({.dst_first = 0x01});
    EXPECT_TRUE(rig.nic.receive(group));
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_FALSE(rig.poll(rig.recv_cq));
    EXPECT_TRUE(rig.poll(rig.send_cq));
    EXPECT_TRUE(arrived(rig, group, 30000));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, AFrameToAStationGoesToAllWithAnEqualRule) {
    Rig rig;
    std::vector<std::uint8_t> queue(64);
    std::vector<std::uint32_t> record = {htobe32(1), 0};
    QpAttr attr;
    attr.qpn = 0x99;
    attr.send_buffer = attr.recv_buffer = queue.data();
    attr.send_entries = attr.recv_entries = 1;
    attr.doorbell_record = record.data();
    attr.send_cqn = attr.recv_cqn = Rig::kSendCq;
    attr.uar = Rig::kUar;
    rig.nic.create_qp(attr);
    rig.nic.modify_qp(0x99, QpState::init);
    const mlx5_wqe_data_seg there = rig.segment(30000, 2048);
    std::memcpy(queue.data(), &there, sizeof there);
    rig.nic.create_rule(udp_rule());
    Rule wider = udp_rule(0x99);  // matches as well, but is another entry, made later
    wider.match.dst_port_mask = 0;
    const auto other = rig.nic.create_rule(wider);
    for (int i = 0; i < 2; ++i) rig.put_receive({rig.segment(0, 2048)});
    rig.write_receive_record();
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_FALSE(rig.poll(rig.send_cq));
    rig.nic.destroy_rule(other);
    rig.nic.create_rule(udp_rule(0x99));
    const Frame frame = make_frame();
    EXPECT_TRUE(rig.nic.receive(frame));
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_TRUE(rig.poll(rig.send_cq));
    EXPECT_TRUE(arrived(rig, frame, 0));
    EXPECT_TRUE(arrived(rig, frame, 30000));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicReceive, AWireHearsOfEachChange) {
    Rig rig;
    std::vector<std::size_t> sizes;
    const auto first = rig.nic.create_rule(udp_rule());
    rig.nic.on_rules([&](const std::vector<Rule>& rules) { sizes.push_back(rules.size()); });
    rig.nic.create_rule(udp_rule());
    rig.nic.destroy_rule(first);
    EXPECT_THAT(sizes, testing::ElementsAre(1, 2, 1));
}

}  // namespace
}  // namespace mlx5_sim
