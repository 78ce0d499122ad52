// SPDX-License-Identifier: BSD-2-Clause
// The parts of loss recovery that take values and return decisions: RACK, proportional rate reduction, the
// answer of a tail loss probe, and the use of the window.
#include <gtest/gtest.h>

#include <vector>

#include "libvma/tcp/recovery/cwnd_usage.h"
#include "libvma/tcp/recovery/prr.h"
#include "libvma/tcp/recovery/rack.h"
#include "libvma/tcp/recovery/tail_probe.h"

namespace {

using vma::tcp::CwndUsage;
using vma::tcp::Nsec;
using vma::tcp::Prr;
using vma::tcp::Rack;
using vma::tcp::TailProbe;
using vma::tcp::Time;
using vma::tcp::Usec;

constexpr std::uint32_t kMss = 1000;
constexpr Usec kRtt{20'000};

// ---- RACK ----

TEST(TcpRack, WhatWasSentBeforeSomethingThatArrivedIsOvertaken) {
    Rack r;
    EXPECT_FALSE(r.overtaken(Usec(1), 1000)) << "nothing has arrived";
    // Times and numbers that wrap.
    const Usec at(0xfffffff0u);
    r.delivered(at, 500, false, at + kRtt, kRtt);
    EXPECT_TRUE(r.overtaken(at - Usec(1), 9000));
    EXPECT_TRUE(r.overtaken(at, 0xffffff00u)) << "at the same time, but before it in sequence";
    EXPECT_FALSE(r.overtaken(at, 500));
    EXPECT_FALSE(r.overtaken(at, 501));
    EXPECT_FALSE(r.overtaken(at + Usec(20), 100)) << "later, though the clock wrapped";
    r.delivered(at - Usec(5), 400, false, at + kRtt, kRtt);
    EXPECT_TRUE(r.overtaken(at - Usec(1), 10)) << "an older one takes nothing back";
    r.forget();
    EXPECT_FALSE(r.overtaken(at - Usec(1), 10));
}

TEST(TcpRack, LostAfterARoundTripAndTheWindow) {
    Rack r;
    r.delivered(Usec(1000), 2000, false, Usec(21'000), kRtt);
    EXPECT_TRUE(r.take_advanced());
    EXPECT_FALSE(r.take_advanced());
    EXPECT_EQ(r.remaining(Usec(900), Usec(0), Usec(21'000)), -100);
    EXPECT_EQ(r.remaining(Usec(900), Usec(5000), Usec(21'000)), 4900);
    EXPECT_EQ(r.longest(Usec(5000), Usec(21'000)), Usec(5000));
}

TEST(TcpRack, AnAckOfARetransmissionThatComesTooSoonIsOfTheOriginal) {
    Rack r;
    r.delivered(Usec(1000), 2000, true, Usec(1000 + 19'000), kRtt);
    EXPECT_FALSE(r.take_advanced());
    EXPECT_FALSE(r.overtaken(Usec(0), 1));
    r.delivered(Usec(1000), 2000, true, Usec(1000 + 20'000), kRtt);
    EXPECT_TRUE(r.take_advanced());
    EXPECT_TRUE(r.overtaken(Usec(0), 1));
}

TEST(TcpRack, TheWindow) {
    Rack r;
    EXPECT_EQ(r.window(kRtt, kRtt, false, 0), kRtt / 4);
    EXPECT_EQ(r.window(kRtt, kRtt, false, 2), kRtt / 4);
    EXPECT_EQ(r.window(kRtt, kRtt, false, 3), Usec(0)) << "as many as three duplicate ACKs";
    EXPECT_EQ(r.window(kRtt, kRtt, true, 0), Usec(0)) << "in a recovery";
    EXPECT_EQ(r.window(kRtt, Usec(100), false, 0), Usec(100)) << "at most a smoothed round trip";
    EXPECT_EQ(r.window(Usec::max(), kRtt, false, 0), kRtt);
    r.reordered(2 * kMss, kMss);
    EXPECT_EQ(r.reordering(), 3u);
    EXPECT_EQ(r.window(kRtt, kRtt, true, 100), kRtt / 4) << "once reordering was seen";
    r.reordered(7 * kMss + 1, kMss);
    EXPECT_EQ(r.reordering(), 8u);
    r.reordered(1u << 30, kMss);
    EXPECT_EQ(r.reordering(), Rack::kMostReordering);
    r.timed_out(2);
    EXPECT_EQ(r.reordering(), Rack::kMostReordering);
    r.timed_out(3);
    EXPECT_EQ(r.reordering(), 3u);
}

TEST(TcpRack, DuplicatesWidenTheWindowOnceForEachRoundTrip) {
    Rack r;
    r.duplicate();
    r.adapt(Usec(100));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 4) << "no reordering was seen";
    r.reordered(kMss, kMss);
    r.delivered(Usec(1000), 1000, false, Usec(21'000), kRtt);
    r.duplicate();
    r.adapt(Usec(21'000));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 2);
    r.delivered(Usec(20'000), 2000, false, Usec(40'000), kRtt);
    r.duplicate();
    r.adapt(Usec(40'000));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 2) << "sent before the change";
    r.delivered(Usec(22'000), 3000, false, Usec(42'000), kRtt);
    r.duplicate();
    r.adapt(Usec(42'000));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 4 * 3);
    for (int i = 0; i < 15; i++) r.recovered();
    r.adapt(Usec(50'000));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 4 * 3);
    r.recovered();
    r.adapt(Usec(51'000));
    EXPECT_EQ(r.window(kRtt, 100 * kRtt, false, 0), kRtt / 4) << "after sixteen recoveries";
}

// ---- PRR ----

// One segment of a window of twenty is lost: of the nineteen ACKs each lets 0.7 segments leave.
TEST(TcpPrr, SendsInProportion) {
    Prr prr;
    prr.begin(20 * kMss, 14 * kMss);
    std::uint32_t flight = 16 * kMss, cwnd = 0, sent = 0;
    cwnd = prr.on_ack(3 * kMss, flight, false, kMss);
    for (int i = 0; i < 17; i++) {
        while (flight + kMss <= cwnd) {
            flight += kMss;
            sent++;
            prr.sent(kMss);
        }
        if (i == 16) break;
        flight -= kMss;
        cwnd = prr.on_ack(kMss, flight, false, kMss);
    }
    EXPECT_EQ(sent, 14u) << "19 * 14 / 20, rounded up";
    EXPECT_EQ(flight, 14 * kMss) << "the threshold";
}

TEST(TcpPrr, TheFirstRetransmissionLeavesAtOnce) {
    Prr prr;
    prr.begin(10 * kMss, 2 * kMss);
    EXPECT_EQ(prr.on_ack(0, 9 * kMss, false, kMss), 10 * kMss);
    prr.sent(kMss);
    EXPECT_EQ(prr.on_ack(0, 9 * kMss, false, kMss), 9 * kMss);
}

// Losses have emptied the path: it fills again to the threshold, faster while nothing more is lost.
TEST(TcpPrr, GrowsBelowTheThreshold) {
    for (const bool progress : {false, true}) {
        Prr prr;
        prr.begin(20 * kMss, 10 * kMss);
        EXPECT_EQ(prr.on_ack(kMss, 2 * kMss, progress, kMss), (progress ? 4 : 3) * kMss);
        prr.sent(kMss);
        EXPECT_EQ(prr.on_ack(kMss, 2 * kMss, progress, kMss), (progress ? 4 : 3) * kMss);
        EXPECT_EQ(prr.on_ack(50 * kMss, 2 * kMss, progress, kMss), 10 * kMss) << "never beyond";
        EXPECT_EQ(prr.on_ack(kMss, 10 * kMss, progress, kMss), 10 * kMss);
    }
}

TEST(TcpPrr, AnyNumbersGiveAWindow) {
    Prr prr;
    prr.begin(0, 0);
    EXPECT_GE(prr.on_ack(UINT32_MAX, UINT32_MAX, true, 65535), UINT32_MAX - 1);
    prr.begin(1u << 30, 1u << 29);
    for (int i = 0; i < 100; i++) prr.sent(1u << 30);
    EXPECT_EQ(prr.on_ack(1, 5 * kMss, true, kMss), 5 * kMss + 1 + kMss);
    EXPECT_EQ(prr.on_ack(1, 1u << 30, true, kMss), 1u << 30) << "nothing leaves, nothing is taken back";
}

// ---- the tail loss probe ----

TEST(TcpTailProbe, WhatItsAnswerSays) {
    TailProbe p;
    EXPECT_FALSE(p.on_ack({.ack = 5000}));
    // New data: it arrived.
    p.sent(5000, false);
    EXPECT_FALSE(p.on_ack({.ack = 4000}));
    EXPECT_TRUE(p.under_way());
    EXPECT_FALSE(p.on_ack({.ack = 5000}));
    EXPECT_FALSE(p.under_way());
    // The last segment, which had arrived: a duplicate is reported.
    p.sent(5000, true);
    EXPECT_TRUE(p.is_duplicate(5000));
    EXPECT_FALSE(p.is_duplicate(4000));
    EXPECT_FALSE(p.on_ack({.ack = 5000, .duplicate_reported = true}));
    EXPECT_FALSE(p.under_way());
    // Or a plain duplicate ACK comes, after the ACK of the original.
    p.sent(5000, true);
    EXPECT_FALSE(p.on_ack({.ack = 5000}));
    EXPECT_TRUE(p.under_way()) << "not known yet";
    EXPECT_FALSE(p.on_ack({.ack = 5000, .plain_duplicate = true}));
    EXPECT_FALSE(p.under_way());
    // The last segment, which was lost: no second ACK of it comes.
    p.sent(5000, true);
    EXPECT_FALSE(p.on_ack({.ack = 5000}));
    EXPECT_TRUE(p.on_ack({.ack = 6000})) << "the window has to shrink";
    EXPECT_FALSE(p.on_ack({.ack = 7000}));
}

// ---- the use of the window ----

TEST(TcpCwndUsage, AWindowThatWasFullWithinAWindowOfDataMayGrow) {
    CwndUsage u;
    EXPECT_FALSE(u.limited(10 * kMss, false));
    u.sent(true, 10 * kMss, 0, 10 * kMss);
    EXPECT_TRUE(u.limited(10 * kMss, false));
    u.sent(false, 2 * kMss, 5 * kMss, 12 * kMss);
    EXPECT_TRUE(u.limited(10 * kMss, false)) << "what was sent then is not acknowledged yet";
    u.sent(false, 2 * kMss, 10 * kMss, 12 * kMss);
    EXPECT_FALSE(u.limited(10 * kMss, false));
    u.sent(false, 6 * kMss, 10 * kMss, 16 * kMss);
    EXPECT_TRUE(u.limited(10 * kMss, true)) << "half is enough in slow start";
    EXPECT_FALSE(u.limited(13 * kMss, true));
}

TEST(TcpCwndUsage, AWindowThatIsNeverFullShrinks) {
    CwndUsage u;
    const Time start(Nsec(1'000'000'000));
    const Nsec rto(200'000'000);
    u.full(start);
    EXPECT_FALSE(u.starves(20 * kMss, start + rto / 2, rto));
    EXPECT_TRUE(u.starves(5 * kMss, start + rto, rto));
    EXPECT_EQ(u.less(100 * kMss, 10 * kMss, start + rto), 60 * kMss);
    EXPECT_FALSE(u.starves(5 * kMss, start + rto, rto)) << "counted anew";
    EXPECT_EQ(u.less(100 * kMss, 10 * kMss, start + rto), 55 * kMss) << "ten segments are not too many";
    EXPECT_EQ(u.less(8 * kMss, 10 * kMss, start + rto), 8 * kMss);
}

}  // namespace
