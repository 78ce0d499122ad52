// SPDX-License-Identifier: BSD-2-Clause
// What a ring does with the abilities of hardware: checksums, flow tags, arrival times, inline requests,
// events, moderation; and with its errors. TSO is in ring_tso_test.cpp. The wire's device offers each of
// them, and is stricter than hardware.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "ring_hosts.h"
#include "tests/support/wire/segments.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;
using std::chrono::milliseconds;

class RingDevice : public testing::Test {
  protected:
    Wire wire{7};
};

bool readable(Ring& ring, int limit_ms = 0) {
    pollfd p{ring.channel_fd(), POLLIN, 0};
    return ::poll(&p, 1, limit_ms) == 1;
}

// Lets the internal thread do what it was asked to.
template <class Ready>
bool soon(Ready&& ready) {
    for (int i = 0; i < 5000 && !ready(); i++) std::this_thread::sleep_for(milliseconds(1));
    return ready();
}

// ---- checksums ----

TEST_F(RingDevice, FramesThatTheDeviceHasSummedArrive) {
    Host a(wire, kA), b(wire, kB, {.rx_checksum = true});
    Sink sink;
    b.attach(2000, sink);
    EXPECT_EQ(a.send(b, 2000, "right"), 0);
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"right"});
}

TEST_F(RingDevice, WithoutTheDevicesWordTheSumIsChecked) {
    Host a(wire, kA), b(wire, kB, {.rx_checksum = true});
    Sink sink;
    b.attach(2000, sink);
    wire.set_hook([](const WireDevice&, std::vector<Frame>& frames) { frames[0].back() ^= 1; });
    EXPECT_EQ(a.send(b, 2000, "wrong"), 0);
    b.poll();
    EXPECT_TRUE(sink.payloads.empty());
    EXPECT_EQ(b.bad(Drop::bad_l4_checksum), 1u);
}

TEST_F(RingDevice, ADeviceThatSendsAtOnceSumsShortFramesToo) {
    for (const LazyTx lazy : {LazyTx::off, LazyTx::fake_clock}) {
        Wire line(3);
        std::vector<Frame> seen;
        Host a(line, kA, {.tx_checksum = TxChecksum::partial, .lazy_tx = lazy}), b(line, kB);
        line.set_hook([&](const WireDevice&, std::vector<Frame>& frames) { seen.push_back(frames[0]); });
        EXPECT_EQ(a.send(b, 2000, "short"), 0);
        a.ring->flush();
        ASSERT_EQ(seen.size(), 1u);
        EXPECT_EQ(udp_sum_right(seen[0]),
                  lazy != LazyTx::off);  // where the device was asked to, this one leaves the partial sum
    }
}

// ---- silence ----

TEST_F(RingDevice, ASendThatNeverCompletesIsNoticed) {
    Host a(wire, kA, {.events = true}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 100; i++) EXPECT_EQ(a.ring->silent(true), nullptr);
    a.device->hold_completions(true);
    for (int i = 0; i < 40; i++) EXPECT_EQ(a.send(b, 2000, "x"), 0);
    EXPECT_EQ(a.ring->silent(true), nullptr);
    const char* why = nullptr;
    for (int i = 0; i < 5 && why == nullptr; i++) why = a.ring->silent(true);
    EXPECT_NE(why, nullptr);
    a.device->hold_completions(false);
    for (int i = 0; i < 100; i++) EXPECT_EQ(a.ring->silent(true), nullptr);
}

// ---- flow tags ----

TEST_F(RingDevice, TagsLeadToTheSockets) {
    Host a(wire, kA), b(wire, kB, {.flow_tags = 100});
    std::vector<std::unique_ptr<Sink>> sinks;
    for (std::uint16_t i = 0; i < 150; i++) {  // more than there are tags
        sinks.push_back(std::make_unique<Sink>());
        b.attach(static_cast<std::uint16_t>(2000 + i), *sinks.back());
    }
    for (int round = 0; round < 3; round++)
        for (std::uint16_t i = 0; i < 150; i++)
            EXPECT_EQ(a.send(b, static_cast<std::uint16_t>(2000 + i), std::to_string(i)), 0);
    b.poll();
    for (std::uint16_t i = 0; i < 150; i++)
        EXPECT_EQ(sinks[i]->payloads, std::vector<std::string>(3, std::to_string(i))) << i;
}

TEST_F(RingDevice, ATagThatHasPassedToAnotherRuleMisleadsNobody) {
    Host a(wire, kA), b(wire, kB, {.flow_tags = 1});
    Sink first, second;
    b.attach(2000, first);
    EXPECT_EQ(a.send(b, 2000, "late"), 0);
    b.ring->detach_soon(b.flow(2000), &first);  // the frame stays in the queue, with the tag
    b.attach(2001, second);
    b.poll();
    EXPECT_TRUE(first.payloads.empty());
    EXPECT_TRUE(second.payloads.empty());
    EXPECT_EQ(b.ring->counters().rx_no_socket, 1u);
    EXPECT_EQ(a.send(b, 2001, "own"), 0);
    b.poll();
    EXPECT_EQ(second.payloads, std::vector<std::string>{"own"});
}

TEST_F(RingDevice, AConnectionsFramesWithTheListenersTagAreTheConnections) {
    Host a(wire, kA), b(wire, kB, {.flow_tags = 8});
    Sink all, one;
    b.attach(2000, all);
    EXPECT_EQ(a.send(b, 2000, "1"), 0);
    EXPECT_TRUE(b.ring->attach(b.flow(2000, kA, 1000), &one, Share::only));
    EXPECT_EQ(a.send(b, 2000, "2"), 0);
    b.poll();
    EXPECT_TRUE(all.payloads.empty());
    EXPECT_EQ(one.payloads, (std::vector<std::string>{"1", "2"}));
    b.ring->detach(b.flow(2000, kA, 1000), &one);
    EXPECT_EQ(a.send(b, 2000, "3"), 0);
    b.poll();
    EXPECT_EQ(all.payloads, std::vector<std::string>{"3"});
}

// ---- arrival times ----

TEST_F(RingDevice, ArrivalTimesAreTheDevices) {
    for (const bool system : {true, false}) {
        Wire line(5);
        Host a(line, kA),
            b(line, kB, {.arrival_times = true, .arrival_realtime = system, .arrival_base_ns = 5'000});
        Sink sink;
        b.attach(2000, sink);
        line.advance(7);
        EXPECT_EQ(a.send(b, 2000, "nobody asks"), 0);
        b.poll();
        EXPECT_EQ(sink.last.arrived, clock::WallTime());
        Ring::want_timestamps(true);
        EXPECT_TRUE(verbs::Device::arrival_times_wanted());
        EXPECT_EQ(a.send(b, 2000, "somebody asks"), 0);
        b.poll();
        Ring::want_timestamps(false);
        EXPECT_EQ(sink.last.arrived_at_device, clock::DeviceTime(clock::Nsec(5'007)));
        if (system)
            EXPECT_EQ(sink.last.arrived, clock::WallTime(clock::Nsec(5'007)));
        else
            EXPECT_GT(sink.last.arrived,
                      clock::WallTime(std::chrono::days(10'000)));  // the system's clock: many years
    }
}

TEST_F(RingDevice, WithoutTheDevicesTimeThereIsTheSystems) {
    Host a(wire, kA), b(wire, kB, {.arrival_realtime = true});
    Sink sink;
    b.attach(2000, sink);
    Ring::want_timestamps(true);
    EXPECT_EQ(a.send(b, 2000, "x"), 0);
    b.poll();
    Ring::want_timestamps(false);
    EXPECT_EQ(sink.last.arrived_at_device, clock::DeviceTime());
    EXPECT_GT(sink.last.arrived, clock::WallTime(std::chrono::days(10'000)));
}

// ---- inline ----

TEST_F(RingDevice, ShortFramesGoInlineAndKeepNoBuffer) {
    Host a(wire, kA, {.max_send_wr = 128, .max_inline = 100}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    const std::string fits(100 - 42, 'i'), too_long(100 - 41, 'l');
    for (int i = 0; i < 1000; i++) {
        EXPECT_EQ(a.send(b, 2000, fits), 0);
        EXPECT_EQ(a.send(b, 2000, i % 3 == 0 ? too_long : fits), 0);
        b.poll();
    }
    EXPECT_EQ(a.device->inline_requests(), 1000u + 666u);
    ASSERT_EQ(sink.payloads.size(), 2000u);
    EXPECT_EQ(sink.payloads[0], fits);
    EXPECT_EQ(sink.payloads[1], too_long);
    EXPECT_EQ(a.ring->counters().tx_no_buffer, 0u);
    a.expect_no_leak();
}

TEST_F(RingDevice, InlineRequestsDoNotOverrunTheQueue) {
    Host a(wire, kA, {.max_send_wr = 128, .max_inline = 100}), b(wire, kB);
    a.device->hold_completions(true);
    int sent = 0;
    while (sent < 1000 && a.send(b, 2000, "x") == 0) sent++;
    EXPECT_EQ(sent, 128);
    EXPECT_EQ(a.ring->counters().tx_no_buffer, 1u);
    EXPECT_EQ(a.ring->buffer_counts().tx_free, a.ring->buffer_counts().tx_total);
    a.device->hold_completions(false);
    EXPECT_EQ(a.send(b, 2000, "x"), 0);
    EXPECT_EQ(a.device->violations(), 0u);
}

// ---- events ----

TEST_F(RingDevice, AnEventWakesOnce) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    EXPECT_FALSE(readable(*b.ring));
    b.ring->arm();
    EXPECT_EQ(b.ring->poll(), 0u);
    EXPECT_EQ(a.send(b, 2000, "1"), 0);
    EXPECT_EQ(a.send(b, 2000, "2"), 0);
    EXPECT_TRUE(readable(*b.ring));
    EXPECT_EQ(b.ring->woken(), 2u);
    EXPECT_FALSE(readable(*b.ring));  // the event was read: no busy loop
    EXPECT_EQ(sink.payloads.size(), 2u);
}

TEST_F(RingDevice, WhatCameBeforeArmingIsNotSleptThrough) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    EXPECT_EQ(a.send(b, 2000, "before"), 0);
    b.ring->arm();
    EXPECT_EQ(sink.payloads.size(), 1u);
    EXPECT_FALSE(readable(*b.ring));
}

TEST_F(RingDevice, WhoReadsAnEventLeavesTheOthersArmed) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    b.ring->arm();  // one thread
    b.ring->arm();  // and another one: one event for both
    EXPECT_EQ(a.send(b, 2000, "1"), 0);
    EXPECT_EQ(b.ring->woken(), 1u);  // the first one; the other goes on sleeping
    EXPECT_EQ(a.send(b, 2000, "2"), 0);
    EXPECT_TRUE(readable(*b.ring));
    EXPECT_EQ(b.ring->woken(), 1u);
}

TEST_F(RingDevice, AnEventWithoutACompletionWakesForNothingOnce) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    b.ring->arm();
    b.device->spurious_event();
    EXPECT_TRUE(readable(*b.ring));
    EXPECT_EQ(b.ring->woken(), 0u);
    EXPECT_FALSE(readable(*b.ring));
    EXPECT_EQ(a.send(b, 2000, "1"), 0);
    EXPECT_TRUE(readable(*b.ring));
    b.ring->woken();
    EXPECT_EQ(sink.payloads.size(), 1u);
}

TEST_F(RingDevice, ACompletionWithoutItsEventIsFoundByTheCheck) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    b.ring->arm();
    b.device->lose_events(1);
    EXPECT_EQ(a.send(b, 2000, "silent"), 0);
    EXPECT_FALSE(readable(*b.ring));
    b.ring->check();  // polled since the check before: that may have been enough
    b.ring->check();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"silent"});
    EXPECT_EQ(a.send(b, 2000, "heard"), 0);
    EXPECT_TRUE(readable(*b.ring));
}

// Several threads sleep on one channel, for a socket each; a sender sends to one at a time and waits until it
// has it.
TEST_F(RingDevice, ThreadsThatSleepOnOneChannelAllWake) {
    constexpr int kThreads = 3, kRounds = 300;
    Host a(wire, kA), b(wire, kB, {.events = true});
    struct Counting final : FrameSink {
        bool deliver(RxBuffer* buffer) noexcept override {
            buffer->release();
            seen++;
            return true;
        }
        std::atomic<int> seen{0};
    };
    Counting sinks[kThreads];
    for (std::uint16_t i = 0; i < kThreads; i++)
        EXPECT_TRUE(b.ring->attach(b.flow(static_cast<std::uint16_t>(2000 + i)), &sinks[i], Share::latest));
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> wakeups{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
        threads.emplace_back([&] {
            while (!over) {
                b.ring->arm();
                b.ring->poll();
                if (readable(*b.ring, 200)) wakeups++, b.ring->woken();
            }
        });
    int late = 0;
    for (int n = 0; n < kRounds; n++) {
        const int to = n % kThreads, before = sinks[to].seen;
        EXPECT_EQ(a.send(b, static_cast<std::uint16_t>(2000 + to), "x"), 0);
        if (!soon([&] { return sinks[to].seen > before; })) late++;
    }
    over = true;
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(late, 0);
    EXPECT_EQ(sinks[0].seen + sinks[1].seen + sinks[2].seen, kRounds);
    EXPECT_LE(wakeups, std::uint64_t{kRounds} * kThreads * 3);
}

// ---- moderation ----

TEST_F(RingDevice, TheDeviceModeratesWhereItCan) {
    ModerationConfig fixed;
    fixed.enabled = true;
    fixed.count = 12;
    fixed.period = clock::Usec(34);
    Host a(wire, kA, {.moderation = true}, {.huge_pages = false, .moderation = fixed});
    EXPECT_EQ(a.device->moderation(), (std::pair{12u, 34u}));
    Host b(wire, kB, {}, {.huge_pages = false, .moderation = fixed});
    EXPECT_EQ(b.device->moderation(), (std::pair{0u, 0u}));
}

TEST_F(RingDevice, AdaptiveModerationFollowsTheTraffic) {
    ModerationConfig config;
    config.enabled = true;
    config.max_count = 64;
    config.max_period = clock::Usec(1000);
    config.interval = clock::Msec(1);
    config.rate = 1;
    Host a(wire, kA),
        b(wire, kB, {.events = true, .moderation = true}, {.huge_pages = false, .moderation = config});
    Sink sink;
    b.attach(2000, sink);
    const bool changed = soon([&] {
        b.ring->arm();
        for (int i = 0; i < 20; i++) EXPECT_EQ(a.send(b, 2000, "x"), 0);
        b.ring->woken();
        return b.device->moderation() != std::pair{0u, 0u};
    });
    EXPECT_TRUE(changed);
}

// ---- errors ----

TEST_F(RingDevice, AFailedSendIsRepaired) {
    Host a(wire, kA), b(wire, kB, {});
    Sink sink, back;
    b.attach(2000, sink);
    a.attach(1000, back);
    const BufferCounts before = a.ring->buffer_counts();
    a.device->fail_next_send();
    int sent = 0;
    for (; sent < 300 && a.ring->counters().recoveries == 0; sent++) a.send(b, 2000, "lost, or not");
    const RingCounters c = a.ring->counters();
    EXPECT_EQ(c.recoveries, 1u);
    EXPECT_EQ(c.tx_error, 1u);
    EXPECT_GE(c.tx_lost, 1u);
    EXPECT_FALSE(a.ring->failed());
    EXPECT_EQ(a.ring->buffer_counts().tx_free, before.tx_free);
    EXPECT_EQ(a.ring->buffer_counts().rx_posted, before.rx_posted);
    b.poll();
    sink.payloads.clear();
    EXPECT_EQ(a.send(b, 2000, "after"), 0);
    EXPECT_EQ(b.send(a, 1000, "and back"), 0);
    a.poll();
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"after"});
    EXPECT_EQ(back.payloads, std::vector<std::string>{"and back"});
    a.expect_no_leak();
}

TEST_F(RingDevice, AFailedReceiveIsRepairedAndWhatCameBeforeIsKept) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink(Sink::hold);
    b.attach(2000, sink);
    EXPECT_EQ(a.send(b, 2000, "before"), 0);
    b.device->fail_next_receive();
    EXPECT_EQ(a.send(b, 2000, "broken"), 0);
    EXPECT_EQ(a.send(b, 2000, "while it is stopped"), 0);
    b.poll();
    const RingCounters c = b.ring->counters();
    EXPECT_EQ(c.recoveries, 1u);
    EXPECT_EQ(c.rx_error, 1u);
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"before"});
    EXPECT_EQ(a.send(b, 2000, "after"), 0);
    b.poll();
    EXPECT_EQ(sink.payloads, (std::vector<std::string>{"before", "after"}));
    b.expect_no_leak(2);
    sink.release_all();
    b.expect_no_leak();
}

// A datagram's frame, cut behind its headers, with empty pieces around.
std::vector<Frame> in_pieces(Wire& wire, Host& from, Host& to, const std::string& payload) {
    Frame whole;
    wire.set_hook(
        [&](const WireDevice&, std::vector<Frame>& frames) { whole = std::exchange(frames, {}).front(); });
    EXPECT_EQ(from.send(to, 2000, payload), 0);
    wire.set_hook({});
    return {{}, Frame(whole.begin(), whole.begin() + 42), {}, Frame(whole.begin() + 42, whole.end()), {}};
}

// Recovery once took buffers with nothing in them for free ones, though a sink held the frame they belonged
// to.
TEST_F(RingDevice, EmptyPiecesOfAHeldFrameStayInTheAccount) {
    Host a(wire, kA), b(wire, kB);
    Sink sink(Sink::hold);
    b.attach(2000, sink);
    b.device->receive_pieces(in_pieces(wire, a, b, "in pieces"));
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"in pieces"});
    b.device->fail_next_receive();
    EXPECT_EQ(a.send(b, 2000, "broken"), 0);
    b.poll();
    EXPECT_EQ(b.ring->counters().recoveries, 1u);
    const BufferCounts c = b.ring->buffer_counts();
    EXPECT_LT(c.rx_posted + c.rx_free, c.rx_total) << "the sink holds some";
    sink.release_all();
    b.expect_no_leak();
}

TEST_F(RingDevice, AFrameWithoutAnEndDoesNotTakeAllBuffers) {
    Host a(wire, kA), b(wire, kB, {.max_recv_wr = 256});
    Sink sink;
    b.attach(2000, sink);
    for (int i = 0; i < 1000; i++) {
        b.device->receive_pieces({Frame(100, 'x')}, false);
        b.ring->poll();
    }
    b.expect_no_leak();
    b.device->receive_pieces({Frame(100, 'x')});  // its end
    EXPECT_EQ(a.send(b, 2000, "next"), 0);
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"next"});
}

// The pieces before the error and those after it are no frame.
TEST_F(RingDevice, AnErrorWithinAFrameLosesAllOfIt) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    const std::vector<Frame> pieces = in_pieces(wire, a, b, "in pieces");
    b.device->receive_pieces({pieces[1]}, false);
    b.device->fail_next_receive();
    b.device->receive_unsteered(pieces[3]);
    b.poll();
    EXPECT_EQ(b.ring->counters().recoveries, 1u);
    b.expect_no_leak();
    EXPECT_EQ(a.send(b, 2000, "next"), 0);
    b.poll();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"next"});
}

TEST_F(RingDevice, AThreadAsleepDuringARecoveryGoesOnBeingWoken) {
    Host a(wire, kA), b(wire, kB, {.events = true});
    Sink sink;
    b.attach(2000, sink);
    b.ring->arm();
    b.device->fail_next_receive();
    EXPECT_EQ(a.send(b, 2000, "broken"), 0);
    b.ring->poll();  // another thread recovers
    EXPECT_EQ(b.ring->counters().recoveries, 1u);
    EXPECT_EQ(a.send(b, 2000, "after"), 0);
    EXPECT_TRUE(readable(*b.ring));
    b.ring->woken();
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"after"});
}

TEST_F(RingDevice, ErrorsWithoutEndAreAFailure) {
    std::atomic<int> told{0};
    RingConfig config{.huge_pages = false};
    config.on_failure = [&](Ring&) { told++; };
    Host a(wire, kA, {}, config), b(wire, kB);
    for (int round = 0; round < 20 && !a.ring->failed(); round++) {
        a.device->fail_next_send();
        for (int i = 0; i < 100; i++) a.send(b, 2000, "x");
    }
    EXPECT_TRUE(a.ring->failed());
    EXPECT_EQ(a.ring->counters().recoveries, 4u);
    EXPECT_TRUE(soon([&] { return told == 1; }));
    Sink sink;
    EXPECT_FALSE(a.ring->attach(a.flow(1000), &sink, Share::latest));
    a.poll();
    a.ring->arm();
    EXPECT_EQ(a.device->recoveries(), 4u);
}

// The last error stops the receive side alone, so the device still reads what was posted for sending.
TEST_F(RingDevice, ADeviceThatIsGivenUpIsStoppedBeforeItsSendBuffersAreFree) {
    Host a(wire, kA), b(wire, kB);
    Sink sink;
    a.attach(1000, sink);
    auto fail_receive = [&](bool whole_qp) {
        a.device->fail_next_receive(whole_qp);
        EXPECT_EQ(b.send(a, 1000, "x"), 0);
        a.poll();
    };
    for (int i = 0; i < 4; i++) fail_receive(true);
    EXPECT_EQ(a.ring->counters().recoveries, 4u);
    a.device->hold_completions(true);
    for (int i = 0; i < 10; i++) EXPECT_EQ(a.send(b, 2000, "under way"), 0);
    fail_receive(false);
    EXPECT_TRUE(a.ring->failed());
    for (int i = 0; i < 20; i++) a.send(b, 2000, "later");
    EXPECT_EQ(a.device->violations(), 0u) << "a buffer that the device had was written";
    a.ring->detach(a.flow(1000), &sink);
}

TEST_F(RingDevice, ARecoveryThatFailsIsAFailure) {
    std::atomic<int> told{0};
    RingConfig config{.huge_pages = false};
    config.on_failure = [&](Ring&) { told++; };
    Host a(wire, kA), b(wire, kB, {}, config);
    Sink sink;
    b.attach(2000, sink);
    b.device->refuse_recovery(true);
    b.device->fail_next_receive();
    EXPECT_EQ(a.send(b, 2000, "x"), 0);
    b.poll();
    EXPECT_TRUE(b.ring->failed());
    EXPECT_TRUE(soon([&] { return told == 1; }));
    b.ring->detach(b.flow(2000), &sink);
}

TEST_F(RingDevice, ADeviceThatDiesFailsTheRing) {
    std::atomic<int> told{0};
    RingConfig config{.huge_pages = false};
    config.on_failure = [&](Ring&) { told++; };
    Host a(wire, kA, {}, config), b(wire, kB);
    Sink sink;
    a.attach(1000, sink);
    a.device->die();
    EXPECT_TRUE(a.ring->failed());
    EXPECT_TRUE(soon([&] { return told == 1; }));
    EXPECT_NE(a.send(b, 2000, "x"), 0);
    a.poll();
    a.ring->detach(a.flow(1000), &sink);
    EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace vma::ring
