// SPDX-License-Identifier: BSD-2-Clause
// vma_trace on the rdma device: every request is counted once, whatever facades lie above the queues, and
// contexts that go leave nothing behind.
#include <gtest/gtest.h>

#include <deque>

#include "libvma/verbs/mlx5/direct.h"
#include "libvma/verbs/rdma/library.h"
#include "tests/verbs/sim_rdma/rdma_rig.h"
#include "tools/vma_trace/hooks.h"

namespace {

bool tracing = false;
unsigned offers = 0;

}  // namespace

// As in tools/vma_trace/exports.cpp, while a test wants it.
extern "C" void vma_trace_context(ibv_context* context) {
    if (!tracing) return;
    offers++;
    vma_trace::registry().add_context(context);
}
extern "C" void vma_trace_context_gone(ibv_context* context) {
    vma_trace::registry().remove_context(context);
}

namespace rdma_rig {
namespace {

using vma::verbs::rdma::Verbs;

struct Sums {
    std::uint64_t posted = 0, completed = 0, completions = 0, bytes = 0, hardware_gaps = 0;
    friend Sums operator-(Sums a, const Sums& b) {
        return {a.posted - b.posted, a.completed - b.completed, a.completions - b.completions,
                a.bytes - b.bytes, a.hardware_gaps - b.hardware_gaps};
    }
};

class RdmaTrace : public RdmaPaths {
  protected:
    // libibverbs' functions, as the tracer's exported ones stand in front of them.
    void SetUp() override {
        RdmaPaths::SetUp();
        auto& table = const_cast<Verbs&>(**vma::verbs::rdma::verbs());
        real_ = table;
        table.open_device = [](ibv_device* device) {
            ibv_context* context = real_.open_device(device);
            if (context != nullptr) vma_trace::registry().add_context(context);
            return context;
        };
        table.close_device = [](ibv_context* context) {
            vma_trace::registry().remove_context(context);
            return real_.close_device(context);
        };
        table.create_cq = [](ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                             int vector) {
            return vma_trace::create_cq(real_.create_cq, context, entries, cq_context, channel, vector);
        };
        table.destroy_cq = [](ibv_cq* cq) {
            const int error = real_.destroy_cq(cq);
            if (error == 0) vma_trace::registry().remove_cq(cq);
            return error;
        };
        table.destroy_qp = [](ibv_qp* qp) {
            const int error = real_.destroy_qp(qp);
            if (error == 0) vma_trace::registry().remove_qp(qp);
            return error;
        };
        tracing = true;
        offers = 0;
        strays_ = vma_trace::registry().strays();
    }
    void TearDown() override {
        tracing = false;
        const_cast<Verbs&>(**vma::verbs::rdma::verbs()) = real_;
        EXPECT_EQ(vma_trace::registry().strays(), strays_);
        RdmaPaths::TearDown();
    }
    static Sums sums(vma_trace::Side side) {
        Sums all;
        vma_trace::registry().each_queue([&](const vma_trace::WorkQueue& queue) {
            const vma_trace::Totals& t = queue.totals();
            EXPECT_EQ(t.unmatched, 0u);
            EXPECT_TRUE(t.posted == 0 || std::string_view(queue.device).starts_with("mlx5_")) << queue.device;
            if (queue.side() == side)
                all = {all.posted + t.posted, all.completed + t.completed, all.completions + t.completions,
                       all.bytes + t.bytes, all.hardware_gaps + t.hardware_gap.count()};
        });
        return all;
    }

    static inline Verbs real_;
    std::uint64_t strays_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Rdma, RdmaTrace, testing::Bool(), path_name);

TEST_P(RdmaTrace, EachRequestIsCountedOnce) {
    constexpr unsigned kFrames = 40, kPosted = 32;
    for (const std::uint16_t vlan : {0, 5})
        for (const bool times : {false, true}) {
            SCOPED_TRACE(std::to_string(vlan) + (times ? " with times" : ""));
            const Sums sends = sums(vma_trace::Side::send), receives = sums(vma_trace::Side::receive);
            RdmaConfig from = config(kA), to = config(kB);
            from.vlan = to.vlan = vlan;
            if (times) vma::verbs::Device::want_arrival_times(true);
            const Bytes frame = udp("once");
            {
                Rig a(from, kPosted), b(to, kPosted);
                b.rule(three_tuple());
                for (unsigned i = 0; i < kFrames; i++) {
                    a.send(frame, i % 4 == 3 ? IBV_SEND_SIGNALED : 0);
                    ASSERT_EQ(b.receive().size(), 1u);
                    ASSERT_EQ(a.poll(a.send_cq).size(), i % 4 == 3 ? 1u : 0u);
                }
                EXPECT_EQ(offers, GetParam() ? 2u : 0u) << "the direct queues' contexts, and no facade's";
                offers = 0;
            }
            if (times) vma::verbs::Device::want_arrival_times(false);
            const Sums sent = sums(vma_trace::Side::send) - sends,
                       received = sums(vma_trace::Side::receive) - receives;
            EXPECT_EQ(sent.posted, kFrames);
            EXPECT_EQ(sent.completed, kFrames);
            EXPECT_EQ(sent.completions, kFrames / 4);
            EXPECT_EQ(sent.bytes, kFrames * (frame.size() + (vlan != 0 ? 4 : 0)));
            EXPECT_EQ(received.posted, 2 * kPosted + kFrames);
            EXPECT_EQ(received.completed, kFrames);
            // The simulated adapter fills short frames up.
            EXPECT_GE(received.bytes, kFrames * (frame.size() + (vlan != 0 ? 4 : 0)));
            // By plain verbs: of the send CQ, which the tracer gives time stamps, and of a receive CQ whose
            // times are read.
            EXPECT_EQ(sent.hardware_gaps, GetParam() ? 0u : kFrames / 4 - 1);
            EXPECT_EQ(received.hardware_gaps, !GetParam() && times ? kFrames - 1 : 0u);
        }
}

TEST_P(RdmaTrace, ARecoveredQueueIsFollowedAnew) {
    Rig a(config(kA)), b(config(kB));
    b.rule(three_tuple());
    const Sums before = sums(vma_trace::Side::send);
    for (int round = 0; round < 3; round++) {
        a.post(udp("unsignalled"), 0);
        mlx5_sim::settle();
        a.device->stop(a.qp);
        mlx5_sim::settle();
        a.poll(a.recv_cq);
        a.poll(a.send_cq);
        ASSERT_TRUE(a.device->recover(a.qp));
        for (unsigned i = 0; i < 32; i++) a.post_receive(i);
        a.send(udp("signalled"));
        EXPECT_EQ(a.poll(a.send_cq).size(), 1u);
    }
    const Sums sent = sums(vma_trace::Side::send) - before;
    EXPECT_EQ(sent.posted, 6u);
    EXPECT_EQ(sent.completions, 3u) << "what was lost is not taken for what came after";
}

TEST_P(RdmaTrace, ContextsThatGoMakeRoomForOthers) {
    const std::uint64_t untraced = vma_trace::registry().untraced();
    std::deque<std::unique_ptr<vma::verbs::mlx5::Direct>> alive;
    const vma::verbs::mlx5::Functions functions{
        .init_obj = [](mlx5dv_obj*, std::uint64_t) { return ENOSYS; }};
    for (int i = 0; i < 1000; i++) {
        alive.push_back(std::move(*vma::verbs::mlx5::Direct::create(functions, {})));
        if (alive.size() > 100) alive.pop_front();
    }
    EXPECT_EQ(offers, 1000u);
    EXPECT_EQ(vma_trace::registry().untraced(), untraced);
}

}  // namespace
}  // namespace rdma_rig
