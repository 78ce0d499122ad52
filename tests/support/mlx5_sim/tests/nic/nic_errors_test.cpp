// SPDX-License-Identifier: BSD-2-Clause
// What hardware punishes: each violation with its words, error completions, flush and recovery.
#include <gmock/gmock.h>

#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Wqe good(Rig& rig) {
    const Frame frame = make_frame();
    std::copy(frame.begin() + 18, frame.end(), rig.arena.begin());
    return Wqe()
        .eth(0, 0, head(frame, 18))
        .data(&rig.arena[0], static_cast<std::uint32_t>(frame.size() - 18), Rig::kLkey);
}

// The syndrome of the next completion; 0: a good one; -1: none.
int syndrome(Rig& rig, Rig::Queue& cq, int* index = nullptr) {
    const auto cqe = rig.poll(cq);
    if (!cqe) return -1;
    mlx5_err_cqe error;
    std::memcpy(&error, &*cqe, sizeof error);
    if (index != nullptr) *index = be16toh(error.wqe_counter);
    const int opcode = cqe->op_own >> 4;
    if (opcode != MLX5_CQE_REQ_ERR && opcode != MLX5_CQE_RESP_ERR) return 0;
    EXPECT_EQ(be32toh(error.srqn), Rig::kUser);
    EXPECT_EQ(be32toh(error.s_wqe_opcode_qpn) & 0xffffff, Rig::kQpn);
    EXPECT_NE(error.vendor_err_synd, 0);
    return error.syndrome;
}

// Posts one request, which must fail with that syndrome and those words, and send nothing; then starts the QP
// anew.
void fails(Rig& rig, const Wqe& wqe, int wanted, const std::string& words) {
    rig.post(wqe);
    rig.nic.step();
    EXPECT_TRUE(rig.sent.empty()) << words;
    EXPECT_EQ(syndrome(rig, rig.send_cq), wanted) << words;
    EXPECT_THAT(rig.violations(), AllOf(HasSubstr("QP 0x1234 send request 0x"), HasSubstr(words)));
    EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::send_error);
    rig.reset();
    EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::rts);
}

TEST(NicErrors, ControlSegment) {
    Rig rig;
    Wqe wqe = good(rig);
    wqe.index = 7;
    fails(rig, wqe, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "its control segment has the index 0x7");
    wqe = good(rig);
    wqe.qpn = 7;
    rig.put(wqe);
    rig.write_record();
    const Wqe right = good(rig);
    rig.send_post = 0;  // the doorbell is right, the memory is not
    rig.put(right);
    rig.ring();
    rig.send_post = 0;
    rig.put(wqe);
    rig.nic.step();
    EXPECT_EQ(syndrome(rig, rig.send_cq), MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    EXPECT_THAT(rig.violations(), HasSubstr("QP 0x1234 send request 0x0: its control segment names QP 0x7"));
    rig.reset();
    wqe = good(rig);
    wqe.segments = 0;
    fails(rig, wqe, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "0 segments");
    wqe.segments = 5;
    fails(rig, wqe, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "5 segments, 2 basic blocks, but only 1 are posted");
    wqe = good(rig);
    wqe.opcode = MLX5_OPCODE_RDMA_READ;
    fails(rig, wqe, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "operation 0x10 is none of a raw packet QP");
}

TEST(NicErrors, EthernetSegment) {
    Rig rig;
    const Frame frame = make_frame({.tcp = true, .payload = 2000});
    fails(rig, Wqe(), MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "no Ethernet segment");
    fails(rig, Wqe().eth_raw(0, 0, 200, head(frame, 18)), MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
          "200 bytes of inline header do not fit");
    fails(rig, Wqe(MLX5_OPCODE_TSO).eth(kSums, 0, head(frame, 54)).data(&rig.arena[0], 2000, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "a large send with an MSS of 0");
    fails(rig,
          Wqe(MLX5_OPCODE_TSO)
              .eth(MLX5_ETH_WQE_L3_CSUM, 100, head(frame, 54))
              .data(&rig.arena[0], 2000, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "without both checksum flags (0x40)");
    fails(rig, Wqe(MLX5_OPCODE_TSO).eth(kSums, 100, head(frame, 42)).data(&rig.arena[0], 2000, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "are not the headers of a TCP segment");
    rig.nic.set_limits({.min_inline = 18});
    fails(rig, Wqe().eth(0, 0, head(frame, 16)).data(&rig.arena[0], 500, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "16 bytes of inline header, the adapter wants 18");
}

TEST(NicErrors, Lengths) {
    Rig rig;
    rig.nic.set_limits({.max_frame = 1518, .max_tso = 4000});
    const Frame frame = make_frame({.tcp = true});
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[0], 1519, Rig::kLkey), MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR,
          "a frame of 1519 bytes, 1518 are allowed");
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[0], 13, Rig::kLkey), MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR,
          "a frame of 13 bytes");
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[0], 0, Rig::kLkey), MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR,
          "a data segment of length 0");
    fails(rig, Wqe(MLX5_OPCODE_TSO).eth(kSums, 1460, head(frame, 54)).data(&rig.arena[0], 4001, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, "a large send of 4001 bytes, 4000 are allowed");
    fails(rig, Wqe(MLX5_OPCODE_TSO).eth(kSums, 1500, head(frame, 54)).data(&rig.arena[0], 3000, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, "a frame of 1554 bytes");
    std::vector<std::uint8_t> short_inline(200);
    Wqe cut_off = Wqe().eth(0, 0, {}).inlined(short_inline);
    cut_off.bytes.resize(64);
    fails(rig, cut_off, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "200 bytes inline do not fit into it");
}

TEST(NicErrors, Memory) {
    Rig rig;
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[0], 100, 0x7777), MLX5_CQE_SYNDROME_LOCAL_PROT_ERR,
          "there is no memory region with the key 0x7777");
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[Rig::kArena - 99], 100, Rig::kLkey),
          MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, "outside the region 0x5500");
    fails(rig, Wqe().eth(0, 0, {}).data(&rig.arena[0] - 1, 100, Rig::kLkey), MLX5_CQE_SYNDROME_LOCAL_PROT_ERR,
          "100 bytes at 0x");
    const Wqe wqe = good(rig);
    rig.nic.remove_region(Rig::kLkey);
    fails(rig, wqe, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, "no memory region with the key 0x5500");
}

TEST(NicErrors, SendQueueOverrun) {
    Rig rig({.send_entries = 4});
    for (int i = 0; i < 5; ++i) rig.put(good(rig));
    rig.write_record();
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(
        rig.violations(),
        "QP 0x1234: the send counter 0x5 is 5 basic blocks beyond what completed last; the queue has 4\n");
    EXPECT_TRUE(rig.sent.empty());
    rig.reset();
    // The same, if all but the last are done, but nobody could know.
    for (int i = 0; i < 5; ++i) {
        Wqe wqe = good(rig);
        wqe.signalled = false;
        rig.post(wqe);
        rig.nic.step();
    }
    EXPECT_THAT(rig.violations(), HasSubstr("the send counter 0x5 is 5 basic blocks beyond"));
    EXPECT_EQ(rig.sent.size(), 4u);
}

TEST(NicErrors, Doorbells) {
    Rig rig;
    rig.put(good(rig));
    rig.ring();  // the record is not written
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: doorbell for the request 0x0, but the record says 0x0\n");
    rig.write_record();
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 1u);

    Wqe wqe = good(rig);
    wqe.qpn = 0x777;
    rig.put(wqe);
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "send doorbell for QP 0x777, which there is not\n");

    std::vector<std::uint64_t> other(512);
    rig.nic.add_uar(9, other.data());
    rig.put(good(rig));
    std::memcpy(reinterpret_cast<std::uint8_t*>(other.data()) + 0x800, &rig.send_queue[0], 8);
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: rung in a doorbell page that is not its own\n");
    rig.nic.remove_uar(9);

    rig.nic.modify_qp(Rig::kQpn, QpState::reset);
    rig.ring();
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: doorbell while the QP may not send\n");
    rig.record = {0, 0};
    rig.send_post = 0;
    rig.nic.modify_qp(Rig::kQpn, QpState::init);
    rig.post(good(rig));
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: doorbell while the QP may not send\n");
}

TEST(NicErrors, RecordWithoutADoorbell) {
    Rig rig;
    rig.put(good(rig));
    rig.write_record();
    rig.nic.step();
    rig.now += 999'000'000;
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "");
    rig.now += 2'000'000;
    rig.nic.step();
    EXPECT_EQ(rig.violations(),
              "QP 0x1234: the send counter in the record is 0x1, requests from 0x0 on got no doorbell\n");
    rig.now += 5'000'000'000;
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "");
    EXPECT_EQ(rig.nic.counters().doorbell_records, 1u);
    EXPECT_TRUE(rig.sent.empty());
    rig.put(good(rig));
    rig.write_record();
    rig.nic.destroy_qp(Rig::kQpn);
    EXPECT_EQ(rig.violations(), "QP 0x1234: it goes, but requests from 0x0 on got no doorbell\n");
}

TEST(NicErrors, BlueFlameCopyDiffers) {
    Rig rig;
    const Frame frame = make_frame({.payload = 60});
    rig.put(Wqe().eth(0, 0, std::span(frame).first(18)).inlined(std::span(frame).subspan(18)));
    rig.write_record();
    rig.blue_flame(192);
    rig.page[0x800 + 60] ^= 1;  // control segment 16, Ethernet segment up to 48, its data from 52 on
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: the BlueFlame copy of the request 0x0 differs from it\n");
    ASSERT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(rig.sent[0][26], frame[26] ^ 1) << "the copy is what is sent";
    std::vector<std::uint8_t> data(400);
    rig.put(Wqe().eth(0, 0, {}).inlined(data));
    rig.write_record();
    rig.blue_flame(256);
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "QP 0x1234: BlueFlame copy of the request 0x3, which has 448 bytes\n");
}

TEST(NicErrors, ReceiveRequests) {
    const auto arrives = [](Rig& rig, int wanted, const std::string& words) {
        rig.write_receive_record();
        EXPECT_TRUE(rig.nic.receive(make_frame()));
        EXPECT_EQ(syndrome(rig, rig.recv_cq), wanted) << words;
        EXPECT_THAT(rig.violations(), AllOf(HasSubstr("QP 0x1234 receive request 0x0: "), HasSubstr(words)));
        EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::error);
        rig.reset();
    };
    Rig rig;
    rig.take_all();
    const std::size_t bytes = make_frame().size();
    rig.put_receive({rig.segment(0, static_cast<std::uint32_t>(bytes - 1))});
    arrives(rig, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, "141 bytes for a frame of 142");
    rig.put_receive({});
    arrives(rig, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, "0 bytes for a frame of 142");
    rig.put_receive({rig.segment(0, 0)});
    arrives(rig, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "a data segment of length 0");
    rig.put_receive({{htobe32(2048), htobe32(5), 0}});
    arrives(rig, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, "no memory region with the key 0x5");
    rig.put_receive({rig.segment(Rig::kArena - 100, 2048)});
    arrives(rig, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, "outside the region");
    for (int i = 0; i < 9; ++i) rig.put_receive({rig.segment(0, 2048)});
    rig.write_receive_record();
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(
        rig.violations(),
        "QP 0x1234: the receive counter 0x9 is 9 requests beyond what completed last; the queue has 8\n");
}

TEST(NicErrors, OrderedSendFailureFlushesTheRest) {
    Rig rig;
    rig.take_all();
    rig.post_receive(0, 2048);
    rig.nic.set_faults({.fail_sends = 1, .send_syndrome = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR});
    for (int i = 0; i < 3; ++i) {
        Wqe wqe = good(rig);
        wqe.signalled = false;  // failures complete nevertheless
        rig.put(wqe);
    }
    rig.write_record();
    rig.ring();
    rig.nic.step();
    int index = 0;
    EXPECT_EQ(syndrome(rig, rig.send_cq, &index), MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    EXPECT_EQ(index, 0);
    EXPECT_EQ(syndrome(rig, rig.send_cq, &index), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(index, 1);
    EXPECT_EQ(syndrome(rig, rig.send_cq, &index), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(syndrome(rig, rig.send_cq), -1);
    EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::send_error);
    rig.post(good(rig));  // what is posted later is flushed, too
    rig.nic.step();
    EXPECT_EQ(syndrome(rig, rig.send_cq), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    // The receive side goes on, until the QP goes to the error state.
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(syndrome(rig, rig.recv_cq), 0);
    rig.post_receive(0, 2048);
    rig.nic.modify_qp(Rig::kQpn, QpState::error);
    EXPECT_EQ(syndrome(rig, rig.recv_cq, &index), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(index, 1);
    EXPECT_TRUE(rig.sent.empty());
    // And back to work.
    rig.reset();
    rig.post(good(rig));
    rig.post_receive(0, 2048);
    rig.nic.step();
    EXPECT_EQ(rig.sent.size(), 1u);
    EXPECT_EQ(syndrome(rig, rig.send_cq, &index), 0);
    EXPECT_EQ(index, 0);
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(syndrome(rig, rig.recv_cq), 0);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicErrors, OrderedReceiveFailureFlushesTheRest) {
    Rig rig;
    rig.take_all();
    for (int i = 0; i < 3; ++i) rig.post_receive(0, 2048);
    rig.nic.set_faults({.fail_receives = 1});
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(syndrome(rig, rig.recv_cq), MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    EXPECT_EQ(syndrome(rig, rig.recv_cq), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(syndrome(rig, rig.recv_cq), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_EQ(syndrome(rig, rig.recv_cq), -1);
    rig.post_receive(0, 2048);  // posted in the error state: flushed with the next look
    EXPECT_TRUE(rig.nic.step());
    EXPECT_EQ(syndrome(rig, rig.recv_cq), MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    EXPECT_TRUE(rig.nic.receive(make_frame()));
    EXPECT_EQ(rig.nic.counters().no_receive, 1u);
    EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::error);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicErrors, ADeadCompletionQueueEndsItsQp) {
    Rig rig({.cqes = 4});
    for (int i = 0; i < 6; ++i) rig.put(good(rig));
    rig.write_record();
    rig.ring();
    rig.nic.step();
    EXPECT_THAT(rig.violations(), HasSubstr("CQ 0x10: overrun"));
    EXPECT_EQ(rig.send_cq.failures, 1u);
    EXPECT_EQ(rig.nic.qp_state(Rig::kQpn), QpState::send_error);
}

TEST(NicErrorsDeathTest, StrictEndsTheProcess) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(
        {
            setenv("MLX5_SIM_STRICT", "abort", 1);
            Rig rig;
            rig.ring_cq(0, 0x50);
            rig.nic.step();
        },
        "mlx5_sim: CQ doorbell for CQ 0x50, which there is not");
}

}  // namespace
}  // namespace mlx5_sim
