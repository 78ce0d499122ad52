// SPDX-License-Identifier: BSD-2-Clause
// Frames between two adapters, by plain verbs through the real libmlx5: this is what shows that the simulator
// behaves as the code that is made for the hardware expects it.
#include <cstring>
#include <numeric>

#include "tests/support/mlx5_sim/tests/fixture.h"

namespace mlx5_sim::test {
namespace {

// Posts one request and expects libmlx5 to take it.
void post(Port& port, ibv_send_wr wr) {
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(port.qp.get(), &wr, &bad), 0);
}
ibv_sge piece(Port& port, const void* at, std::size_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(at), static_cast<std::uint32_t>(bytes), port.mr->lkey};
}

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

TEST_F(Joined, SeveralSegmentsBothWays) {
    Port a(kFirst), b(kSecond);
    const auto rule = b.steer_udp(7);
    const auto frame = udp_frame(1000, 3);
    a.fill(0, frame);
    ibv_sge into[] = {piece(b, b.slot(0), 14), piece(b, b.slot(1), 28), piece(b, b.slot(2), 2000)};
    ibv_recv_wr receive{};
    receive.wr_id = 77;
    receive.sg_list = into;
    receive.num_sge = 3;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(b.qp.get(), &receive, &bad), 0);

    ibv_sge from[] = {piece(a, a.slot(0), 20), piece(a, a.slot(0) + 20, 400), piece(a, a.slot(0) + 420, 579),
                      piece(a, a.slot(0) + 999, 1)};
    ibv_send_wr wr{};
    wr.sg_list = from;
    wr.num_sge = 4;
    wr.opcode = IBV_WR_SEND;
    post(a, wr);
    const ibv_wc got = b.next(b.recv_cq.get());
    EXPECT_EQ(got.wr_id, 77u);
    ASSERT_EQ(got.byte_len, frame.size());
    EXPECT_EQ(std::memcmp(b.slot(0), frame.data(), 14), 0);
    EXPECT_EQ(std::memcmp(b.slot(1), frame.data() + 14, 28), 0);
    EXPECT_EQ(std::memcmp(b.slot(2), frame.data() + 42, 958), 0);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Joined, InlineDataIsTakenWhenPosted) {
    PortOptions options;
    options.max_inline = 204;
    Port a(kFirst, options), b(kSecond);
    const auto rule = b.steer_udp(7);
    for (std::size_t bytes : {60u, 61u, 100u, 128u, 204u}) {
        const auto frame = udp_frame(bytes, static_cast<std::uint8_t>(bytes));
        b.receive_into(0);
        a.fill(0, frame);
        a.send(0, bytes, IBV_SEND_INLINE);
        std::memset(a.slot(0), 0xee, bytes);
        ASSERT_EQ(b.next(b.recv_cq.get()).byte_len, bytes);
        EXPECT_EQ(std::memcmp(b.slot(0), frame.data(), bytes), 0) << bytes;
        EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
    }
}

TEST_F(Joined, ChecksumsOfBothSides) {
    Port a(kFirst), b(kSecond);
    const auto rule = b.steer_udp(7);
    auto frame = udp_frame(200, 5);
    const auto right = frame;
    frame[24] = frame[25] = 0;  // IPv4's
    // UDP's: the adapter computes over what is there, as the kernel's partial sums want it; so the
    // pseudo-header's sum goes in.
    const std::uint32_t pseudo = 0xc612 + 0x0001 + 0xc612 + 0x0002 + 17 + 166;
    const auto folded = static_cast<std::uint16_t>((pseudo & 0xffff) + (pseudo >> 16));
    frame[40] = static_cast<std::uint8_t>(folded >> 8);
    frame[41] = static_cast<std::uint8_t>(folded);

    b.receive_into(0);
    a.fill(0, frame);
    a.send(0, frame.size(), IBV_SEND_IP_CSUM);
    const ibv_wc got = b.next(b.recv_cq.get());
    EXPECT_TRUE(got.wc_flags & IBV_WC_IP_CSUM_OK);
    EXPECT_EQ(ip_sum({b.slot(0), 200}), 0);
    EXPECT_EQ(transport_sum({b.slot(0), 200}), 0);
    EXPECT_EQ(std::memcmp(b.slot(0), right.data(), 200), 0);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);

    // A frame that is wrong, sent as it is, is not marked.
    frame = right;
    frame[100] ^= 1;
    b.receive_into(0);
    a.fill(0, frame);
    a.send(0, frame.size());
    EXPECT_FALSE(b.next(b.recv_cq.get()).wc_flags & IBV_WC_IP_CSUM_OK);
    EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Joined, LargeSendsAreCutUp) {
    PortOptions options;
    options.max_tso_header = 128;
    Port a(kFirst, options), b(kSecond);
    // Every frame, also TCP.
    const auto rule = b.steer_udp(0);
    constexpr std::size_t kHeader = 54, kPayload = 4000, kMss = 1000;
    std::vector<std::uint8_t> header(kHeader);
    const auto udp = udp_frame(60, 0);
    std::memcpy(header.data(), udp.data(), 34);
    header[23] = 6;     // TCP
    header[46] = 0x50;  // five words of header
    header[47] = 0x18;  // PSH, ACK
    header[41] = 1;     // sequence number 1
    std::uint8_t* const payload = a.slot(4);
    std::iota(payload, payload + kPayload, std::uint8_t{0});
    for (unsigned i = 0; i < 4; ++i) b.receive_into(i);

    ibv_sge sge = piece(a, payload, kPayload);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_TSO;
    wr.send_flags = IBV_SEND_IP_CSUM;
    wr.tso.hdr = header.data();
    wr.tso.hdr_sz = kHeader;
    wr.tso.mss = kMss;
    post(a, wr);
    for (unsigned i = 0; i < 4; ++i) {
        const ibv_wc got = b.next(b.recv_cq.get());
        ASSERT_EQ(got.byte_len, kHeader + kMss) << i;
        EXPECT_EQ(std::memcmp(b.slot(i) + kHeader, payload + i * kMss, kMss), 0) << i;
        EXPECT_EQ(b.slot(i)[16] << 8 | b.slot(i)[17], static_cast<int>(kMss + 40));
        EXPECT_EQ(b.slot(i)[40] << 8 | b.slot(i)[41], static_cast<int>(1 + i * kMss));
        EXPECT_EQ(ip_sum({b.slot(i), got.byte_len}), 0) << i;
    }
    const ibv_wc sent = a.next(a.send_cq.get());
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_TSO);
}

TEST_F(Joined, OnlySignalledRequestsComplete) {
    PortOptions options;
    options.all_signalled = false;
    Port a(kFirst, options);
    const auto before = nic(kFirst).counters().sent;
    const auto frame = udp_frame(100, 1);
    a.fill(0, frame);
    for (unsigned i = 0; i < 7; ++i) a.send(0, frame.size());
    a.send(0, frame.size(), IBV_SEND_SIGNALED);
    EXPECT_TRUE(settle());
    ibv_wc wc[8];
    EXPECT_EQ(ibv_poll_cq(a.send_cq.get(), 8, wc), 1);
    EXPECT_EQ(nic(kFirst).counters().sent, before + 8);
}

TEST_F(Joined, TimeStampsAndTagsOfAnExtendedCq) {
    PortOptions options;
    options.extended = true;
    Port a(kFirst), b(kSecond, options);
    const auto tagged = b.steer_udp(7, 0xabcde), plain = b.steer_udp(8);
    std::uint64_t now = 1'000'000;
    set_clock(kSecond, [&] { return now; });
    const auto exchange = [&](std::uint16_t port) {
        const auto frame = udp_frame(100, 1, port);
        b.receive_into(3);
        a.fill(0, frame);
        a.send(0, frame.size());
        EXPECT_TRUE(settle());
        EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
    };
    ibv_poll_cq_attr poll{};
    ibv_cq_ex* const cq = b.recv_cq_ex();
    EXPECT_EQ(ibv_start_poll(cq, &poll), ENOENT);

    exchange(7);
    const std::uint64_t first = now;
    now += 5000;
    exchange(8);
    ASSERT_EQ(ibv_start_poll(cq, &poll), 0);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(cq->wr_id, 3u);
    EXPECT_EQ(ibv_wc_read_byte_len(cq), 100u);
    EXPECT_EQ(ibv_wc_read_completion_ts(cq), first);
    EXPECT_EQ(ibv_wc_read_flow_tag(cq), 0xabcdeu);
    ASSERT_EQ(ibv_next_poll(cq), 0);
    EXPECT_EQ(ibv_wc_read_completion_ts(cq), now);
    EXPECT_EQ(ibv_wc_read_flow_tag(cq), 0u);
    EXPECT_EQ(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);

    // The clock that programs read is the one of the time stamps.
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    ASSERT_EQ(ibv_query_rt_values_ex(b.context.get(), &values), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(values.raw_clock.tv_nsec), now);
    mlx5dv_clock_info info{};
    ASSERT_EQ(mlx5dv_get_clock_info(b.context.get(), &info), 0);
    EXPECT_EQ(info.last_cycles, now);
    // 156,250 ticks are a millisecond; the driver's fixed-point numbers are good to a nanosecond in that.
    const std::uint64_t a_while = mlx5dv_ts_to_ns(&info, now + 156250) - mlx5dv_ts_to_ns(&info, now);
    EXPECT_NEAR(static_cast<double>(a_while), 1e6, 1);
    set_clock(kSecond, {});
}

TEST_F(Joined, RulesChooseTheQueue) {
    Port a(kFirst), b(kSecond), other(kSecond);
    const auto rule = b.steer_udp(7), second = other.steer_udp(8), same_again = b.steer_udp(7);
    const auto sends = [&](std::uint16_t port) {
        const auto frame = udp_frame(100, 1, port);
        a.fill(0, frame);
        a.send(0, frame.size());
        EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
        EXPECT_TRUE(settle());
    };
    for (Port* port : {&b, &other}) port->receive_into(0);
    sends(7);
    EXPECT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
    sends(8);
    EXPECT_EQ(other.next(other.recv_cq.get()).byte_len, 100u);
    const auto before = nic(kSecond).counters().not_steered;
    sends(9);
    EXPECT_EQ(nic(kSecond).counters().not_steered, before + 1);

    // What the driver refuses: another tag for the same frames, a priority or a tag beyond the last.
    EXPECT_EQ(b.try_steer_udp(7, 5, 0), nullptr);
    EXPECT_EQ(errno, EEXIST);
    EXPECT_EQ(b.try_steer_udp(7, 0, 16), nullptr);
    EXPECT_EQ(errno, ENOSPC);
    EXPECT_EQ(b.try_steer_udp(10, 1 << 24, 0), nullptr);
    EXPECT_EQ(errno, EINVAL);
    const auto other_priority = b.steer_udp(7, 5, 1);
}

TEST_F(Joined, DefaultAndMulticastRules) {
    Port a(kFirst), b(kSecond), other(kSecond);
    ibv_flow_attr attr{};
    attr.size = sizeof(attr);
    attr.port = 1;
    attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
    const FlowPtr all(ibv_create_flow(other.qp.get(), &attr));
    ASSERT_NE(all, nullptr);
    const auto rule = b.steer_udp(7);
    for (Port* port : {&b, &other}) {
        for (unsigned i = 0; i < 4; ++i) port->receive_into(i);
    }
    for (const std::uint16_t port : {7, 8}) {
        const auto frame = udp_frame(100, 1, port);
        a.fill(0, frame);
        a.send(0, frame.size());
        EXPECT_EQ(a.next(a.send_cq.get()).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(b.next(b.recv_cq.get()).byte_len, 100u);
    EXPECT_EQ(other.next(other.recv_cq.get()).byte_len, 100u);
    EXPECT_EQ(other.slot(0)[37], 8);  // what the first rule took is not for the default rule

    attr.type = IBV_FLOW_ATTR_MC_DEFAULT;
    const FlowPtr multicast(ibv_create_flow(b.qp.get(), &attr));
    ASSERT_NE(multicast, nullptr);
    attr.type = IBV_FLOW_ATTR_SNIFFER;
    EXPECT_EQ(ibv_create_flow(b.qp.get(), &attr), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Joined, TwoHundredThousandRoundTrips) {
    // All indices wrap: the 16 bits of the requests' counter, the rings, the owner bit of completions.
    PortOptions options;
    options.entries = 16;
    options.max_inline = 64;
    Port a(kFirst, options), b(kSecond, options);
    const auto to_b = b.steer_udp(7), to_a = a.steer_udp(7);
    const auto frame = udp_frame(64, 1);
    a.fill(0, frame);
    b.fill(0, frame);
    const auto cross = [](Port& from, Port& to, unsigned round) {
        to.receive_into(1);
        std::memcpy(from.slot(0) + 50, &round, sizeof(round));
        from.send(0, 64, round % 3 == 0 ? IBV_SEND_INLINE : 0);
        const ibv_wc got = to.next(to.recv_cq.get());
        const bool whole = got.byte_len == 64 && std::memcmp(to.slot(1) + 50, &round, sizeof(round)) == 0;
        return got.status == IBV_WC_SUCCESS && whole &&
               from.next(from.send_cq.get()).status == IBV_WC_SUCCESS;
    };
    for (unsigned round = 0; round < 200'000; ++round) {
        ASSERT_TRUE(cross(a, b, round)) << round;
        ASSERT_TRUE(cross(b, a, round)) << round;
    }
}

}  // namespace
}  // namespace mlx5_sim::test
