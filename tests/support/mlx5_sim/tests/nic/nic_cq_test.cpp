// SPDX-License-Identifier: BSD-2-Clause
// Completion queues: arming, events, moderation, overrun.
#include <gmock/gmock.h>

#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

using testing::HasSubstr;

// A rig whose QP takes every frame, with receives posted.
struct Listening : Rig {
    explicit Listening(const Shape& shape = {}) : Rig(shape) {
        take_all();
        fill();
    }
    void fill() {
        while (static_cast<std::uint16_t>(recv_post - arrived) < shape.recv_entries)
            put_receive({segment(0, 2048)});
        write_receive_record();
    }
    void arrive(int frames = 1) {
        for (int i = 0; i < frames; ++i, ++arrived) ASSERT_TRUE(nic.receive(make_frame()));
        fill();
    }
    void drain() {
        while (poll(recv_cq)) {
        }
    }
    std::uint16_t arrived = 0;
};

TEST(NicCq, OneEventForEachArming) {
    Listening rig;
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 0u);  // not armed
    rig.drain();
    for (int i = 0; i < 9; ++i) {  // the sequence number has two bits
        rig.arm(rig.recv_cq);
        rig.nic.step();
        EXPECT_EQ(rig.recv_cq.events, 0u);
        rig.arrive(3);
        EXPECT_EQ(rig.recv_cq.events, 1u);
        rig.nic.step();
        EXPECT_EQ(rig.recv_cq.events, 1u);
        EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
        rig.drain();
    }
    EXPECT_EQ(rig.nic.counters().events, 9u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, WhatCameBeforeArmingCounts) {
    Listening rig;
    rig.arrive();
    rig.arm(rig.recv_cq);  // says: I have seen none
    rig.nic.step();
    EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
    rig.drain();
    rig.arm(rig.recv_cq);
    rig.nic.step();
    EXPECT_EQ(rig.recv_cq.events, 0u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, ArmingTwiceIsOneArming) {
    Listening rig;
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive(2);
    EXPECT_EQ(rig.recv_cq.events, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, ArmingBeforeTheEventWasReadIsIgnored) {
    Listening rig;
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive();
    rig.drain();
    rig.arm(rig.recv_cq);  // with the old number
    rig.nic.step();
    rig.arrive();
    EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
    EXPECT_EQ(rig.nic.counters().stale_arms, 1u);
    for (int i = 0; i < 40; ++i) {  // a busy consumer finds completions and does not sleep
        rig.recv_cq.sequence = 0;
        rig.drain();
        rig.arm(rig.recv_cq);
        rig.nic.step();
        rig.arrive();
    }
    EXPECT_EQ(rig.violations(), "");
    for (int i = 0; i < 16; ++i) {
        rig.recv_cq.sequence = 0;
        rig.arm(rig.recv_cq);
        rig.nic.step();
    }
    EXPECT_THAT(rig.violations(),
                HasSubstr("CQ 0x11: armed with the sequence number 0, the adapter expects 1"));
}

TEST(NicCq, SolicitedOnlyWaitsForAnError) {
    Listening rig;
    rig.arm(rig.recv_cq, true);
    rig.nic.step();
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 0u);
    rig.nic.set_faults({.fail_receives = 1});
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, ModerationByCountAndByTime) {
    Listening rig;
    rig.nic.moderate_cq(Rig::kRecvCq, 3, 50);
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive(2);
    rig.nic.step();
    EXPECT_EQ(rig.recv_cq.events, 0u);
    rig.arrive();
    EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
    rig.drain();
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive();
    rig.now += 49000;
    rig.nic.step();
    EXPECT_EQ(rig.recv_cq.events, 0u);
    rig.now += 1000;
    EXPECT_TRUE(rig.nic.step());
    EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
    rig.drain();
    rig.nic.moderate_cq(Rig::kRecvCq, 3, 0);  // no moderation
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, EventsWithoutCompletionsAndCompletionsWithoutEvents) {
    Listening rig;
    rig.nic.set_faults({.extra_events = 1, .lost_events = 0});
    EXPECT_FALSE(rig.nic.step());  // nobody is armed
    rig.arm(rig.recv_cq);
    rig.nic.step();
    EXPECT_EQ(rig.read_events(rig.recv_cq), 1u);
    EXPECT_FALSE(rig.poll(rig.recv_cq));
    rig.nic.set_faults({.lost_events = 1});
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 0u);
    EXPECT_TRUE(rig.poll(rig.recv_cq));
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, TwoQueuesArmedBetweenTwoLooks) {
    Listening rig;
    rig.arm(rig.recv_cq);
    rig.arm(rig.send_cq);  // overwrites the other's doorbell
    rig.nic.step();
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 1u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, ArmedWithoutADoorbell) {
    Listening rig;
    rig.recv_cq.record[1] = htobe32(rig.arm_word(rig.recv_cq, true));
    rig.nic.step();
    rig.now += 999'999'000;
    rig.nic.step();
    EXPECT_EQ(rig.violations(), "");
    rig.now += 1'000'000;
    rig.nic.step();
    EXPECT_THAT(rig.violations(),
                HasSubstr("CQ 0x11: armed in the record (0x1000000), but there was no doorbell"));
    rig.arrive();
    EXPECT_EQ(rig.recv_cq.events, 0u);
}

TEST(NicCq, WrongArming) {
    Listening rig;
    rig.recv_cq.sequence = 2;
    rig.arm(rig.recv_cq);
    rig.nic.step();
    EXPECT_THAT(rig.violations(),
                HasSubstr("CQ 0x11: armed with the sequence number 2, the adapter expects 0"));
    rig.recv_cq.sequence = 0;
    rig.recv_cq.consumer = 5;
    rig.arm(rig.recv_cq);
    rig.nic.step();
    EXPECT_THAT(
        rig.violations(),
        HasSubstr("CQ 0x11: armed with the consumer index 0x5, but the last completion is before 0x0"));
    rig.ring_cq(0, 0x50);
    rig.nic.step();
    EXPECT_THAT(rig.violations(), HasSubstr("CQ doorbell for CQ 0x50"));
}

TEST(NicCq, ArmingDoorbellBeforeTheRecord) {
    Listening rig;
    rig.arm(rig.recv_cq);
    rig.nic.step();
    rig.arrive();
    rig.read_events(rig.recv_cq);
    rig.drain();
    rig.ring_cq(rig.arm_word(rig.recv_cq), Rig::kRecvCq);
    rig.nic.step();
    EXPECT_THAT(rig.violations(),
                HasSubstr("CQ 0x11: armed by doorbell with 0x10000001, but the record says 0x0"));
}

TEST(NicCq, Overrun) {
    Listening rig({.cqes = 4});
    rig.arrive(4);
    EXPECT_EQ(rig.violations(), "");
    rig.arrive();
    EXPECT_THAT(rig.violations(),
                HasSubstr("CQ 0x11: overrun: all 4 entries are taken, the consumer index is 0x0"));
    EXPECT_EQ(rig.recv_cq.failures, 1u);
    rig.drain();
    rig.arrive();
    EXPECT_FALSE(rig.poll(rig.recv_cq));
    EXPECT_EQ(rig.nic.counters().received, 5u);
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, LateConsumerIndexIsFineWhileThereIsRoom) {
    Listening rig({.cqes = 4});
    for (int i = 0; i < 40; ++i) {
        rig.arrive();
        ASSERT_TRUE(rig.poll(rig.recv_cq, i % 4 == 3));
    }
    EXPECT_EQ(rig.violations(), "");
}

TEST(NicCq, ConsumerIndexOutOfOrder) {
    Listening rig;
    rig.arrive(3);
    rig.drain();
    rig.nic.step();
    rig.recv_cq.record[0] = htobe32(2);
    rig.nic.step();
    rig.nic.step();
    EXPECT_EQ(rig.violations(),
              "CQ 0x11: the consumer index in the record is 0x2, behind the one before, 0x3\n");
    rig.recv_cq.record[0] = htobe32(4);
    rig.nic.step();
    EXPECT_EQ(rig.violations(),
              "CQ 0x11: the consumer index in the record is 0x4, beyond the last completion at 0x3\n");
}

TEST(NicCq, SoftwareWritesToTheAdaptersEntry) {
    Listening rig({.cqes = 4});
    rig.arrive(2);
    rig.entry(rig.recv_cq, 0)->op_own = 0;  // still the software's
    rig.drain();
    EXPECT_TRUE(rig.violations().empty());
    rig.poll(rig.recv_cq);
    rig.nic.step();
    rig.entry(rig.recv_cq, 3)->op_own ^= 1;
    rig.arrive(2);
    EXPECT_THAT(
        rig.violations(),
        HasSubstr("CQ 0x11: software wrote to entry 3, which is the adapter's: op_own 0xf1, was 0xf0"));
}

TEST(NicCq, EntriesMustStartInvalid) {
    Nic nic;
    std::vector<std::uint8_t> memory(256);
    std::uint32_t record[2] = {};
    CqAttr attr;
    attr.cqn = 7;
    attr.buffer = memory.data();
    attr.entries = 4;
    attr.doorbell_record = record;
    nic.create_cq(attr);
    EXPECT_THAT(nic.take_violations(), testing::ElementsAre("CQ 0x7: its entries are not marked invalid"));
}

}  // namespace
}  // namespace mlx5_sim
