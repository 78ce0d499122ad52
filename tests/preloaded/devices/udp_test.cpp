// SPDX-License-Identifier: BSD-2-Clause
// UDP on the library over wires of different kinds: that traffic is offloaded at all, several receive queues,
// jumbo frames, and that lazily sent datagrams leave without a further call.
#include "tests/preloaded/udp_fixture.h"

namespace {

using namespace testing_support;

TEST_F(Udp, LibraryToKernelPeer) {
    start({}, with_library(), {});
    expect_offloaded_conversation(100);
    EXPECT_FALSE(hosts->offloaded(Host::b));
}

TEST_F(Udp, LibraryOnBothSides) {
    start({}, with_library(), with_library());
    expect_offloaded_conversation(100);
    EXPECT_TRUE(hosts->offloaded(Host::b));
}

TEST_F(Udp, JumboFrames) {
    for (const char* mode : {"skb", "drv"}) {
        SCOPED_TRACE(mode);
        start({.mtu = 9000}, with_library({std::string("VMA_XDP_MODE=") + mode}),
              with_library({std::string("VMA_XDP_MODE=") + mode}));
        expect_offloaded_conversation(100);
        expect_conversation(*a, *b, "198.18.1.2", 50, 3500);
        expect_conversation(*a, *b, "198.18.1.2", 50, 4000);
        expect_conversation(*a, *b, "198.18.1.2", 50, 8972);
        expect_conversation(*a, *b, "198.18.1.2", 20, 30000);
        a.reset();
        b.reset();
    }
}

// Flows spread over the queues; whichever one they take, they arrive.
TEST_F(Udp, FourReceiveQueues) {
    for (const char* mode : {"skb", "drv"}) {
        SCOPED_TRACE(mode);
        start({.queues = 4}, with_library({std::string("VMA_XDP_MODE=") + mode}), {});
        expect_conversation(*a, *b, "198.18.1.2", 3);
        a->ask("set s rcvbuf 2000000");
        long before = kernel_datagrams(*a);
        EXPECT_EQ(b->ask("fan 20000 64 10 198.18.1.1 5000 200"), "sent 640");
        std::string got = a->ask("drain s 500");
        EXPECT_EQ(Agent::value(got, "count"), 640) << got;
        EXPECT_EQ(Agent::value(got, "distinct"), 640) << got;
        EXPECT_EQ(Agent::value(got, "bad"), 0) << got;
        EXPECT_LE(kernel_datagrams(*a) - before, 2);
        a.reset();
        b.reset();
    }
}

// After a burst nobody calls the library any more; what it held back to share a doorbell must leave all the
// same.
TEST_F(Udp, BurstThenSilence) {
    start({}, with_library(), {});
    expect_conversation(*a, *b, "198.18.1.2", 3);
    for (int burst : {1, 2, 3, 7, 31, 33}) {
        EXPECT_EQ(a->ask("send s 198.18.1.2 6000 100 " + std::to_string(burst)),
                  "sent " + std::to_string(burst));
        a->post("sleep 300");
        std::string got = b->ask("drain s 250 " + std::to_string(burst));
        EXPECT_EQ(Agent::value(got, "count"), burst) << got;
        EXPECT_EQ(a->answer(), "ok");
    }
}

// What was sent before exit() or close() leaves as it would from the kernel.
TEST_F(Udp, SentBeforeCloseAndExit) {
    start({}, with_library(), {});
    expect_conversation(*a, *b, "198.18.1.2", 3);
    a->post("send s 198.18.1.2 6000 100 5");
    a->post("close s");
    a->answer(), a->answer();
    EXPECT_EQ(Agent::value(b->ask("drain s 300 5"), "count"), 5);
    open_socket(*a, Host::a, 5000);
    a->post("send s 198.18.1.2 6000 100 5");
    EXPECT_TRUE(a->finish().ok());
    EXPECT_EQ(Agent::value(b->ask("drain s 300 5"), "count"), 5);
}

// The very first datagram has neither route nor neighbour.
TEST_F(Udp, FirstDatagramArrives) {
    neighbours_are_known = false;
    start({}, with_library(), {});
    EXPECT_EQ(a->ask("send s 198.18.1.2 6000 100 20"), "sent 20");
    std::string got = b->ask("drain s 500 20");
    EXPECT_EQ(Agent::value(got, "count"), 20) << got;
    EXPECT_EQ(Agent::value(got, "distinct"), 20) << got;
}

TEST_F(Udp, BulkBothWays) {
    start({}, with_library(), with_library());
    expect_conversation(*a, *b, "198.18.1.2", 3);
    a->ask("set s rcvbuf 4000000");
    b->ask("set s rcvbuf 4000000");
    for (int length : {64, 1400}) {
        a->post("send s 198.18.1.2 6000 " + std::to_string(length) + " 2000 0 20");
        b->post("send s 198.18.1.1 5000 " + std::to_string(length) + " 2000 0 20");
        EXPECT_EQ(a->answer(), "sent 2000");
        EXPECT_EQ(b->answer(), "sent 2000");
        for (Agent* agent : {a.get(), b.get()}) {
            std::string got = agent->ask("drain s 500 2000");
            EXPECT_EQ(got, "count=2000 distinct=2000 disordered=0 bad=0");
        }
    }
}

// A call that has to wait for room gives up after SO_SNDTIMEO. The library leaves fragments to the kernel,
// whose queue is held up.
TEST_F(Udp, SendTimeLimit) {
    start({}, with_library(), {});
    expect_conversation(*a, *b, "198.18.1.2", 3);
    auto held_up = [&](Agent& agent, Host host, const std::string& to) {
        tool({"tc", "-n", hosts->netns(host), "qdisc", "add", "dev", "veth1", "root", "tbf", "rate", "800bit",
              "burst", "1600", "limit", "200000"});
        EXPECT_EQ(agent.ask("set s sndbuf 4608"), "ok");
        EXPECT_EQ(agent.ask("set s sndtimeo 100"), "ok");
        return agent.ask("send s " + to + " 3000 5");
    };
    const std::string kernel = held_up(*b, Host::b, "198.18.1.1 5000");
    EXPECT_NE(kernel.find("error EAGAIN"), kernel.npos) << kernel;
    EXPECT_EQ(held_up(*a, Host::a, "198.18.1.2 6000"), kernel);
}

// Sixty sockets that nobody reads are flooded until they are full. A connection does not notice.
TEST_F(Udp, UnreadSocketsLeaveConnectionsAlone) {
    start({}, with_library(), {});
    Agent flood(*hosts, Host::b);
    EXPECT_EQ(flood.ask("open f 198.18.1.2 6001"), "ok 6001");
    for (int i = 0; i < 60; i++) open_socket(*a, Host::a, 5100 + i, 1, "u" + std::to_string(i));
    EXPECT_EQ(a->ask("listen t 198.18.1.1 7000"), "ok 7000");
    EXPECT_EQ(b->ask("dial c 198.18.1.1 7000"), "ok");
    EXPECT_EQ(a->ask("accept t c 2000"), "ok");
    // The flood ends when the connection is through with what it has to say.
    for (int i = 0; i < 60; i++) flood.post("send f 198.18.1.1 " + std::to_string(5100 + i) + " 100 900");
    for (int round = 0; round < 5; round++) {
        a->post("answer c 100 2000");
        EXPECT_EQ(b->ask("talk c 100 2000"), "talked 2000");
        EXPECT_EQ(a->answer(), "answered 2000");
    }
    for (int i = 0; i < 60; i++) EXPECT_EQ(flood.answer(), "sent 900");
    a->post("answer c 100 200");
    EXPECT_EQ(b->ask("talk c 100 200"), "talked 200");
    EXPECT_EQ(a->answer(), "answered 200");
    // And they have what came for them, unharmed.
    long got = 0;
    for (int i = 0; i < 60; i++) {
        const std::string drained = a->ask("drain u" + std::to_string(i) + " 20");
        EXPECT_EQ(Agent::value(drained, "bad"), 0) << drained;
        got += Agent::value(drained, "count");
    }
    EXPECT_GT(got, 60 * 200);
}

TEST_F(Udp, TurnedOff) {
    start({}, with_library({"VMA_OFFLOADED_SOCKETS=0"}), {});
    expect_conversation(*a, *b, "198.18.1.2");
    EXPECT_FALSE(hosts->offloaded(Host::a));
}

}  // namespace
