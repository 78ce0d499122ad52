// SPDX-License-Identifier: BSD-2-Clause
// Send queues: formats, wraps, sums, large sends, doorbells.
#include <gmock/gmock.h>

#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

using testing::HasSubstr;

std::span<const std::uint8_t> tail(const Frame& frame, std::size_t from) {
    return std::span(frame).subspan(from);
}

// A request with 18 bytes of inline header and the rest by address.
Wqe pointed(Rig& rig, const Frame& frame, std::size_t at = 0, std::uint8_t flags = 0) {
    std::copy(frame.begin() + 18, frame.end(), rig.arena.begin() + static_cast<std::ptrdiff_t>(at));
    return Wqe()
        .eth(flags, 0, head(frame, 18))
        .data(&rig.arena[at], static_cast<std::uint32_t>(frame.size() - 18), Rig::kLkey);
}

TEST(NicFrames, TheTestsOwnFramesHaveRightSums) {
    EXPECT_TRUE(sums_right(make_frame()));
    EXPECT_TRUE(sums_right(make_frame({.tcp = true, .payload = 33})));
    EXPECT_TRUE(sums_right(make_frame({.vlan = 5})));
    EXPECT_FALSE(sums_right(make_frame({.sums = false})));
}

TEST(NicSend, HeaderInlineAndDataByAddress) {
    Rig rig;
    const Frame frame = make_frame();
    rig.post(pointed(rig, frame));
    EXPECT_TRUE(rig.nic.step());
    ASSERT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(rig.sent[0], frame);
    const auto cqe = rig.poll(rig.send_cq);
    ASSERT_TRUE(cqe);
    EXPECT_EQ(cqe->op_own >> 4, MLX5_CQE_REQ);
    EXPECT_EQ(be32toh(cqe->srqn_uidx), Rig::kUser);
    EXPECT_EQ(be32toh(cqe->sop_drop_qpn), MLX5_OPCODE_SEND << 24 | Rig::kQpn);
    EXPECT_EQ(be16toh(cqe->wqe_counter), 0);
    EXPECT_EQ(be64toh(cqe->timestamp), 1000u);
    EXPECT_FALSE(rig.poll(rig.send_cq));
    EXPECT_FALSE(rig.nic.step());
    EXPECT_EQ(rig.nic.counters().doorbells, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, AllByAddressInSeveralSegments) {
    Rig rig;
    const Frame frame = make_frame({.payload = 1000});
    std::copy(frame.begin(), frame.end(), rig.arena.begin());
    rig.post(Wqe()
                 .eth(0, 0, {})
                 .data(&rig.arena[0], 42, Rig::kLkey)
                 .data(&rig.arena[42], 500, Rig::kLkey)
                 .data(&rig.arena[542], 500, Rig::kLkey));
    rig.nic.step();
    ASSERT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(rig.sent[0], frame);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, InlineDataAcrossTheQueuesEnd) {
    Rig rig({.send_entries = 4});
    const Frame frame = make_frame({.payload = 120});
    for (int i = 0; i < 20; ++i) {  // 4 blocks each with 3 used: starts at every block of the queue
        rig.post(Wqe().eth(0, 0, head(frame, 18)).inlined(tail(frame, 18)));
        rig.nic.step();
        ASSERT_EQ(rig.sent.size(), static_cast<std::size_t>(i) + 1);
        EXPECT_EQ(rig.sent.back(), frame);
        ASSERT_TRUE(rig.poll(rig.send_cq));
    }
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, TheIndexWrapsAt16Bits) {
    Rig rig;
    const Frame frame = make_frame();
    for (int i = 0; i < 70000; ++i) {
        rig.post(pointed(rig, frame));
        rig.nic.step();
        const auto cqe = rig.poll(rig.send_cq);
        ASSERT_TRUE(cqe);
        ASSERT_EQ(be16toh(cqe->wqe_counter), i & 0xffff);
    }
    EXPECT_EQ(rig.sent.size(), 70000u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, OnlyMarkedRequestsComplete) {
    Rig rig;
    const Frame frame = make_frame();
    for (int i = 0; i < 3; ++i) {
        Wqe wqe = pointed(rig, frame);
        wqe.signalled = i == 2;
        rig.put(wqe);
    }
    rig.write_record();
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 3u);
    const auto cqe = rig.poll(rig.send_cq);
    ASSERT_TRUE(cqe);
    EXPECT_EQ(be16toh(cqe->wqe_counter), 2);
    EXPECT_FALSE(rig.poll(rig.send_cq));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, ShortFramesArePadded) {
    Rig rig;
    const Frame frame = make_frame({.payload = 1});
    rig.post(Wqe().eth(0, 0, head(frame, 18)).inlined(tail(frame, 18)));
    rig.nic.step();
    ASSERT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(rig.sent[0].size(), 60u);
    EXPECT_TRUE(std::ranges::equal(head(rig.sent[0], frame.size()), frame));
}

TEST(NicSend, ChecksumsAreCompleted) {
    Rig rig;
    for (bool tcp : {false, true}) {
        for (std::size_t payload : {0u, 1u, 2u, 999u}) {
            rig.sent.clear();
            rig.post(pointed(rig, make_frame({.tcp = tcp, .payload = payload, .sums = false}), 0, kSums));
            rig.nic.step();
            rig.poll(rig.send_cq);
            ASSERT_EQ(rig.sent.size(), 1u);
            EXPECT_TRUE(sums_right(rig.sent[0])) << tcp << payload;
        }
    }
    rig.post(pointed(rig, make_frame({.sums = false}), 0, MLX5_ETH_WQE_L3_CSUM));
    rig.nic.step();
    EXPECT_EQ(plain_sum(std::span(rig.sent.back()).subspan(14, 20)), 0xffff);
    EXPECT_EQ(rig.sent.back()[40], 0);  // UDP's stays as it was
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, ATagIsPutIn) {
    Rig rig;
    const Frame frame = make_frame({.sums = false});
    std::copy(frame.begin(), frame.end(), rig.arena.begin());
    const std::uint8_t tci[] = {0x20, 0x07};
    rig.post(Wqe()
                 .eth_raw(kSums, 0, 0x8000, tci)
                 .data(&rig.arena[0], static_cast<std::uint32_t>(frame.size()), Rig::kLkey));
    rig.nic.step();
    ASSERT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(rig.sent[0], make_frame({.vlan = 0x2007}));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, LargeSendsAreCut) {
    Rig rig;
    const Frame whole =
        make_frame({.tcp = true, .payload = 2500, .tcp_flags = 0x99 /* CWR ACK PSH FIN */, .sums = false});
    std::copy(whole.begin() + 54, whole.end(), rig.arena.begin());
    rig.post(Wqe(MLX5_OPCODE_TSO)
                 .eth(kSums, 1000, head(whole, 54))
                 .data(&rig.arena[0], 1500, Rig::kLkey)
                 .data(&rig.arena[1500], 1000, Rig::kLkey));
    rig.nic.step();
    ASSERT_EQ(rig.sent.size(), 3u);
    std::size_t done = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        const Frame& frame = rig.sent[i];
        const std::size_t bytes = i == 2 ? 500 : 1000;
        ASSERT_EQ(frame.size(), 54 + bytes);
        EXPECT_TRUE(sums_right(frame));
        EXPECT_EQ(frame[16] << 8 | frame[17], static_cast<int>(40 + bytes));
        EXPECT_EQ(frame[18] << 8 | frame[19], static_cast<int>(0x4321 + i));
        const std::uint32_t sequence =
            static_cast<std::uint32_t>(frame[38]) << 24 | frame[39] << 16 | frame[40] << 8 | frame[41];
        EXPECT_EQ(sequence, static_cast<std::uint32_t>(0xfffff000u + done));
        EXPECT_EQ(frame[47], i == 0 ? 0x90 : i == 1 ? 0x10 : 0x19);
        EXPECT_TRUE(std::ranges::equal(tail(frame, 54), std::span(whole).subspan(54 + done, bytes)));
        done += bytes;
    }
    EXPECT_TRUE(rig.poll(rig.send_cq));
    EXPECT_FALSE(rig.poll(rig.send_cq));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, BlueFlameIsCountedApart) {
    Rig rig;
    const Frame frame = make_frame({.payload = 60});
    for (std::size_t reg : {0x800u, 0x900u, 0xa00u}) {
        rig.put(Wqe().eth(0, 0, head(frame, 18)).inlined(tail(frame, 18)));
        rig.write_record();
        rig.blue_flame(192, reg);
        rig.nic.step();
        ASSERT_TRUE(rig.poll(rig.send_cq));
    }
    rig.post(pointed(rig, frame));
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 4u);
    EXPECT_EQ(rig.nic.counters().blue_flames, 3u);
    EXPECT_EQ(rig.nic.counters().doorbells, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, OneDoorbellForABatch) {
    Rig rig;
    const Frame frame = make_frame();
    for (int i = 0; i < 10; ++i) rig.put(pointed(rig, frame));
    rig.write_record();
    EXPECT_FALSE(rig.nic.step());  // the record alone starts nothing
    EXPECT_TRUE(rig.sent.empty());
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 10u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicSend, ARegisterSharedByTwoQps) {
    Rig rig;
    std::vector<std::uint8_t> queue(64 * 4);
    std::vector<std::uint32_t> record = {0, 0};
    QpAttr attr;
    attr.qpn = 0x99;
    attr.send_buffer = queue.data();
    attr.send_entries = 4;
    attr.recv_buffer = queue.data();
    attr.recv_entries = 1;
    attr.doorbell_record = record.data();
    attr.send_cqn = attr.recv_cqn = Rig::kSendCq;
    attr.uar = Rig::kUar;
    rig.nic.create_qp(attr);
    for (QpState state : {QpState::init, QpState::rtr, QpState::rts}) rig.nic.modify_qp(0x99, state);
    rig.post(pointed(rig, make_frame()));
    // The other QP's doorbell overwrites the first one before anybody looks.
    std::memcpy(queue.data(), rig.send_queue.data(), 64);
    const std::uint32_t whose = htobe32(0x99 << 8 | 4);
    std::memcpy(&queue[4], &whose, 4);
    record[MLX5_SND_DBR] = htobe32(1);
    std::memcpy(rig.page + 0x800, queue.data(), 8);
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 2u);
    EXPECT_EQ(rig.violations(), "");
}

}  // namespace
}  // namespace mlx5_sim
