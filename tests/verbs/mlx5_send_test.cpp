// SPDX-License-Identifier: BSD-2-Clause
// The mlx5 data path on queues in plain memory: each byte of the send requests, and of the doorbells.
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <span>

#include "tests/verbs/mlx5_queues.h"

namespace vma::verbs::mlx5 {
namespace {

using namespace test;
using testing::ElementsAreArray;

// ---- send requests ----

TEST(Mlx5Direct, FrameInOneBuffer) {
    Bench b;
    ASSERT_EQ(b.send({b.sge(0, 1000)}, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM), 0);
    EXPECT_EQ(b.bytes(0, 64), join(head(0, MLX5_OPCODE_SEND, 4, true, 0xc0, 0, 18), b.frame_bytes(0, 18),
                                   segment(b.sge(0, 1000), 18)));
    EXPECT_EQ(b.qp.sends_announced(), 1);
    ASSERT_EQ(b.send({b.sge(7, 19)}), 0);
    EXPECT_EQ(b.bytes(1, 64), join(head(1, MLX5_OPCODE_SEND, 4, false, 0, 0, 18), b.frame_bytes(7, 18),
                                   segment(b.sge(7, 19), 18)));
    EXPECT_EQ(b.qp.sends_announced(), 2);
    EXPECT_EQ(b.bytes(2, 64), std::vector<std::uint8_t>(64, 0xee));
}

TEST(Mlx5Direct, FrameInSeveralBuffers) {
    Bench b;
    // The first is shorter than the inline header, one is empty, the third holds the header's end.
    std::vector<ibv_sge> list{b.sge(0, 10),  b.sge(500, 0), b.sge(10, 20),
                              b.sge(30, 40), b.sge(600, 0), b.sge(70, 50)};
    ASSERT_EQ(b.send(list), 0);
    EXPECT_EQ(b.bytes(0, 96), join(head(0, MLX5_OPCODE_SEND, 6, false, 0, 0, 18), b.frame_bytes(0, 18),
                                   segment(list[2], 8), segment(list[3]), segment(list[5])));
    EXPECT_EQ(b.qp.sends_announced(), 2);
    // A first buffer that is the header and nothing else.
    list = {b.sge(0, 18), b.sge(100, 9)};
    ASSERT_EQ(b.send(list), 0);
    EXPECT_EQ(b.bytes(2, 64),
              join(head(2, MLX5_OPCODE_SEND, 4, false, 0, 0, 18), b.frame_bytes(0, 18), segment(list[1])));
    // Nothing but the header.
    ASSERT_EQ(b.send({b.sge(0, 18)}), 0);
    EXPECT_EQ(b.bytes(3, 48), join(head(3, MLX5_OPCODE_SEND, 3, false, 0, 0, 18), b.frame_bytes(0, 18)));
}

TEST(Mlx5Direct, CopiedFrames) {
    Bench b;
    std::uint32_t at = 0;
    for (std::uint32_t length : {18u, 19u, 25u, 26u, 30u, 31u, 33u, 34u, 46u, 47u, 60u, 100u, 203u, 204u}) {
        const std::uint32_t rest = length - 18;
        const std::uint32_t units = 3 + (rest != 0 ? (4 + rest + 15) / 16 : 0);
        ASSERT_EQ(b.send({b.sge(3, length)}, IBV_SEND_INLINE | IBV_SEND_SIGNALED), 0);
        auto want = join(head(static_cast<std::uint16_t>(at), MLX5_OPCODE_SEND,
                              static_cast<std::uint8_t>(units), true, 0, 0, 18),
                         b.frame_bytes(3, 18));
        if (rest != 0) want = join(want, big_endian(0x80000000u | rest, 4), b.frame_bytes(21, rest));
        EXPECT_EQ(b.bytes(at, want.size()), want) << length;
        at += (units + 3) / 4;
        EXPECT_EQ(b.qp.sends_announced(), at);
        b.send_cq.send_done(static_cast<std::uint16_t>(at - (units + 3) / 4));
        EXPECT_EQ(b.poll(b.scq).size(), 1u);
    }
    // From several buffers.
    ASSERT_EQ(b.send({b.sge(0, 5), b.sge(5, 30), b.sge(35, 65)}, IBV_SEND_INLINE), 0);
    EXPECT_EQ(b.bytes(at, 48 + 4 + 82),
              join(head(static_cast<std::uint16_t>(at), MLX5_OPCODE_SEND, 9, false, 0, 0, 18),
                   b.frame_bytes(0, 18), big_endian(0x80000000u | 82, 4), b.frame_bytes(18, 82)));
}

TEST(Mlx5Direct, LargeSend) {
    Bench b;
    ASSERT_EQ(
        b.large_send({b.sge(100, 1000), b.sge(2000, 900)}, 66, 1448, IBV_SEND_IP_CSUM | IBV_SEND_SIGNALED),
        0);
    auto want = join(head(0, MLX5_OPCODE_TSO, 8, true, 0xc0, 1448, 66), b.frame_bytes(0, 66),
                     segment(b.sge(100, 1000)), segment(b.sge(2000, 900)));
    ASSERT_EQ(want.size(), 128u);
    EXPECT_EQ(b.bytes(0, 128), want);
    // A header that does not end at a segment's border leaves a gap.
    ASSERT_EQ(b.large_send({b.sge(100, 1000)}, 54, 1460), 0);
    EXPECT_EQ(b.bytes(2, 16 + 14 + 54),
              join(head(2, MLX5_OPCODE_TSO, 7, false, 0, 1460, 54), b.frame_bytes(0, 54)));
    EXPECT_THAT(std::span(b.qp.block(3), 64).subspan(96 - 64, 16),
                ElementsAreArray(segment(b.sge(100, 1000))));
    EXPECT_EQ(b.qp.sends_announced(), 4);
    b.send_cq.send_done(0, MLX5_OPCODE_TSO);
    auto wc = b.poll(b.scq);
    ASSERT_EQ(wc.size(), 1u);
    EXPECT_EQ(wc[0].opcode, IBV_WC_TSO);
}

TEST(Mlx5Direct, RequestsAcrossTheEndOfTheQueue) {
    // Every kind, beginning at each of the last blocks. What precedes them is sent and completed one at a
    // time.
    for (std::uint32_t start = 60; start < 64; start++) {
        for (int kind = 0; kind < 3; kind++) {
            Bench b;
            for (std::uint32_t i = 0; i < start; i++) {
                ASSERT_EQ(b.send({b.sge(0, 100)}, IBV_SEND_SIGNALED), 0);
                b.send_cq.send_done(static_cast<std::uint16_t>(i));
                ASSERT_EQ(b.poll(b.scq).size(), 1u);
            }
            const auto position = static_cast<std::uint16_t>(start);
            std::vector<std::uint8_t> want;
            if (kind == 0) {
                ASSERT_EQ(b.send({b.sge(9, 204)}, IBV_SEND_INLINE), 0);
                want = join(head(position, MLX5_OPCODE_SEND, 15, false, 0, 0, 18), b.frame_bytes(9, 18),
                            big_endian(0x80000000u | 186, 4), b.frame_bytes(27, 186));
            } else if (kind == 1) {
                std::vector<ibv_sge> list;
                for (std::uint32_t i = 0; i < 8; i++) list.push_back(b.sge(i * 100, 50 + i));
                ASSERT_EQ(b.send(list), 0);
                want = join(head(position, MLX5_OPCODE_SEND, 11, false, 0, 0, 18), b.frame_bytes(0, 18),
                            segment(list[0], 18));
                for (std::uint32_t i = 1; i < 8; i++) want = join(want, segment(list[i]));
            } else {
                ASSERT_EQ(
                    b.large_send({b.sge(0, 1000), b.sge(1000, 1000), b.sge(2000, 1000), b.sge(3000, 1000)},
                                 82, 100),
                    0);
                want = join(head(position, MLX5_OPCODE_TSO, 11, false, 0, 100, 82), b.frame_bytes(0, 82));
                for (std::uint32_t i = 0; i < 4; i++) want = join(want, segment(b.sge(i * 1000, 1000)));
            }
            EXPECT_EQ(b.bytes(start, want.size()), want) << start << " kind " << kind;
            EXPECT_EQ(b.qp.sends_announced(), start + (want.size() + 63) / 64);
        }
    }
}

TEST(Mlx5Direct, ARequestThatSendsNothingCompletes) {
    Bench b;
    ASSERT_EQ(b.send({b.sge(0, 100)}), 0);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = 77;
    wr.opcode = IBV_WR_DRIVER1;
    wr.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(ibv_post_send(b.facade, &wr, &bad), 0);
    EXPECT_EQ(b.qp.sends_announced(), 2);
    const auto bytes = b.bytes(1, 16);
    EXPECT_EQ(bytes[2], 1) << "its position";
    EXPECT_EQ(bytes[3], MLX5_OPCODE_NOP);
    EXPECT_EQ(bytes[7], 1) << "its length";
    EXPECT_EQ(bytes[11], MLX5_WQE_CTRL_CQ_UPDATE);
    b.send_cq.send_done(1, MLX5_OPCODE_NOP);
    const auto wc = b.poll(b.scq);
    ASSERT_EQ(wc.size(), 1u);
    EXPECT_EQ(wc[0].wr_id, 77u);
    for (int i = 0; i < 64; i++)
        EXPECT_EQ(ibv_post_send(b.facade, &wr, &bad), 0) << "the one before it is done as well";
    EXPECT_EQ(ibv_post_send(b.facade, &wr, &bad), ENOMEM);
}

TEST(Mlx5Direct, WrongRequestsChangeNothing) {
    Bench b;
    const auto before = b.bytes(0, 64 * 64);
    std::vector<ibv_sge> many(9, b.sge(0, 100));
    EXPECT_EQ(b.send(many), EINVAL);
    EXPECT_EQ(b.send({}), EINVAL);
    EXPECT_EQ(b.send({}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 17)}), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 17)}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 10), b.sge(10, 7)}), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 205)}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 100), b.sge(100, 105)}, IBV_SEND_INLINE), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 0x80000000u)}), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 0xffffffffu)}), EINVAL);
    EXPECT_EQ(b.send({b.sge(0, 100), b.sge(100, 0x80000000u)}), EINVAL);
    EXPECT_EQ(b.large_send({b.sge(0, 1000)}, 13, 100), EINVAL);
    EXPECT_EQ(b.large_send({b.sge(0, 1000)}, 95, 100), EINVAL);
    EXPECT_EQ(b.large_send({b.sge(0, 1000)}, 66, 0), EINVAL);
    EXPECT_EQ(b.large_send({}, 66, 100), EINVAL);
    EXPECT_EQ(b.large_send({b.sge(0, 65536), b.sge(0, 1)}, 66, 100), EINVAL);
    EXPECT_EQ(b.large_send({b.sge(0, 1000)}, 66, 100, IBV_SEND_INLINE), EINVAL);
    for (ibv_wr_opcode opcode :
         {IBV_WR_RDMA_WRITE, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_LOCAL_INV}) {
        ibv_sge sge = b.sge(0, 100);
        ibv_send_wr wr{};
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = opcode;
        ibv_send_wr* bad = nullptr;
        EXPECT_EQ(ibv_post_send(b.facade, &wr, &bad), EINVAL);
        wr.opcode = IBV_WR_SEND;
        wr.num_sge = -1;
        EXPECT_EQ(ibv_post_send(b.facade, &wr, &bad), EINVAL);
    }
    EXPECT_EQ(b.bytes(0, 64 * 64), before);
    EXPECT_EQ(b.qp.sends_announced(), 0);
    EXPECT_THAT(b.qp.registers, testing::Each(0));
    Options no_tso;
    no_tso.limits.max_tso = no_tso.limits.max_tso_header = 0;
    Bench without(no_tso);
    EXPECT_EQ(without.large_send({without.sge(0, 1)}, 14, 1), EINVAL);
}

TEST(Mlx5Direct, FullQueueByRequestsAndByBlocks) {
    Options setup;
    setup.blocks = 16;
    setup.send_cqes = 8;
    setup.limits.max_send_wr = 8;
    Bench b(setup);
    for (std::uint64_t i = 0; i < 8; i++) ASSERT_EQ(b.send({b.sge(0, 100)}, IBV_SEND_SIGNALED, i), 0);
    EXPECT_EQ(b.send({b.sge(0, 100)}), ENOMEM);  // eight completions fit
    b.send_cq.send_done(3);
    auto wc = b.poll(b.scq);
    ASSERT_EQ(wc.size(), 1u);
    EXPECT_EQ(wc[0].wr_id, 3u);
    for (int i = 0; i < 4; i++) ASSERT_EQ(b.send({b.sge(0, 100)}), 0);
    EXPECT_EQ(b.send({b.sge(0, 100)}), ENOMEM);
    b.send_cq.send_done(11);
    ASSERT_EQ(b.poll(b.scq).size(), 1u);
    // 16 blocks: four frames of four.
    for (int i = 0; i < 4; i++) ASSERT_EQ(b.send({b.sge(0, 204)}, IBV_SEND_INLINE), 0);
    for (unsigned flags : {0u, static_cast<unsigned>(IBV_SEND_INLINE)}) {
        EXPECT_EQ(b.send({b.sge(0, 60)}, flags), ENOMEM);
        EXPECT_EQ(b.send({b.sge(0, 30), b.sge(30, 30), b.sge(60, 30)}, flags), ENOMEM);
    }
    b.send_cq.send_done(12);
    ASSERT_EQ(b.poll(b.scq).size(), 1u);
    EXPECT_EQ(b.send({b.sge(0, 204)}, IBV_SEND_INLINE), 0);
    EXPECT_EQ(b.send({b.sge(0, 60)}), ENOMEM);
}

// ---- doorbells ----

TEST(Mlx5Direct, ShortRequestsGoThroughTheRegister) {
    Bench b;
    const auto* buffers = reinterpret_cast<const std::uint8_t*>(b.qp.registers) + 0x800;
    ASSERT_EQ(b.send({b.sge(0, 100)}), 0);
    EXPECT_TRUE(std::equal(buffers, buffers + 64, b.qp.block(0)));
    EXPECT_EQ(buffers[64], 0);
    EXPECT_EQ(buffers[256], 0);
    ASSERT_EQ(b.send({b.sge(0, 204)}, IBV_SEND_INLINE), 0);  // the other buffer, all of it
    EXPECT_TRUE(std::equal(buffers + 256, buffers + 512, b.qp.block(1)));
    std::vector<ibv_sge> list(8, b.sge(0, 100));
    list.resize(4);
    ASSERT_EQ(b.send(list), 0);
    EXPECT_TRUE(std::equal(buffers, buffers + 128, b.qp.block(5)));
}

TEST(Mlx5Direct, RegisterCopyGoesOnAtTheBeginningOfTheQueue) {
    Bench b;
    for (std::uint32_t i = 0; i < 62; i++) {
        ASSERT_EQ(b.send({b.sge(0, 100)}, IBV_SEND_SIGNALED), 0);
        b.send_cq.send_done(static_cast<std::uint16_t>(i));
        b.poll(b.scq);
    }
    ASSERT_EQ(b.send({b.sge(5, 204)}, IBV_SEND_INLINE), 0);
    const auto* buffers = reinterpret_cast<const std::uint8_t*>(b.qp.registers) + 0x800;
    EXPECT_EQ(std::vector<std::uint8_t>(buffers, buffers + 256), b.bytes(62, 256));
}

TEST(Mlx5Direct, BatchesAndLongRequestsRingTheDoorbell) {
    Bench b;
    ibv_sge sge = b.sge(0, 100);
    ibv_send_wr wr[3]{};
    for (int i = 0; i < 3; i++) {
        wr[i].sg_list = &sge;
        wr[i].num_sge = 1;
        wr[i].opcode = IBV_WR_SEND;
        wr[i].next = i < 2 ? &wr[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(b.facade, wr, &bad), 0);
    EXPECT_EQ(b.qp.sends_announced(), 3);
    std::uint64_t last;
    std::memcpy(&last, b.qp.block(2), 8);
    EXPECT_EQ(b.qp.registers[256], last);
    EXPECT_EQ(b.qp.registers[257], 0u);
    // Five blocks do not fit the register.
    ASSERT_EQ(b.large_send(std::vector<ibv_sge>(8, b.sge(0, 100)), 94, 100), 0);
    std::memcpy(&last, b.qp.block(3), 8);
    EXPECT_EQ(b.qp.registers[256 + 32], last);
    EXPECT_EQ(b.qp.registers[256 + 33], 0u);
    // The requests before a wrong one are sent, as a batch.
    wr[2].num_sge = 100;
    EXPECT_EQ(ibv_post_send(b.facade, wr, &bad), EINVAL);
    EXPECT_EQ(bad, &wr[2]);
    const std::uint16_t announced = b.qp.sends_announced();
    std::memcpy(&last, b.qp.block(announced - 1u), 8);
    EXPECT_EQ(b.qp.registers[256], last);
    EXPECT_EQ(ibv_post_send(b.facade, nullptr, &bad), 0);
    EXPECT_EQ(b.qp.sends_announced(), announced);
}

TEST(Mlx5Direct, NoBlueFlame) {
    for (int how = 0; how < 3; how++) {
        Options setup;
        if (how == 0) setup.config.blue_flame = false;
        if (how == 1) setup.flame = 0;    // as libmlx5 reports a register without
        if (how == 2) setup.flame = 100;  // what can only be a mistake
        Bench b(setup);
        for (std::uint32_t i = 0; i < 3; i++) {
            ASSERT_EQ(b.send({b.sge(0, 100)}), 0);
            std::uint64_t word;
            std::memcpy(&word, b.qp.block(i), 8);
            EXPECT_EQ(b.qp.registers[256], word);
            b.qp.registers[256] = 0;
            EXPECT_THAT(b.qp.registers, testing::Each(0));
        }
    }
}

TEST(Mlx5Direct, SharedRegisterMeansNoBlueFlame) {
    Bench b;
    FakeCq send_cq(64, 64, 9), recv_cq(32, 64, 10);
    FakeQp other(64, 32);
    other.queues.bf = b.qp.queues.bf;
    auto scq = b.direct->wrap_cq(&send_cq.object), rcq = b.direct->wrap_cq(&recv_cq.object);
    ASSERT_TRUE(b.direct->wrap_qp(&other.object, *scq, *rcq, Options().limits));
    ASSERT_EQ(b.send({b.sge(0, 100)}), 0);
    EXPECT_NE(b.qp.registers[256], 0u);
    b.qp.registers[256] = 0;
    EXPECT_THAT(b.qp.registers, testing::Each(0));
}

}  // namespace
}  // namespace vma::verbs::mlx5
