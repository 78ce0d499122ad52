// SPDX-License-Identifier: BSD-2-Clause
// A process with two simulated adapters, mlx5_0 and mlx5_1, for verbs programs on the real libibverbs and
// libmlx5; and what such programs consist of. Everything is stepped by the test.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/mlx5_sim/sim.h"

namespace mlx5_sim::test {

inline constexpr char kFirst[] = "mlx5_0", kSecond[] = "mlx5_1";

// Handles that end themselves; the deleter's error is a failed test.
template <auto Destroy>
struct Ends {
    template <class T>
    void operator()(T* object) const {
        EXPECT_EQ(Destroy(object), 0);
    }
};
using ContextPtr = std::unique_ptr<ibv_context, Ends<ibv_close_device>>;
using PdPtr = std::unique_ptr<ibv_pd, Ends<ibv_dealloc_pd>>;
using MrPtr = std::unique_ptr<ibv_mr, Ends<ibv_dereg_mr>>;
using ChannelPtr = std::unique_ptr<ibv_comp_channel, Ends<ibv_destroy_comp_channel>>;
using CqPtr = std::unique_ptr<ibv_cq, Ends<ibv_destroy_cq>>;
using QpPtr = std::unique_ptr<ibv_qp, Ends<ibv_destroy_qp>>;
inline int destroy_flow(ibv_flow* flow) { return ibv_destroy_flow(flow); }  // libibverbs' own has no linkage
using FlowPtr = std::unique_ptr<ibv_flow, Ends<destroy_flow>>;

// Opens an adapter by name.
ContextPtr open_device(const std::string& name);
// A frame of this many bytes: Ethernet, IPv4, UDP with right lengths and sums, `seed` in its payload.
std::vector<std::uint8_t> udp_frame(std::size_t bytes, std::uint8_t seed, std::uint16_t dst_port = 7);
// Sum of IPv4's header, and of UDP's or TCP's datagram, as received; 0 if right.
std::uint16_t ip_sum(std::span<const std::uint8_t> frame);
std::uint16_t transport_sum(std::span<const std::uint8_t> frame);

struct PortOptions {
    int entries = 64;  // of each queue and of each CQ
    std::uint32_t max_sge = 4, max_inline = 0, max_tso_header = 0;
    bool with_channel = false;  // for the receive CQ
    bool all_signalled = true;
    bool extended = false;  // the receive CQ tells time stamps and flow tags
    int cqes = 0;           // of each CQ, 0: as many as entries
};

// One RAW_PACKET QP on an adapter, ready to send and receive, over one piece of registered memory.
class Port {
  public:
    explicit Port(const std::string& device, const PortOptions& options = {});

    // Posts a receive into slot `slot` of the memory (2048 bytes each), with that as its wr_id.
    void receive_into(unsigned slot);
    // Sends what stands in a slot.
    void send(unsigned slot, std::size_t bytes, unsigned flags = 0);
    // Steps until that CQ has a completion, and takes it.
    ibv_wc next(ibv_cq* cq);
    // A rule for UDP to this port of anybody; 0 takes every frame.
    FlowPtr steer_udp(std::uint16_t dst_port, std::uint32_t tag = 0, std::uint16_t priority = 0);
    // What make_flow() of libibverbs answers: null and errno.
    ibv_flow* try_steer_udp(std::uint16_t dst_port, std::uint32_t tag, std::uint16_t priority);
    std::uint8_t* slot(unsigned index) { return memory.data() + std::size_t{index} * kSlot; }
    void fill(unsigned index, const std::vector<std::uint8_t>& frame);
    // To the error state and back into service through reset.
    void stop();
    void restart();
    void to_rts();
    ibv_qp_state state();  // as the adapter has it
    ibv_cq_ex* recv_cq_ex() {
        return reinterpret_cast<ibv_cq_ex*>(recv_cq.get());
    }  // as ibv_cq_ex_to_cq(), backwards

    static constexpr std::size_t kSlot = 2048, kSlots = 256;
    ContextPtr context;
    PdPtr pd;
    std::vector<std::uint8_t> memory;
    MrPtr mr;
    ChannelPtr channel;
    CqPtr send_cq, recv_cq;
    QpPtr qp;
};

// The violations of both adapters since the last call, each with the adapter's name.
std::vector<std::string> violations();
// No violations: the programs here are right, and libmlx5 is.
void expect_no_violations();

// Two adapters joined by a cable.
class Joined : public testing::Test {
  protected:
    void SetUp() override { join(kFirst, kSecond); }
    void TearDown() override {
        expect_no_violations();
        EXPECT_EQ(open_contexts(), 0u);
    }
};

}  // namespace mlx5_sim::test
