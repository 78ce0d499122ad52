// SPDX-License-Identifier: BSD-2-Clause
// The mlx5 data path on queues in plain memory: receive requests, completions as an adapter writes them,
// arming, making facades.
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <span>

#include "tests/verbs/mlx5_queues.h"

namespace vma::verbs::mlx5 {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::ElementsAreArray;

// ---- receive requests ----

TEST(Mlx5Direct, ReceivesOfOneBuffer) {
    Bench b;
    std::vector<ibv_sge> sges;
    std::vector<ibv_recv_wr> wr(5);
    for (std::uint32_t i = 0; i < 5; i++) sges.push_back(b.sge(i * 64, 64 + i));
    for (std::uint32_t i = 0; i < 5; i++) wr[i] = {i, i < 4 ? &wr[i + 1] : nullptr, &sges[i], 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(b.facade, wr.data(), &bad), 0);
    EXPECT_EQ(b.qp.receives_announced(), 5);
    for (std::uint32_t i = 0; i < 5; i++)
        EXPECT_THAT(std::span(b.qp.receive.get() + i * 16, 16), ElementsAreArray(segment(sges[i])));
    EXPECT_EQ(b.receive(0, {b.sge(0, 1), b.sge(0, 1)}), EINVAL);
    EXPECT_EQ(b.receive(0, {b.sge(0, 0x80000000u)}), EINVAL);
    EXPECT_EQ(b.qp.receives_announced(), 5);
    for (std::uint32_t i = 5; i < 32; i++) ASSERT_EQ(b.receive(i, {b.sge(0, 1)}), 0);
    EXPECT_EQ(b.receive(0, {b.sge(0, 1)}), ENOMEM);
    EXPECT_EQ(b.qp.receives_announced(), 32);
    // A batch that does not fit: what fits is posted.
    b.recv_cq.received(60);
    b.recv_cq.received(61);
    ASSERT_EQ(b.poll(b.rcq).size(), 2u);
    EXPECT_EQ(ibv_post_recv(b.facade, wr.data(), &bad), ENOMEM);
    EXPECT_EQ(bad, &wr[2]);
    EXPECT_EQ(b.qp.receives_announced(), 34);
}

TEST(Mlx5Direct, ReceivesOfSeveralBuffers) {
    Options setup;
    setup.receive_stride = 64;
    setup.limits.max_recv_sge = 4;
    Bench b(setup);
    auto at = [&](std::uint32_t index) { return std::span(b.qp.receive.get() + index * 64, 64); };
    const std::vector<std::uint8_t> end = join(big_endian(0, 4), big_endian(0x100, 4), big_endian(0, 8));
    ASSERT_EQ(b.receive(0, {b.sge(0, 10), b.sge(10, 20), b.sge(30, 30), b.sge(60, 40)}), 0);
    EXPECT_THAT(at(0), ElementsAreArray(join(segment(b.sge(0, 10)), segment(b.sge(10, 20)),
                                             segment(b.sge(30, 30)), segment(b.sge(60, 40)))));
    ASSERT_EQ(b.receive(1, {b.sge(0, 10), b.sge(5, 0), b.sge(10, 20)}), 0);
    EXPECT_THAT(at(1).first(48), ElementsAreArray(join(segment(b.sge(0, 10)), segment(b.sge(10, 20)), end)));
    ASSERT_EQ(b.receive(2, {}), 0);
    EXPECT_THAT(at(2).first(16), ElementsAreArray(end));
    EXPECT_EQ(b.receive(3, std::vector<ibv_sge>(5, b.sge(0, 1))), EINVAL);
}

// ---- completions ----

TEST(Mlx5Direct, OwnerBitOverManyLapsAndBothSizes) {
    for (std::uint32_t size : {64u, 128u}) {
        Options setup;
        setup.cqe_size = size;
        setup.receive_cqes = 32;
        Bench b(setup);
        std::mt19937 random(size);
        std::uint64_t posted = 0, next = 0;
        while (next < 5000) {
            while (posted - next < 32) ASSERT_EQ(b.receive(posted++, {b.sge(0, 64)}), 0);
            EXPECT_TRUE(b.poll(b.rcq).empty());
            const std::uint32_t arrive = random() % 33;
            for (std::uint32_t i = 0; i < arrive; i++) b.recv_cq.received(60 + i);
            const std::uint32_t consumed = b.recv_cq.consumer();
            std::uint32_t seen = 0;
            while (seen < arrive) {
                auto wc = b.poll(b.rcq, 1 + static_cast<int>(random() % 16));
                ASSERT_FALSE(wc.empty());
                for (auto& c : wc) {
                    EXPECT_EQ(c.wr_id, next++);
                    EXPECT_EQ(c.status, IBV_WC_SUCCESS);
                    EXPECT_EQ(c.opcode, IBV_WC_RECV);
                    EXPECT_EQ(c.byte_len, 60 + seen++);
                    EXPECT_EQ(c.qp_num, 0x123u);
                    EXPECT_EQ(c.wc_flags, 0u);
                }
                EXPECT_EQ(b.recv_cq.consumer(), (consumed + seen) & 0xffffff);
            }
        }
    }
}

TEST(Mlx5Direct, CountersBeyond16And24Bits) {
    Options setup;
    setup.send_cqes = 1024;
    setup.blocks = 1024;
    setup.limits.max_send_wr = 512;
    setup.limits.max_inline = 884;
    Bench b(setup);
    // Odd lengths of 1 to 14 blocks; one completion for each batch.
    std::mt19937 random(1);
    std::uint32_t position = 0;
    for (std::uint32_t i = 0; i < 40000; i++) {
        const std::uint32_t length = 30 + random() % 850, units = 3 + (4 + length - 18 + 15) / 16;
        ASSERT_EQ(b.send({b.sge(0, length)}, IBV_SEND_INLINE | IBV_SEND_SIGNALED, i), 0);
        std::uint32_t word;
        std::memcpy(&word, b.qp.block(position), 4);
        ASSERT_EQ(be32toh(word), (position & 0xffff) << 8 | MLX5_OPCODE_SEND);
        const std::uint32_t start = position;
        position += (units + 3) / 4;
        ASSERT_EQ(b.qp.sends_announced(), position & 0xffff);
        if (i % 32 == 31) {
            b.send_cq.send_done(static_cast<std::uint16_t>(start));
            auto wc = b.poll(b.scq);
            ASSERT_EQ(wc.size(), 1u);
            ASSERT_EQ(wc[0].wr_id, i);
        }
    }
    EXPECT_GT(position, 4u << 16);
}

TEST(Mlx5Direct, ConsumerIndexHas24Bits) {
    Bench b;
    for (std::uint32_t i = 0; i < (1u << 24) + 40; i += 32) {
        for (std::uint32_t k = 0; k < 32; k++)
            b.recv_cq.at(b.recv_cq.producer++)->op_own = MLX5_CQE_RESP_SEND << 4 | ((i & 32) != 0);
        ibv_wc wc[33];
        ASSERT_EQ(ibv_poll_cq(b.rcq, 33, wc), 32);
        ASSERT_EQ(b.recv_cq.consumer(), (i + 32) & 0xffffff);
    }
}

TEST(Mlx5Direct, ChecksumTagAndTimeStamp) {
    struct Doubled : Clock {
        std::uint64_t to_ns(std::uint64_t ticks) noexcept override { return 2 * ticks; }
    } clock;
    auto fill = [](std::uint8_t sums, std::uint8_t l3, std::uint32_t tag) {
        return [=](mlx5_cqe64& cqe) {
            cqe.byte_cnt = htobe32(60);
            cqe.hds_ip_ext = sums | MLX5_CQE_L2_OK;
            cqe.l4_hdr_type_etc = static_cast<std::uint8_t>(l3 << 2 | 0x93);
            cqe.timestamp = htobe64(0x123456789abcdef0u);
            cqe.sop_drop_qpn = htobe32(0x55000000u | tag);
        };
    };
    const std::uint8_t both = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
    for (bool on : {false, true}) {
        Device::want_arrival_times(true);
        Options setup;
        setup.config.rx_checksum = setup.config.flow_tags = on;
        setup.config.clock = on ? &clock : nullptr;
        setup.config.rx_prefetch = on ? 256 : 0;
        setup.config.rx_prefetch_before_poll = on ? 100 : 0;
        Bench b(setup);
        for (int i = 0; i < 8; i++) ASSERT_EQ(b.receive(i, {b.sge(0, 64)}), 0);
        EXPECT_TRUE(b.poll(b.rcq).empty());
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(both, MLX5_CQE_L3_HDR_TYPE_IPV4, 0xabcdef));
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(both, MLX5_CQE_L3_HDR_TYPE_IPV6, 0));
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(both, MLX5_CQE_L3_HDR_TYPE_NONE, 0));
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(MLX5_CQE_L3_OK, MLX5_CQE_L3_HDR_TYPE_IPV4, 0));
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(MLX5_CQE_L4_OK, MLX5_CQE_L3_HDR_TYPE_IPV4, 0));
        auto wc = b.poll(b.rcq);
        ASSERT_EQ(wc.size(), 5u);
        for (std::size_t i = 0; i < 5; i++) {
            EXPECT_EQ((wc[i].wc_flags & IBV_WC_IP_CSUM_OK) != 0, on && i == 0) << i;
            EXPECT_EQ((wc[i].wc_flags & kWcFlowTag) != 0, on && i == 0) << i;
            EXPECT_EQ((wc[i].wc_flags & kWcTimestamp) != 0, on) << i;
            EXPECT_EQ(flow_tag(wc[i]), on && i == 0 ? 0xabcdefu : 0u);
            if (on) {
                EXPECT_EQ(arrival_ns(wc[i]), 2 * 0x123456789abcdef0u);
            }
        }
        Device::want_arrival_times(false);  // nobody looks: left out
        b.recv_cq.complete(MLX5_CQE_RESP_SEND, fill(both, MLX5_CQE_L3_HDR_TYPE_IPV4, 0));
        EXPECT_EQ(b.poll(b.rcq).at(0).wc_flags & kWcTimestamp, 0u);
    }
}

TEST(Mlx5Direct, ErrorsAndFlush) {
    Bench b;
    for (std::uint64_t i = 0; i < 6; i++) ASSERT_EQ(b.send({b.sge(0, 100)}, 0, 100 + i), 0);
    for (std::uint64_t i = 0; i < 3; i++) ASSERT_EQ(b.receive(200 + i, {b.sge(0, 64)}), 0);
    b.send_cq.failed(MLX5_CQE_REQ_ERR, 2, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, 0x52);
    for (std::uint16_t i = 3; i < 6; i++)
        b.send_cq.failed(MLX5_CQE_REQ_ERR, i, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    auto wc = b.poll(b.scq);
    ASSERT_EQ(wc.size(), 4u);
    EXPECT_EQ(wc[0].status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(wc[0].vendor_err, 0x52u);
    EXPECT_EQ(wc[0].wr_id, 102u);
    for (std::size_t i = 1; i < 4; i++) {
        EXPECT_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc[i].wr_id, 102 + i);
    }
    b.recv_cq.failed(MLX5_CQE_RESP_ERR, 0, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    b.recv_cq.failed(MLX5_CQE_RESP_ERR, 1, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    b.recv_cq.failed(MLX5_CQE_RESP_ERR, 2, 0x7b);
    wc = b.poll(b.rcq);
    ASSERT_EQ(wc.size(), 3u);
    EXPECT_THAT((std::vector{wc[0].status, wc[1].status, wc[2].status}),
                ElementsAre(IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_GENERAL_ERR));
    EXPECT_THAT((std::vector{wc[0].wr_id, wc[1].wr_id, wc[2].wr_id}), ElementsAre(200, 201, 202));

    // After RESET everything begins anew, and what still stands in the CQs is not seen.
    b.send_cq.failed(MLX5_CQE_REQ_ERR, 5, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    b.recv_cq.received(60);
    b.qp.doorbell_record[0] = b.qp.doorbell_record[1] = 0;
    b.direct->reset(b.facade);
    EXPECT_EQ(b.send_cq.consumer(), 5u);
    EXPECT_EQ(b.recv_cq.consumer(), 4u);
    EXPECT_TRUE(b.poll(b.scq).empty());
    EXPECT_TRUE(b.poll(b.rcq).empty());
    ASSERT_EQ(b.send({b.sge(0, 100)}, IBV_SEND_SIGNALED, 300), 0);
    ASSERT_EQ(b.receive(301, {b.sge(0, 64)}), 0);
    EXPECT_EQ(b.qp.sends_announced(), 1);
    EXPECT_EQ(b.qp.receives_announced(), 1);
    b.send_cq.send_done(0);
    b.recv_cq.received(60);
    EXPECT_EQ(b.poll(b.scq).at(0).wr_id, 300u);
    EXPECT_EQ(b.poll(b.rcq).at(0).wr_id, 301u);
}

TEST(Mlx5Direct, EverySyndromeHasAStatus) {
    const std::pair<int, ibv_wc_status> table[] = {
        {MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, IBV_WC_LOC_LEN_ERR},
        {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR},
        {MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, IBV_WC_LOC_PROT_ERR},
        {MLX5_CQE_SYNDROME_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR},
        {MLX5_CQE_SYNDROME_MW_BIND_ERR, IBV_WC_MW_BIND_ERR},
        {MLX5_CQE_SYNDROME_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR},
        {MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR},
        {MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, IBV_WC_REM_INV_REQ_ERR},
        {MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR},
        {MLX5_CQE_SYNDROME_REMOTE_OP_ERR, IBV_WC_REM_OP_ERR},
        {MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR},
        {MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR},
        {MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, IBV_WC_REM_ABORT_ERR},
        {0xff, IBV_WC_GENERAL_ERR}};
    Bench b;
    for (auto [syndrome, status] : table) {
        ASSERT_EQ(b.receive(1, {b.sge(0, 64)}), 0);
        b.recv_cq.failed(MLX5_CQE_RESP_ERR, 0, static_cast<std::uint8_t>(syndrome));
        EXPECT_EQ(b.poll(b.rcq).at(0).status, status);
    }
}

TEST(Mlx5Direct, CompletionsOfNobodyAreLeftOut) {
    Bench b;
    ASSERT_EQ(b.receive(5, {b.sge(0, 64)}), 0);
    b.recv_cq.complete(MLX5_CQE_NO_PACKET, [](mlx5_cqe64&) {});
    b.recv_cq.send_done(0);  // of sends, on the CQ for receives
    b.recv_cq.failed(MLX5_CQE_REQ_ERR, 0, 1);
    b.recv_cq.received(60);
    auto wc = b.poll(b.rcq);
    ASSERT_EQ(wc.size(), 1u);
    EXPECT_EQ(wc[0].wr_id, 5u);
    EXPECT_EQ(b.recv_cq.consumer(), 4u);
}

// ---- arming ----

TEST(Mlx5Direct, ArmingCarriesTheNumberOfEvents) {
    Bench b;
    for (std::uint32_t events = 0; events < 9; events++) {
        for (int solicited : {0, 1}) {
            ASSERT_EQ(ibv_req_notify_cq(b.rcq, solicited), 0);
            const std::uint32_t word = (events & 3) << 28 | (solicited ? 1u << 24 : 0u) | events;
            EXPECT_EQ(be32toh(b.recv_cq.doorbell_record[1]), word);
            EXPECT_EQ(be64toh(b.recv_cq.uar[4]), std::uint64_t{word} << 32 | 8);
        }
        b.direct->event(&b.recv_cq.object);
        ibv_cq stranger{};
        b.direct->event(&stranger);
        ASSERT_EQ(b.receive(5, {b.sge(0, 64)}), 0);
        b.recv_cq.received(60);
        ASSERT_EQ(b.poll(b.rcq).size(), 1u);
    }
    ASSERT_EQ(ibv_req_notify_cq(b.scq, 0), 0);
    EXPECT_EQ(be64toh(b.send_cq.uar[4]), 7u);  // counted for each CQ
}

// ---- making facades ----

TEST(Mlx5Direct, FacadesNameTheirObjects) {
    Bench b;
    EXPECT_EQ(Direct::real(b.scq), &b.send_cq.object);
    EXPECT_EQ(Direct::real(b.facade), &b.qp.object);
    EXPECT_EQ(b.facade->qp_num, 0x123u);
    EXPECT_EQ(b.facade->send_cq, b.scq);
    EXPECT_EQ(b.facade->recv_cq, b.rcq);
    EXPECT_EQ(b.scq->cqe, 63);
}

TEST(Mlx5Direct, OneCqForBothSides) {
    FakeCq cq(64, 64, 3);
    FakeQp qp(32, 32);
    auto direct = Direct::create({fake_init_obj}, {}).value();
    auto both = direct->wrap_cq(&cq.object).value();
    const QpLimits limits{.max_send_wr = 32, .max_recv_wr = 32};
    auto facade = direct->wrap_qp(&qp.object, both, both, limits).value();
    std::uint8_t frame[64] = {};
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(frame), 64, 1};
    ibv_recv_wr rx{1, nullptr, &sge, 1}, *bad_rx = nullptr;
    ibv_send_wr tx{}, *bad_tx = nullptr;
    tx.wr_id = 2;
    tx.sg_list = &sge;
    tx.num_sge = 1;
    tx.opcode = IBV_WR_SEND;
    ASSERT_EQ(ibv_post_recv(facade, &rx, &bad_rx), 0);
    ASSERT_EQ(ibv_post_send(facade, &tx, &bad_tx), 0);
    cq.send_done(0);
    cq.received(64);
    ibv_wc wc[4];
    ASSERT_EQ(ibv_poll_cq(both, 4, wc), 2);
    EXPECT_EQ(wc[0].opcode, IBV_WC_SEND);
    EXPECT_EQ(wc[0].wr_id, 2u);
    EXPECT_EQ(wc[1].opcode, IBV_WC_RECV);
    EXPECT_EQ(wc[1].wr_id, 1u);
    FakeQp second(32, 32);
    EXPECT_EQ(direct->wrap_qp(&second.object, both, both, limits).error().code, EBUSY);
}

TEST(Mlx5Direct, WhatCannotBeServedIsRefused) {
    EXPECT_EQ(Direct::create({}, {}).error().code, EINVAL);
    auto broken = Direct::create({[](mlx5dv_obj*, std::uint64_t) { return ENOTSUP; }}, {}).value();
    FakeCq cq(64, 64, 1), other(64, 64, 2), small(16, 64, 3), odd(64, 32, 4);
    EXPECT_EQ(broken->wrap_cq(&cq.object).error().code, ENOTSUP);
    auto direct = Direct::create({fake_init_obj}, {}).value();
    EXPECT_EQ(direct->wrap_cq(&odd.object).error().code, EOPNOTSUPP);
    auto scq = direct->wrap_cq(&cq.object).value(), rcq = direct->wrap_cq(&other.object).value();
    auto tiny = direct->wrap_cq(&small.object).value();
    const QpLimits limits{.max_send_wr = 32, .max_recv_wr = 32};
    FakeQp qp(64, 32);
    EXPECT_EQ(direct->wrap_qp(&qp.object, scq, tiny, limits).error().code,
              EINVAL);  // its receives would overrun the CQ
    EXPECT_EQ(direct->wrap_qp(&qp.object, tiny, rcq, limits).error().code, EINVAL);
    EXPECT_EQ(direct->wrap_qp(&qp.object, rcq, rcq, {.max_send_wr = 33, .max_recv_wr = 32}).error().code,
              EINVAL);
    qp.queues.sq.wqe_cnt = 65536;
    EXPECT_EQ(direct->wrap_qp(&qp.object, scq, rcq, limits).error().code, EOPNOTSUPP);
    qp.queues.sq.wqe_cnt = 64;
    qp.queues.rq.stride = 8;
    EXPECT_EQ(direct->wrap_qp(&qp.object, scq, rcq, limits).error().code, EOPNOTSUPP);
    qp.queues.rq.stride = 16;
    qp.queues.bf.reg = nullptr;
    EXPECT_EQ(direct->wrap_qp(&qp.object, scq, rcq, limits).error().code, EOPNOTSUPP);
    qp.queues.bf.reg = qp.registers + 256;
    EXPECT_TRUE(direct->wrap_qp(&qp.object, scq, rcq, limits));  // nothing was left behind by the refusals
}

}  // namespace
}  // namespace vma::verbs::mlx5
