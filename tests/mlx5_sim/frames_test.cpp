// SPDX-License-Identifier: BSD-2-Clause
// Frames between two adapters, by plain verbs through the real libmlx5: this is what shows that the simulator
// behaves as the code that is made for the hardware expects it.
#include <cstring>

#include "tests/mlx5_sim/fixture.h"

namespace mlx5_sim::test {
namespace {

TEST_F(Joined, AFrameAndItsAnswer) {
    Port a(kFirst), b(kSecond);
    const auto to_b = b.steer_udp(7), to_a = a.steer_udp(7);
    const auto frame = udp_frame(300, 1), answer = udp_frame(64, 9);
    b.receive_into(0);
    a.receive_into(0);

    a.fill(1, frame);
    a.send(1, frame.size());
    const ibv_wc got = b.next(b.recv_cq.get());
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV);
    EXPECT_EQ(got.wr_id, 0u);
    EXPECT_EQ(got.byte_len, frame.size());
    EXPECT_EQ(std::memcmp(b.slot(0), frame.data(), frame.size()), 0);
    const ibv_wc sent = a.next(a.send_cq.get());
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.wr_id, 1u);

    b.fill(1, answer);
    b.send(1, answer.size());
    EXPECT_EQ(a.next(a.recv_cq.get()).byte_len, answer.size());
    EXPECT_EQ(std::memcmp(a.slot(0), answer.data(), answer.size()), 0);
}

}  // namespace
}  // namespace mlx5_sim::test
