// SPDX-License-Identifier: BSD-2-Clause
// The ACK that ends a handshake waits for the first data, where the connections before it wrote at once.
#include <gtest/gtest.h>

#include "libvma/tcp/migrate/handover.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

constexpr clock::Usec kNeverIdle{3'600'000'000};

struct Opens {
    explicit Opens(clock::Usec idle = kNeverIdle) : w(1, {}, idle), tap(w) { w.listen(64); }

    Connection* open() {
        (void)tap.take();
        Connection* c = w.connect(next++);
        EXPECT_TRUE(w.until([&] { return c->state() == State::established; }, kMs));
        return c;
    }
    // Opens `count` connections that write at once.
    void open_and_write(int count) {
        for (int i = 0; i < count; i++) {
            Connection* c = open();
            ASSERT_EQ(send(c, "first"), 5);
            w.settle();
            ASSERT_NE(w.accept(), nullptr);
        }
    }
    // ACKs without data that the client sent since open() began.
    int acks() const {
        int count = 0;
        for (const Tap::Seen& s : tap.seen) count += s.from_a && s.flags == kAck && s.payload.empty();
        return count;
    }

    World w;
    Tap tap;
    in_port_t next = 1000;
};

TEST(TcpFirstWrite, AcknowledgesTheHandshakeAfterARun) {
    Opens o;
    o.open_and_write(15);
    (void)o.open();
    EXPECT_EQ(o.acks(), 1) << "the run is too short";
    ASSERT_EQ(send(o.w.opened.back(), "first"), 5);
    o.w.settle();
    ASSERT_NE(o.w.accept(), nullptr);

    Connection* c = o.open();
    EXPECT_EQ(o.acks(), 0);
    EXPECT_EQ(o.w.accept(), nullptr);
    ASSERT_EQ(send(c, "first"), 5);
    o.w.settle();
    EXPECT_EQ(o.acks(), 0);
    Connection* s = o.w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(receive(s), "first");
    EXPECT_EQ(c->counters().retransmits, 0u);
}

TEST(TcpFirstWrite, DoesNotWaitForLong) {
    Opens o;
    o.open_and_write(16);
    Connection* c = o.open();
    EXPECT_EQ(o.acks(), 0);
    o.w.pass(5 * kMs);
    EXPECT_EQ(o.acks(), 1);
    ASSERT_NE(o.w.accept(), nullptr);
    // That was the end of the run.
    (void)o.open();
    EXPECT_EQ(o.acks(), 1);
    EXPECT_EQ(send(c, "late"), 4);
}

TEST(TcpFirstWrite, LateOnesMakeNoRun) {
    Opens o;
    for (int i = 0; i < 40; i++) {
        Connection* c = o.open();
        EXPECT_EQ(o.acks(), 1) << i;
        o.w.pass(2 * kMs);
        ASSERT_EQ(send(c, "late"), 4);
        o.w.settle();
        ASSERT_NE(o.w.accept(), nullptr);
    }
}

// A program that polls for something else first gets its connection completed, and ends the run.
TEST(TcpFirstWrite, PollThatFindsNothingSendsTheAck) {
    Opens o(clock::Usec{0});
    o.open_and_write(16);
    (void)o.open();
    o.w.settle();
    EXPECT_EQ(o.acks(), 1);
    EXPECT_FALSE(o.w.a->ring->first_writes().expected());
}

TEST(TcpFirstWrite, CloseEndsTheHandshakeToo) {
    Opens o;
    o.open_and_write(16);
    Connection* c = o.open();
    o.w.close(c);
    o.w.settle();
    Connection* s = o.w.accept();
    ASSERT_NE(s, nullptr);
    EXPECT_EQ(receive_result(s), 0);
}

// The kernel takes the connection over as one whose handshake is done, on both sides.
TEST(TcpFirstWrite, HandoverSendsTheAck) {
    Opens o;
    o.open_and_write(16);
    Connection* c = o.open();
    EXPECT_EQ(o.acks(), 0);
    KernelState state;
    ASSERT_EQ(c->freeze(state), 0);
    o.w.settle();
    EXPECT_EQ(o.acks(), 1);
    EXPECT_NE(o.w.accept(), nullptr);
    c->finish_freeze(false);
}

}  // namespace
}  // namespace vma::tcp::test
