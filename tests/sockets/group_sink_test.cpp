// SPDX-License-Identifier: BSD-2-Clause
// One frame of a group for several sockets: each has it whole, and the buffer goes back with the last one.
#include "libvma/sockets/udp/group_sink.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/ring/ring_hosts.h"

namespace vma::sockets {
namespace {

using namespace ring::ring_hosts;

// A socket's stand-in: holds what it gets, up to a limit.
struct Holder final : GroupReceiver {
    ~Holder() { release_all(); }
    bool deliver_group(ring::RxBuffer* b) noexcept override {
        if (held.size() == limit) return false;
        held.push_back(b);
        return true;
    }
    void release_all() {
        for (ring::RxBuffer* b : held) b->release();
        held.clear();
    }
    std::vector<std::string> payloads() const {
        std::vector<std::string> all;
        for (const ring::RxBuffer* b : held) all.push_back(Sink::read_payload(*b));
        return all;
    }
    std::size_t limit = 1000;
    std::vector<ring::RxBuffer*> held;
};

class GroupSinkTest : public testing::Test {
  protected:
    GroupSinkTest() { b.attach_sink(2000, sink); }
    void receive(std::vector<GroupSink::Entry> entries) {
        b.host.ring->while_quiet([&] { sink.swap(entries); });
    }
    void send(const char* payload) {
        EXPECT_EQ(a.send(b.host, 2000, payload), 0);
        b.host.poll();
    }
    // Buffers that are neither posted nor free.
    std::uint32_t in_use() {
        const ring::BufferCounts c = b.host.ring->buffer_counts();
        return c.rx_total - c.rx_posted - c.rx_free;
    }

    using Counters = std::shared_ptr<stats::GroupCounters>;
    static Counters counters() { return std::make_shared<stats::GroupCounters>(); }
    static void expect_counted(const stats::GroupCounters& c, unsigned frames, unsigned filtered,
                               unsigned dropped, unsigned delivered) {
        EXPECT_EQ(c.frames, frames);
        EXPECT_EQ(c.filtered, filtered);
        EXPECT_EQ(c.dropped, dropped);
        EXPECT_EQ(c.delivered, delivered);
    }

    struct Receiving {
        explicit Receiving(Wire& wire) : host(wire, kB) {}
        void attach_sink(std::uint16_t port, ring::FrameSink& sink) {
            const FlowSpec spec{IPPROTO_UDP, inet_addr(kB), htons(port), 0, 0};
            ASSERT_TRUE(host.ring->attach(spec, &sink, ring::Share::only));
        }
        Host host;
    };
    Wire wire{9};
    Host a{wire, kA};
    Receiving b{wire};
    GroupSink sink;
    Holder x, y, z;
};

TEST_F(GroupSinkTest, AFrameForOneSocketIsHandedOnAsItIs) {
    receive({{&x}});
    send("one");
    ASSERT_EQ(x.held.size(), 1u);
    EXPECT_EQ(x.held[0]->kind, ring::RxBuffer::Kind::ring);
    EXPECT_EQ(in_use(), 1u);
    x.release_all();
    EXPECT_EQ(in_use(), 0u);
}

TEST_F(GroupSinkTest, EachSocketHasTheFrameAndTheLastOneReturnsIt) {
    receive({{&x}, {&y}, {&z}});
    send("for all");
    for (Holder* h : {&x, &y, &z}) {
        EXPECT_EQ(h->payloads(), std::vector<std::string>{"for all"});
        EXPECT_EQ(h->held.at(0)->kind, ring::RxBuffer::Kind::share);
        EXPECT_EQ(h->held.at(0)->frame, x.held.at(0)->frame);
    }
    EXPECT_EQ(in_use(), 1u);
    x.release_all();
    z.release_all();
    EXPECT_EQ(in_use(), 1u);
    y.release_all();
    EXPECT_EQ(in_use(), 0u);
}

TEST_F(GroupSinkTest, AFullSocketLosesItsOwnOnly) {
    x.limit = 1;
    const Counters of_x = counters(), of_y = counters();
    receive({{&x, {}, of_x}, {&y, {}, of_y}});
    send("first");
    send("second");
    EXPECT_EQ(x.payloads(), std::vector<std::string>{"first"});
    EXPECT_EQ(y.payloads(), (std::vector<std::string>{"first", "second"}));
    expect_counted(*of_x, 2, 0, 1, 1);
    expect_counted(*of_y, 2, 0, 0, 2);
    y.limit = 2;
    send("third");
    expect_counted(*of_x, 3, 0, 2, 1);
    expect_counted(*of_y, 3, 0, 1, 2);
    x.release_all();
    y.release_all();
    EXPECT_EQ(in_use(), 0u);
}

TEST_F(GroupSinkTest, SourcesAndPeersAreEachSocketsOwn) {
    const in_addr_t source = inet_addr(kA);
    const Counters of_x = counters(), of_y = counters(), of_z = counters();
    const GroupSenders no_source{0, 0, {true, {source}}};
    receive(
        {{&x, {0, 0, {false, {source}}}, of_x}, {&y, no_source, of_y}, {&z, {source, htons(1), {}}, of_z}});
    send("from a");
    EXPECT_EQ(x.payloads(), std::vector<std::string>{"from a"});
    EXPECT_TRUE(y.held.empty());
    EXPECT_TRUE(z.held.empty());
    expect_counted(*of_x, 1, 0, 0, 1);
    expect_counted(*of_z, 1, 1, 0, 0);
    receive({{&y, no_source, of_y}});
    send("for nobody");
    expect_counted(*of_y, 2, 2, 0, 0);
    // One that receives without a membership (IP_MULTICAST_ALL) counts nothing.
    receive({{&y, no_source}});
    send("for nobody");
    expect_counted(*of_y, 2, 2, 0, 0);
    x.release_all();
    EXPECT_EQ(in_use(), 0u);
}

TEST_F(GroupSinkTest, WhatIsHeldForLongIsCopiedAndTheShareEnds) {
    struct Copier final : GroupReceiver {
        bool deliver_group(ring::RxBuffer* b) noexcept override {
            copy = b->ring->swap_for_copy(b, 0);
            return copy != nullptr;
        }
        ring::RxBuffer* copy = nullptr;
    } copier;
    receive({{&copier}, {&x}});
    send("kept");
    ASSERT_NE(copier.copy, nullptr);
    x.release_all();
    EXPECT_EQ(in_use(), 0u);
    EXPECT_EQ(Sink::read_payload(*copier.copy), "kept");
    copier.copy->release();
}

TEST_F(GroupSinkTest, ThousandsOfSharesAtATime) {
    std::vector<Holder> many(100);
    std::vector<GroupSink::Entry> entries;
    for (Holder& h : many) entries.push_back({&h});
    receive(std::move(entries));
    for (int i = 0; i < 30; i++) send("x");
    for (Holder& h : many) EXPECT_EQ(h.held.size(), 30u);
    EXPECT_EQ(in_use(), 30u);
    for (Holder& h : many) h.release_all();
    EXPECT_EQ(in_use(), 0u);
}

}  // namespace
}  // namespace vma::sockets
