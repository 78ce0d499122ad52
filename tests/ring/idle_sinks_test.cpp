// SPDX-License-Identifier: BSD-2-Clause
// Who waits for a poll that finds nothing: how long, and who is forgotten.
#include "libvma/ring/idle_sinks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "libvma/ring/ring.h"

namespace {

using vma::clock::Usec;
using vma::ring::FrameSink;
using vma::ring::Idle;
using vma::ring::IdleSinks;
using vma::ring::Ring;

constexpr Usec kNow{0}, kNever{3'600'000'000};

struct Waits final : FrameSink {
    bool deliver(vma::ring::RxBuffer*) noexcept override { return false; }
    void idle(Ring&, Idle when) noexcept override {
        (when == Idle::soon ? soon : later)++;
        if (forgets != nullptr) sinks->remove(forgets);
        if (again) sinks->add(this, when);
    }
    int soon = 0, later = 0;
    IdleSinks* sinks = nullptr;
    FrameSink* forgets = nullptr;
    bool again = false;
};

struct IdleSinksTest : testing::Test {
    void serve() { sinks.serve(reinterpret_cast<Ring&>(ring)); }

    IdleSinks sinks;
    Waits a, b;

  private:
    alignas(Ring) std::byte ring[sizeof(Ring)];  // nobody looks into it
};

TEST_F(IdleSinksTest, EachWaitIsItsOwn) {
    sinks.set_waits(kNow, kNever);
    EXPECT_TRUE(sinks.empty());
    sinks.add(&a, Idle::later);
    sinks.add(&b, Idle::later);
    sinks.add(&a, Idle::soon);
    serve();
    EXPECT_EQ(a.soon, 1);
    EXPECT_EQ(a.later + b.later, 0);
    serve();
    EXPECT_EQ(a.soon, 1);
    EXPECT_FALSE(sinks.empty());
}

TEST_F(IdleSinksTest, LaterComes) {
    sinks.set_waits(kNever, kNow);
    sinks.add(&a, Idle::soon);
    sinks.add(&b, Idle::later);
    serve();
    EXPECT_EQ(a.soon, 0);
    EXPECT_EQ(b.later, 1);
}

TEST_F(IdleSinksTest, RemovedIsForgotten) {
    sinks.set_waits(kNow, kNow);
    for (const Idle when : {Idle::soon, Idle::later}) {
        sinks.add(&a, when);
        sinks.add(&b, when);
    }
    sinks.remove(&a);
    serve();
    EXPECT_EQ(a.soon + a.later, 0);
    EXPECT_EQ(b.soon, 1);
    EXPECT_EQ(b.later, 1);
    EXPECT_TRUE(sinks.empty());
}

TEST_F(IdleSinksTest, ManyComeInOrderAndAgain) {
    sinks.set_waits(kNow, kNever);
    std::vector<Waits> many(1000);
    for (int round = 1; round <= 3; round++) {
        for (Waits& w : many) sinks.add(&w, Idle::soon);
        for (Waits& w : many) sinks.add(&w, Idle::later);
        for (std::size_t i = 0; i < many.size(); i += 3) sinks.remove(&many[i]);
        serve();
        for (std::size_t i = 0; i < many.size(); i++) ASSERT_EQ(many[i].soon, i % 3 == 0 ? 0 : round) << i;
    }
    for (Waits& w : many) sinks.remove(&w);
    EXPECT_TRUE(sinks.empty());
}

// Each asks anew while others wait still.
TEST_F(IdleSinksTest, AskingInTurnLosesNobody) {
    sinks.set_waits(kNow, kNever);
    std::vector<Waits> many(7);
    for (Waits& w : many) {
        w.sinks = &sinks;
        w.again = true;
        sinks.add(&w, Idle::soon);
    }
    for (int round = 1; round <= 100; round++) {
        serve();
        for (Waits& w : many) ASSERT_EQ(w.soon, round);
    }
}

// As a connection that ends while it sends.
TEST_F(IdleSinksTest, SinksMayBeRemovedMeanwhile) {
    sinks.set_waits(kNow, kNow);
    a.sinks = &sinks;
    a.forgets = &b;
    for (const Idle when : {Idle::soon, Idle::later}) {
        sinks.add(&a, when);
        sinks.add(&b, when);
    }
    serve();
    EXPECT_EQ(a.soon + a.later, 2);
    EXPECT_EQ(b.soon + b.later, 0);
    EXPECT_TRUE(sinks.empty());
}

TEST_F(IdleSinksTest, WhoAsksAgainIsCalledInTheNextPoll) {
    sinks.set_waits(kNow, kNow);
    a.sinks = &sinks;
    a.again = true;
    sinks.add(&a, Idle::soon);
    serve();
    EXPECT_EQ(a.soon, 1);
    serve();
    EXPECT_EQ(a.soon, 2);
}

TEST_F(IdleSinksTest, AMoveKeepsWhatWasAsked) {
    IdleSinks from;
    from.set_waits(kNever, kNever);
    sinks.set_waits(kNow, kNow);
    from.add(&a, Idle::later);
    from.add(&b, Idle::soon);
    sinks.move(&a, from);
    serve();
    EXPECT_EQ(a.later, 1);
    EXPECT_EQ(a.soon + b.soon, 0);
    from.remove(&b);
    EXPECT_TRUE(from.empty());
}

}  // namespace
