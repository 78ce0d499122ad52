// SPDX-License-Identifier: BSD-2-Clause
// The replaced functions, on a device that does what the test says.
#include "tools/vma_trace/hooks.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/vma_trace/fake_device.h"

namespace {

using namespace vma_trace;
using vma_trace_test::FakeDevice;

struct Hooks : testing::Test {
    // Contexts are known by their address: the devices of all tests live until the end.
    FakeDevice& add_device(bool time_stamps = false) {
        static std::vector<std::unique_ptr<FakeDevice>> all;
        all.push_back(std::make_unique<FakeDevice>(time_stamps));
        registry().add_context(all.back()->context());
        return *all.back();
    }
    static int send(ibv_qp* qp, std::vector<std::uint64_t> ids, unsigned flags, std::uint32_t bytes = 8,
                    ibv_wr_opcode opcode = IBV_WR_SEND) {
        ibv_sge sge{0, bytes, 0};
        std::vector<ibv_send_wr> list(ids.size());
        for (std::size_t i = 0; i < ids.size(); i++) {
            list[i].wr_id = ids[i];
            list[i].sg_list = &sge;
            list[i].num_sge = 1;
            list[i].opcode = opcode;
            list[i].send_flags = flags;
            list[i].next = i + 1 < ids.size() ? &list[i + 1] : nullptr;
        }
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, list.data(), &bad);
    }
    static int receive(ibv_qp* qp, std::uint64_t id) {
        ibv_recv_wr wr{}, *bad = nullptr;
        wr.wr_id = id;
        return ibv_post_recv(qp, &wr, &bad);
    }
    static const Totals& sent(ibv_qp* qp) { return registry().qp(qp)->send->totals(); }
    static const Totals& received(ibv_qp* qp) { return registry().qp(qp)->receive->totals(); }
};

TEST_F(Hooks, PostsAndPollsReachTheDeviceAndAreCounted) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp* qp = device.make_qp(cq, cq, 17);
    EXPECT_EQ(send(qp, {1, 2, 3}, IBV_SEND_SIGNALED, 100), 0);
    EXPECT_EQ(receive(qp, 4), 0);
    EXPECT_EQ(device.posted, (std::vector<std::uint64_t>{1, 2, 3, 4}));
    for (const std::uint64_t id : {1, 2, 3}) device.complete(id, 17, IBV_WC_SEND);
    device.complete(4, 17, IBV_WC_RECV, IBV_WC_SUCCESS, 55);
    std::array<ibv_wc, 8> wc{};
    EXPECT_EQ(ibv_poll_cq(cq, 8, wc.data()), 4);
    EXPECT_EQ(wc[3].wr_id, 4u);
    EXPECT_EQ(ibv_poll_cq(cq, 8, wc.data()), 0);
    EXPECT_EQ(sent(qp).completed, 3u);
    EXPECT_EQ(sent(qp).bytes, 300u);
    EXPECT_EQ(received(qp).completed, 1u);
    EXPECT_EQ(received(qp).bytes, 55u);
}

TEST_F(Hooks, ARefusedRequestLeavesNoTrace) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp* qp = device.make_qp(cq, cq, 17);
    device.accept = 2;
    EXPECT_EQ(send(qp, {1, 2, 3, 4}, IBV_SEND_SIGNALED), ENOMEM);
    EXPECT_EQ(sent(qp).posted, 2u);
    EXPECT_EQ(registry().qp(qp)->send->outstanding(), 2u);
}

TEST_F(Hooks, QpsOfOneCqAreToldApart) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp* a = device.make_qp(cq, cq, 20);
    ibv_qp* b = device.make_qp(cq, cq, 21);
    send(a, {1}, IBV_SEND_SIGNALED);
    send(b, {1, 2}, IBV_SEND_SIGNALED);
    device.complete(1, 21, IBV_WC_SEND);
    device.complete(1, 20, IBV_WC_SEND);
    device.complete(2, 21, IBV_WC_SEND);
    device.complete(2, 99, IBV_WC_SEND);
    const std::uint64_t strays = registry().strays();
    ibv_wc wc[8];
    EXPECT_EQ(ibv_poll_cq(cq, 8, wc), 4);
    EXPECT_EQ(sent(a).completed, 1u);
    EXPECT_EQ(sent(b).completed, 2u);
    EXPECT_EQ(registry().strays(), strays + 1);
}

TEST_F(Hooks, ReceivesOfTheOnlyQpOfACqAreItsWhateverNumberTheyHave) {
    FakeDevice& device = add_device();
    ibv_cq *one = device.make_cq(), *two = device.make_cq();
    ibv_qp* other = device.make_qp(one, one, 5);
    ibv_qp* raw = device.make_qp(one, two, 25);
    receive(other, 1);
    receive(raw, 1);
    receive(raw, 2);
    // The number of nobody, and that of somebody else: they are flow tags.
    device.complete(1, 0, IBV_WC_RECV, IBV_WC_SUCCESS, 60);
    device.complete(2, 5, IBV_WC_RECV, IBV_WC_SUCCESS, 60);
    ibv_wc wc[4];
    EXPECT_EQ(ibv_poll_cq(two, 4, wc), 2);
    EXPECT_EQ(received(raw).completed, 2u);
    EXPECT_EQ(received(other).completed, 0u);
    // With two of them it cannot be told.
    receive(device.make_qp(one, two, 26), 3);
    const std::uint64_t strays = registry().strays();
    device.complete(3, 0, IBV_WC_RECV);
    EXPECT_EQ(ibv_poll_cq(two, 4, wc), 1);
    EXPECT_EQ(registry().strays(), strays + 1);
}

TEST_F(Hooks, FailedCompletionsFindTheirDirection) {
    FakeDevice& device = add_device();
    ibv_cq *one = device.make_cq(), *two = device.make_cq();
    ibv_qp* shared = device.make_qp(one, one, 30);
    ibv_qp* split = device.make_qp(one, two, 31);
    for (ibv_qp* qp : {shared, split}) {
        send(qp, {5}, 0);
        receive(qp, 6);
        // The opcode of a failed completion is undefined.
        device.complete(5, qp->qp_num, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR);
        ibv_wc wc[4];
        EXPECT_EQ(ibv_poll_cq(one, 4, wc), 1);
        device.complete(6, qp->qp_num, IBV_WC_SEND, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(ibv_poll_cq(qp->recv_cq, 4, wc), 1);
        EXPECT_EQ(sent(qp).errors, 1u);
        EXPECT_EQ(received(qp).errors, 1u);
        EXPECT_EQ(received(qp).unmatched, 0u);
    }
}

TEST_F(Hooks, SharedReceiveQueuesServeSeveralQps) {
    FakeDevice& device = add_device();
    ibv_srq srq{};
    srq.context = device.context();
    ibv_cq* cq = device.make_cq();
    ibv_qp* a = device.make_qp(cq, cq, 40, &srq);
    ibv_qp* b = device.make_qp(cq, cq, 41, &srq);
    send(a, {0}, 0);
    send(b, {0}, 0);
    ibv_recv_wr wr[2]{}, *bad = nullptr;
    wr[0].wr_id = 1;
    wr[0].next = &wr[1];
    wr[1].wr_id = 2;
    EXPECT_EQ(ibv_post_srq_recv(&srq, wr, &bad), 0);
    device.complete(2, 40, IBV_WC_RECV, IBV_WC_SUCCESS, 10);
    device.complete(1, 41, IBV_WC_RECV, IBV_WC_SUCCESS, 10);
    ibv_wc wc[4];
    EXPECT_EQ(ibv_poll_cq(cq, 4, wc), 2);
    EXPECT_EQ(registry().srq(&srq)->receive->totals().completed, 2u);
}

TEST_F(Hooks, APlainCqGetsTimeStampsWhereTheDeviceHasThem) {
    FakeDevice& device = add_device(true);
    const CreateCq never = [](ibv_context*, int, void*, ibv_comp_channel*, int) -> ibv_cq* {
        return ADD_FAILURE(), nullptr;
    };
    int context_of_cq = 0;
    ibv_cq* cq = create_cq(never, device.context(), 16, &context_of_cq, nullptr, 0);
    ASSERT_NE(cq, nullptr);
    EXPECT_EQ(cq->cq_context, &context_of_cq);
    EXPECT_NE(device.last_wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0u);
    ibv_qp* qp = device.make_qp(cq, cq, 50);
    send(qp, {1, 2, 3}, IBV_SEND_SIGNALED);
    receive(qp, 4);
    for (std::uint64_t i = 1; i <= 3; i++) device.complete(i, 50, IBV_WC_SEND, IBV_WC_SUCCESS, 0, 1000 * i);
    device.complete(4, 50, IBV_WC_RECV, IBV_WC_SUCCESS, 77, 4000);
    device.entries.back().wc.imm_data = 0x1234;
    device.entries.back().wc.wc_flags = IBV_WC_WITH_IMM;
    device.entries.back().wc.src_qp = 9;
    std::array<ibv_wc, 8> wc{};
    EXPECT_EQ(ibv_poll_cq(cq, 2, wc.data()), 2);
    EXPECT_EQ(wc[1].wr_id, 2u);
    EXPECT_EQ(ibv_poll_cq(cq, 8, wc.data()), 2);
    EXPECT_EQ(wc[1].opcode, IBV_WC_RECV);
    EXPECT_EQ(wc[1].byte_len, 77u);
    EXPECT_EQ(wc[1].imm_data, 0x1234u);
    EXPECT_EQ(wc[1].src_qp, 9u);
    EXPECT_EQ(ibv_poll_cq(cq, 8, wc.data()), 0);
    EXPECT_EQ(ibv_poll_cq(cq, 0, wc.data()), 0);
    EXPECT_EQ(sent(qp).hardware_gap.count(), 2u);
    EXPECT_EQ(sent(qp).hardware_gap.max(), 1000u);
    EXPECT_DOUBLE_EQ(registry().qp(qp)->send->device_ticks_per_ns, 0.5);
}

TEST_F(Hooks, WithoutTimeStampsACqStaysWhatItIs) {
    for (const bool time_stamps : {false, true}) {
        FakeDevice& device = add_device(time_stamps);
        device.refuse_cq_ex = time_stamps;
        static ibv_cq* plain;
        plain = device.make_cq();
        const CreateCq create = [](ibv_context*, int, void*, ibv_comp_channel*, int) { return plain; };
        EXPECT_EQ(create_cq(create, device.context(), 16, nullptr, nullptr, 0), plain);
    }
}

TEST_F(Hooks, ExtendedCqsAreFollowed) {
    FakeDevice& device = add_device(true);
    ibv_cq_init_attr_ex attr{};
    attr.cqe = 16;
    attr.wc_flags = 0;
    ibv_cq_ex* cq = ibv_create_cq_ex(device.context(), &attr);
    ASSERT_NE(cq, nullptr);
    EXPECT_EQ(attr.wc_flags, 0u);
    ibv_qp* qp = device.make_qp(ibv_cq_ex_to_cq(cq), ibv_cq_ex_to_cq(cq), 60);
    send(qp, {1, 2}, IBV_SEND_SIGNALED);
    device.complete(1, 60, IBV_WC_SEND, IBV_WC_SUCCESS, 0, 10);
    device.complete(2, 60, IBV_WC_SEND, IBV_WC_SUCCESS, 0, 25);
    ibv_poll_cq_attr poll{};
    ASSERT_EQ(ibv_start_poll(cq, &poll), 0);
    EXPECT_EQ(cq->wr_id, 1u);
    ASSERT_EQ(ibv_next_poll(cq), 0);
    EXPECT_EQ(cq->wr_id, 2u);
    EXPECT_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    EXPECT_EQ(ibv_start_poll(cq, &poll), ENOENT);
    EXPECT_EQ(ibv_start_poll(cq, &poll), ENOENT);  // the lock was given back
    EXPECT_EQ(sent(qp).completed, 2u);
    EXPECT_EQ(sent(qp).hardware_gap.max(), 15u);
}

TEST_F(Hooks, RequestsOfTheBuilderInterfaceAreFollowed) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp_init_attr_ex attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 16;
    attr.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    ibv_qp* base = ibv_create_qp_ex(device.context(), &attr);
    ASSERT_NE(base, nullptr);
    auto* qp = reinterpret_cast<ibv_qp_ex*>(base);
    install(*qp);
    install(*qp);  // a second time changes nothing

    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = 0;
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, 0, 0, 40);
    qp->wr_id = 2;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, 0, 0);
    const ibv_sge list[2] = {{0, 3, 0}, {0, 4, 0}};
    ibv_wr_set_sge_list(qp, 2, list);
    EXPECT_EQ(registry().qp(base)->send->outstanding(), 0u);
    EXPECT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(device.posted, (std::vector<std::uint64_t>{1, 2}));

    ibv_wr_start(qp);
    qp->wr_id = 3;
    ibv_wr_send(qp);
    ibv_wr_abort(qp);
    device.complete_error = EINVAL;
    ibv_wr_start(qp);
    qp->wr_id = 4;
    ibv_wr_send(qp);
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
    device.complete_error = 0;
    EXPECT_EQ(registry().qp(base)->send->outstanding(), 2u);

    ibv_wr_start(qp);
    qp->wr_id = 5;
    ibv_wr_send_tso(qp, nullptr, 54, 1448);
    const ibv_data_buf buffers[1] = {{nullptr, 1000}};
    ibv_wr_set_inline_data_list(qp, 1, buffers);
    EXPECT_EQ(ibv_wr_complete(qp), 0);

    device.complete(2, base->qp_num, IBV_WC_RDMA_WRITE);
    device.complete(5, base->qp_num, IBV_WC_TSO);
    ibv_wc wc[4];
    EXPECT_EQ(ibv_poll_cq(cq, 4, wc), 2);
    EXPECT_EQ(sent(base).completed, 3u);
    EXPECT_EQ(sent(base).bytes, 40u + 7 + 1054);
    EXPECT_EQ(sent(base).posted, 3u);
}

TEST_F(Hooks, ADestroyedQpMakesRoomForAnotherAtItsAddress) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp* qp = device.make_qp(cq, cq, 70);
    send(qp, {1}, IBV_SEND_SIGNALED);
    registry().remove_qp(qp);
    qp->qp_num = 71;
    send(qp, {2}, IBV_SEND_SIGNALED);
    qp->qp_num = 72;  // destroyed without our knowledge
    send(qp, {3, 4}, IBV_SEND_SIGNALED);
    EXPECT_EQ(sent(qp).posted, 2u);
    device.complete(3, 72, IBV_WC_SEND);
    device.complete(2, 71, IBV_WC_SEND);
    const std::uint64_t strays = registry().strays();
    ibv_wc wc[4];
    EXPECT_EQ(ibv_poll_cq(cq, 4, wc), 2);
    EXPECT_EQ(sent(qp).completed, 1u);
    EXPECT_EQ(registry().strays(), strays + 1);
}

TEST_F(Hooks, AContextThatGoesTakesItsObjectsAlong) {
    FakeDevice& device = add_device(true);
    const CreateCq never = [](ibv_context*, int, void*, ibv_comp_channel*, int) -> ibv_cq* {
        return nullptr;
    };
    ibv_cq* cq = create_cq(never, device.context(), 16, nullptr, nullptr, 0);
    ibv_qp* qp = device.make_qp(cq, cq, 80);
    send(qp, {1, 2}, IBV_SEND_SIGNALED);
    registry().remove_context(device.context());
    EXPECT_FALSE(is_hooked(device.context()->ops));
    EXPECT_EQ(registry().context(device.context()), nullptr);
    EXPECT_EQ(registry().qp(qp), nullptr);
    EXPECT_EQ(registry().cq(cq), nullptr);
    EXPECT_EQ(send(qp, {3}, IBV_SEND_SIGNALED), 0);
    EXPECT_EQ(device.posted, (std::vector<std::uint64_t>{1, 2, 3}));

    // Known again, it begins anew.
    Context* again = registry().add_context(device.context());
    ASSERT_NE(again, nullptr);
    send(qp, {4}, IBV_SEND_SIGNALED);
    EXPECT_EQ(sent(qp).posted, 1u);
    // Memory of one kind of object is not taken for another's.
    EXPECT_EQ(registry().context(reinterpret_cast<ibv_context*>(qp)), nullptr);
    EXPECT_EQ(registry().context(reinterpret_cast<ibv_context*>(cq)), nullptr);
}

TEST_F(Hooks, ThousandsOfQpsComeAndGo) {
    FakeDevice& device = add_device();
    ibv_cq* cq = device.make_cq();
    ibv_qp* qp = device.make_qp(cq, cq, 1000);
    const std::uint64_t untraced = registry().untraced(), before = registry().retired().posted;
    for (std::uint32_t i = 0; i < 30'000; i++) {
        qp->qp_num = 1000 + i;
        const ibv_qp_cap capacity{4, 4, 1, 1, 0};
        ASSERT_NE(registry().add_qp(qp, &capacity, false), nullptr);
        send(qp, {i}, IBV_SEND_SIGNALED);
        registry().remove_qp(qp);
    }
    EXPECT_EQ(registry().untraced(), untraced);
    EXPECT_GE(registry().retired().posted - before, 29'900u);
}

}  // namespace
