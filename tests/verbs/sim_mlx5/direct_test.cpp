// SPDX-License-Identifier: BSD-2-Clause
// The library's own data path on queues that the real libmlx5 made, under the strict adapter, which has
// nothing to report of it: wraps of all indices, errors and recovery, overrun, events, shared registers.
#include <errno.h>
#include <poll.h>

#include <cstring>
#include <random>

#include "tests/support/mlx5_sim/tests/fixture.h"
#include "tests/verbs/sim_mlx5/direct_rig.h"

namespace mlx5_sim::test {
namespace {

class DirectPath : public Joined {
  protected:
    void SetUp() override {
        Joined::SetUp();
        for (const char* name : {kFirst, kSecond}) {
            nic(name).check_blue_flames(true);
            nic(name).set_faults({});
        }
    }
};

std::uint32_t length_of(std::uint32_t number) { return 60 + number * 37 % 400; }

// Two sides send to one another; each frame carries its number. Lengths and bursts are odd, so the positions
// of all queues drift.
void exchange(Side& a, Side& b, std::uint32_t frames, std::uint32_t seed) {
    std::mt19937 random(seed);
    struct Way {
        Side &from, &to;
        std::uint32_t sent = 0, reaped = 0, posted = 0, received = 0;
    } ways[] = {{a, b}, {b, a}};
    std::vector<std::vector<std::uint8_t>> kinds;
    for (std::uint32_t i = 0; i < 400; i++)
        kinds.push_back(udp_frame(length_of(i), static_cast<std::uint8_t>(i)));
    while (ways[0].received < frames || ways[1].received < frames) {
        for (Way& w : ways) {
            while (w.posted < frames && w.posted - w.received < 64 && random() % 16 != 0)
                ASSERT_EQ(w.to.receive(w.posted++), 0);
            // Never more than there are receives: a frame without one is lost.
            for (auto burst = random() % 24; burst != 0 && w.sent < w.posted && w.sent - w.reaped < 60;
                 burst--, w.sent++) {
                auto& frame = kinds[w.sent % 400];
                frame[4] = static_cast<std::uint8_t>(w.sent >> 8);  // of the address: in no checksum
                frame[5] = static_cast<std::uint8_t>(w.sent);
                const bool signalled = w.sent % 7 == 0 || w.sent + 1 == frames || w.sent - w.reaped >= 50;
                const bool copied = frame.size() <= 204 && w.sent % 3 != 0;
                const unsigned flags = signalled * IBV_SEND_SIGNALED | copied * IBV_SEND_INLINE;
                ASSERT_EQ(w.from.send(w.sent, frame, flags), 0);
            }
        }
        ASSERT_TRUE(settle());
        for (Way& w : ways) {
            for (const ibv_wc& wc : w.from.poll(w.from.send_cq)) {
                ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
                ASSERT_GE(wc.wr_id, w.reaped);
                w.reaped = static_cast<std::uint32_t>(wc.wr_id + 1);
            }
            for (auto batch = w.to.poll(w.to.recv_cq); !batch.empty(); batch = w.to.poll(w.to.recv_cq)) {
                for (const ibv_wc& wc : batch) {
                    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
                    ASSERT_EQ(wc.wr_id, w.received);
                    ASSERT_EQ(wc.byte_len, length_of(w.received % 400));
                    ASSERT_NE(wc.wc_flags & IBV_WC_IP_CSUM_OK, 0u);
                    const std::uint8_t* frame = w.to.rx_slot(wc.wr_id);
                    ASSERT_EQ(frame[4] << 8 | frame[5], w.received & 0xffff);
                    ASSERT_EQ(frame[wc.byte_len - 1], kinds[w.received % 400].back());
                    w.received++;
                }
            }
        }
    }
}

TEST_F(DirectPath, EveryIndexWraps) {
    for (std::uint32_t cqe_size : {64u, 128u}) {
        SideOptions options;
        options.cqe_size = cqe_size;
        Side a(kFirst, options), b(kSecond, options);
        a.take_all();
        b.take_all();
        exchange(a, b, cqe_size == 64 ? 200000 : 70000, cqe_size);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(nic(kFirst).counters().doorbell_records, 0u);
}

TEST_F(DirectPath, LargeSendsAtEveryPosition) {
    SideOptions options;
    options.max_tso_header = 94;
    Side a(kFirst, options);
    std::vector<Frame> sent;
    nic(kFirst).on_transmit([&](Frame frame) { sent.push_back(std::move(frame)); });
    std::vector<std::uint8_t> headers = udp_frame(66, 0);
    headers[23] = 6;  // TCP, with a header of 32 bytes
    headers[46] = 0x80;
    for (std::uint32_t i = 0; i < 3000; i++) a.slot(0)[i] = static_cast<std::uint8_t>(i * 7);
    std::vector<Frame> first;
    for (int round = 0; round < 400; round++) {
        ibv_sge pieces[] = {a.sge(0, 0, 1000), a.sge(0, 1000, 1), a.sge(0, 1001, 1999)};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.sg_list = pieces;
        wr.num_sge = 3;
        wr.opcode = IBV_WR_TSO;
        wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
        wr.tso = {headers.data(), 66, 1448};
        ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
        ASSERT_TRUE(settle());
        ASSERT_EQ(a.poll(a.send_cq).size(), 1u);
        if (round == 0) first = sent;
        ASSERT_EQ(sent.size(), 3u);
        ASSERT_EQ(sent, first) << round;
        std::vector<std::uint8_t> payload;
        for (const Frame& frame : sent) payload.insert(payload.end(), frame.begin() + 66, frame.end());
        payload.resize(3000);  // the last frame may have been padded
        ASSERT_EQ(std::memcmp(payload.data(), a.slot(0), 3000), 0);
        sent.clear();
        // An odd number of blocks between them, so that each position has its turn.
        for (int i = 0; i < round % 3; i++) {
            ASSERT_EQ(a.send(5, udp_frame(100, 1)), 0);
            ASSERT_TRUE(settle());
            ASSERT_EQ(a.poll(a.send_cq).size(), 1u);
        }
        sent.clear();
    }
    join(kFirst, kSecond);
}

// ---- errors ----

using Ends = std::vector<std::tuple<std::uint64_t, ibv_wc_status>>;
void collect(Side& side, ibv_cq* cq, Ends& ends) {
    for (const ibv_wc& wc : side.poll(cq, 64)) ends.emplace_back(wc.wr_id, wc.status);
}

TEST_F(DirectPath, FailedSendFlushAndRecovery) {
    Ends ends[2];
    for (bool direct : {false, true}) {
        SideOptions options;
        options.direct = direct;
        Side a(kFirst, options), b(kSecond, options);
        a.take_all();
        b.take_all();
        for (std::uint64_t i = 0; i < 5; i++) ASSERT_EQ(a.receive(1000 + i), 0);
        Faults faults;
        faults.fail_sends = 1;
        nic(kFirst).set_faults(faults);
        for (std::uint64_t i = 0; i < 10; i++)
            ASSERT_EQ(a.send(i, udp_frame(100, 1), i % 4 == 3 ? IBV_SEND_SIGNALED : 0), 0);
        ASSERT_TRUE(settle());
        collect(a, a.send_cq, ends[direct]);
        for (std::uint64_t i = 10; i < 12; i++) ASSERT_EQ(a.send(i, udp_frame(100, 1), 0), 0);
        ASSERT_TRUE(settle());
        a.to(IBV_QPS_ERR);
        ASSERT_TRUE(settle());
        collect(a, a.send_cq, ends[direct]);
        collect(a, a.recv_cq, ends[direct]);
        ASSERT_FALSE(ends[direct].empty());
        EXPECT_EQ(ends[direct].front(), std::tuple(0, IBV_WC_LOC_PROT_ERR));
        EXPECT_EQ(ends[direct].back(), std::tuple(1004, IBV_WC_WR_FLUSH_ERR));
        a.restart();
        b.restart();
        if (direct) exchange(a, b, 5000, 5);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(ends[1], ends[0]);
}

TEST_F(DirectPath, FailedReceiveAndRecovery) {
    Ends ends[2];
    for (bool direct : {false, true}) {
        SideOptions options;
        options.direct = direct;
        Side a(kFirst, options), b(kSecond, options);
        a.take_all();
        b.take_all();
        for (std::uint64_t i = 0; i < 5; i++) ASSERT_EQ(b.receive(i), 0);
        Faults faults;
        faults.fail_receives = 1;
        nic(kSecond).set_faults(faults);
        ASSERT_EQ(a.send(1, udp_frame(100, 1)), 0);
        ASSERT_TRUE(settle());
        b.to(IBV_QPS_ERR);
        ASSERT_TRUE(settle());
        collect(b, b.recv_cq, ends[direct]);
        ASSERT_EQ(ends[direct].size(), 5u);
        EXPECT_EQ(ends[direct].front(), std::tuple(0, IBV_WC_LOC_LEN_ERR));
        EXPECT_EQ(ends[direct].back(), std::tuple(4, IBV_WC_WR_FLUSH_ERR));
        b.restart();
        a.restart();
        if (direct) exchange(a, b, 5000, 6);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(ends[1], ends[0]);
}

// What stood in the CQs when the QP was reset is not seen afterwards.
TEST_F(DirectPath, RecoveryWithoutPollingFirst) {
    Side a(kFirst), b(kSecond);
    a.take_all();
    b.take_all();
    for (int round = 0; round < 5; round++) {
        for (std::uint64_t i = 0; i < 20; i++) ASSERT_EQ(b.receive(i), 0);
        for (std::uint64_t i = 0; i < 10; i++) ASSERT_EQ(a.send(i, udp_frame(100, 1)), 0);
        ASSERT_TRUE(settle());
        b.to(IBV_QPS_ERR);
        a.to(IBV_QPS_ERR);
        ASSERT_TRUE(settle());
        a.restart();
        b.restart();
        ASSERT_TRUE(a.poll(a.send_cq).empty());
        ASSERT_TRUE(b.poll(b.recv_cq).empty());
        exchange(a, b, 1001, 7);
        if (HasFatalFailure()) return;
        a.restart();
        b.restart();
    }
}

// ---- overrun ----

TEST_F(DirectPath, CqIsNeverOverrun) {
    SideOptions options;
    options.receive_cqes = 15;
    EXPECT_NE(Side(kSecond, options).refused, "");
    options.limits.max_recv_wr = 16;
    Side a(kFirst);
    const auto send_forty = [&] {
        for (std::uint64_t i = 0; i < 40; i++) ASSERT_EQ(a.send(i, udp_frame(100, 1)), 0);
        ASSERT_TRUE(settle());
        ASSERT_EQ(a.poll(a.send_cq, 64).size(), 40u);
    };
    {
        Side b(kSecond, options);
        b.take_all();
        std::uint64_t posted = 0;
        while (b.receive(posted) == 0) posted++;
        EXPECT_EQ(posted, 16u);
        const auto before = nic(kSecond).counters().no_receive;
        send_forty();
        EXPECT_EQ(nic(kSecond).counters().no_receive - before, 24u);
        EXPECT_EQ(b.poll(b.recv_cq, 64).size(), 16u);
        expect_no_violations();
    }
    // The same queues under libmlx5, which lets them overrun: this is how the adapter would report it.
    options.direct = false;
    Side b(kSecond, options);
    b.take_all();
    for (std::uint64_t i = 0; i < 40; i++) ASSERT_EQ(b.receive(i), 0);
    send_forty();
    EXPECT_FALSE(nic(kSecond).take_violations().empty());
}

TEST_F(DirectPath, SendCqIsNeverOverrun) {
    SideOptions options;
    options.sends = 64;
    options.send_cqes = 15;
    options.limits.max_send_wr = 16;
    Side a(kFirst, options);
    std::uint64_t posted = 0;
    while (a.send(posted, udp_frame(100, 1), 0) == 0) posted++;
    EXPECT_EQ(posted, 16u);
    a.to(IBV_QPS_ERR);
    ASSERT_TRUE(settle());
    a.poll(a.send_cq, 64);
}

// ---- events ----

class Listener : public Side {
  public:
    Listener() : Side(kSecond, with_channel()) { take_all(); }
    bool readable() const {
        pollfd fd{channel->fd, POLLIN, 0};
        return ::poll(&fd, 1, 0) == 1;
    }
    void consume() {
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(channel, &cq, &context), 0);
        ASSERT_EQ(cq, real_recv_cq);
        direct->event(cq);
        ibv_ack_cq_events(cq, 1);
    }
    void arm() { ASSERT_EQ(ibv_req_notify_cq(recv_cq, 0), 0); }
    // A frame arrives into a receive posted for it.
    void arrival(std::uint64_t id) {
        ASSERT_EQ(receive(id), 0);
        ASSERT_TRUE(nic(kSecond).receive(udp_frame(100, 1)));
        ASSERT_TRUE(settle());
    }

  private:
    static SideOptions with_channel() {
        SideOptions options;
        options.with_channel = true;
        return options;
    }
};

TEST_F(DirectPath, EventsComeWhenArmed) {
    Listener b;
    for (std::uint64_t i = 0; i < 40; i++) {
        b.arrival(2 * i);
        EXPECT_FALSE(b.readable());
        // A completion that came before the arming, and was not polled, gives its event at once; after the
        // poll it does not.
        if (i % 2 == 0) {
            ASSERT_EQ(b.poll(b.recv_cq).size(), 1u);
        }
        b.arm();
        ASSERT_TRUE(settle());
        EXPECT_EQ(b.readable(), i % 2 != 0);
        if (i % 2 == 0) b.arrival(2 * i + 1);
        ASSERT_TRUE(b.readable());
        b.consume();
        EXPECT_FALSE(b.readable());
        ASSERT_EQ(b.poll(b.recv_cq).size(), 1u);
    }
    EXPECT_EQ(nic(kSecond).counters().stale_arms, 0u);
}

TEST_F(DirectPath, EventWithoutCompletion) {
    Listener b;
    for (std::uint64_t i = 0; i < 6; i++) {
        Faults faults;
        faults.extra_events = 1;
        nic(kSecond).set_faults(faults);
        b.arm();
        settle();
        ASSERT_TRUE(b.readable());
        b.consume();
        EXPECT_TRUE(b.poll(b.recv_cq).empty());
        // The waiter sleeps again: arms, looks once more, waits. The next frame wakes it, or it is there when
        // it looks.
        b.arm();
        settle();
        b.arrival(i);
        EXPECT_EQ(b.poll(b.recv_cq).size(), 1u);
        while (b.readable()) b.consume();
    }
}

TEST_F(DirectPath, CompletionWithoutEvent) {
    Listener b;
    b.arm();
    Faults faults;
    faults.lost_events = 1;
    nic(kSecond).set_faults(faults);
    b.arrival(1);
    EXPECT_FALSE(b.readable());
    // The waiter's time is up: it arms and looks.
    b.arm();
    EXPECT_EQ(b.poll(b.recv_cq).at(0).wr_id, 1u);
    for (std::uint64_t i = 2; i < 10; i++) {
        b.arm();
        b.arrival(i);
        while (b.readable()) b.consume();
        EXPECT_EQ(b.poll(b.recv_cq).at(0).wr_id, i);
    }
}

// ---- registers ----

TEST_F(DirectPath, TwoQpsOnOneRegister) {
    std::vector<std::unique_ptr<Side>> sides;
    Side *one = nullptr, *other = nullptr;
    const auto register_of = [](const Side& side) {
        mlx5dv_qp queues{};
        mlx5dv_obj object{};
        object.qp = {side.real_qp, &queues};
        EXPECT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), 0);
        return queues.bf.reg;
    };
    while (other == nullptr && sides.size() < 40) {
        SideOptions options;
        if (!sides.empty()) {
            options.context = sides[0]->context;
            options.shared = sides[0]->direct;
        }
        sides.push_back(std::make_unique<Side>(kFirst, options));
        for (auto& side : sides)
            if (side != sides.back() && register_of(*side) == register_of(*sides.back())) {
                one = side.get();
                other = sides.back().get();
            }
    }
    ASSERT_NE(other, nullptr);
    const auto before = nic(kFirst).counters();
    for (std::uint64_t i = 0; i < 1000; i++) {
        for (Side* side : {one, other})
            ASSERT_EQ(side->send(i, udp_frame(64 + i % 100, 1), IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
        if (i % 8 != 7) continue;
        ASSERT_TRUE(settle());
        for (Side* side : {one, other}) ASSERT_EQ(side->poll(side->send_cq).size(), 8u);
    }
    const auto after = nic(kFirst).counters();
    EXPECT_EQ(after.sent - before.sent, 2000u);
    EXPECT_EQ(after.blue_flames, before.blue_flames);  // copies of two would mix
    while (sides.size() > 1) sides.pop_back();         // the first owns the context
}

}  // namespace
}  // namespace mlx5_sim::test
