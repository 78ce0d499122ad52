// SPDX-License-Identifier: BSD-2-Clause
// The network changes under a running socket: the kernel's view of neighbours, routes, links and addresses is
// the truth, and the library must follow it without the program noticing more than it would on the kernel.
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

class Neighbours : public testing::Test {
  protected:
    void start(const Wire& wire = {}) {
        try {
            hosts = std::make_unique<TwoHosts>(wire);
            a = std::make_unique<Agent>(*hosts, Host::a, with_library());
            b = std::make_unique<Agent>(*hosts, Host::b);
        } catch (const std::exception& e) {
            FAIL() << e.what();
        }
    }
    void TearDown() override {
        if (HasFailure() && a) std::cout << "log of a:\n" << a->process().err();
    }
    // Conversations until one is complete: while the network changes, single losses are nobody's fault.
    // Leaves nothing queued on either side.
    bool recovers(const std::string& to = "198.18.1.2") {
        for (int round = 0; round < 20 && a->process().running(); round++) {
            // What was held up while the network changed would otherwise use up this round's answers.
            b->ask("drain s 10");
            a->ask("drain s 10");
            b->post("echo s 5 400");
            bool all = a->ask("ping s " + to + " 6000 100 5 200") == "answered 5";
            b->answer();
            if (all) return true;
        }
        return false;
    }
    // The library hears of a change a moment after the kernel has made it; until then the kernel carries
    // datagrams.
    void expect_offloaded(const std::string& to = "198.18.1.2") {
        long carried = 0;
        for (int round = 0; round < 50; round++) {
            const long before = kernel_datagrams(*a);
            expect_conversation(*a, *b, to, 20);
            carried = kernel_datagrams(*a) - before;
            if (carried <= 2 || HasFailure()) break;
        }
        EXPECT_LE(carried, 2) << "not offloaded any more";
    }
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> a, b;
};

TEST_F(Neighbours, PeerChangesItsMac) {
    start();
    open_socket(*a, Host::a, 5000);
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    expect_offloaded();
    // A peer that moves announces itself by a gratuitous ARP.
    hosts->sysctl(Host::b, {"net.ipv4.conf.veth1.arp_notify=1"});
    a->post("send s 198.18.1.2 6000 100 600 0 1000");
    b->post("drain s 600");
    a->process().wait_for_out("never", milliseconds(200));  // time for some traffic
    hosts->ip(Host::b, {"link", "set", "dev", "veth1", "address", "02:00:00:00:00:77"});
    EXPECT_EQ(a->answer(), "sent 600");
    std::string got = b->answer();
    EXPECT_GE(Agent::value(got, "count"), 560) << got;
    EXPECT_TRUE(recovers());
    expect_offloaded();
}

// The peer says its new address by asking for this host's, as it does when it sends something. Datagrams
// after what it sent reach it, as on the kernel, and a connection goes on.
TEST_F(Neighbours, PeerAsksFromItsNewMac) {
    for (const bool preload : {false, true}) {
        SCOPED_TRACE(preload ? "library" : "kernel");
        start();
        if (!preload) a = std::make_unique<Agent>(*hosts, Host::a);
        open_socket(*a, Host::a, 5000);
        open_socket(*b, Host::b, 6000);
        expect_conversation(*a, *b, "198.18.1.2");
        EXPECT_EQ(b->ask("listen l 198.18.1.2 7000"), "ok 7000");
        EXPECT_EQ(a->ask("dial c 198.18.1.2 7000"), "ok");
        EXPECT_EQ(b->ask("accept l c 3000"), "ok");
        if (preload) expect_offloaded();
        for (const char* mac : {"02:00:00:00:00:77", "02:00:00:00:00:78", "02:00:00:00:00:79"}) {
            SCOPED_TRACE(mac);
            hosts->ip(Host::b, {"link", "set", "dev", "veth1", "address", mac});
            EXPECT_EQ(b->ask("send s 198.18.1.1 5000 50 1"), "sent 1");
            EXPECT_EQ(Agent::value(a->ask("recv s 3000"), "len"), 50);
            // The library hears of the change a moment after the kernel has made it.
            long arrived = 0;
            for (int round = 0; round < (preload ? 20 : 1) && arrived != 7; round++) {
                EXPECT_EQ(a->ask("send s 198.18.1.2 6000 100 7 0 1000"), "sent 7");
                arrived = Agent::value(b->ask("drain s 100"), "count");
            }
            EXPECT_EQ(arrived, 7);
            b->post("answer c 100 20");
            EXPECT_EQ(a->ask("talk c 100 20"), "talked 20");
            EXPECT_EQ(b->answer(), "answered 20");
        }
    }
}

TEST_F(Neighbours, EntryIsFlushed) {
    start();
    open_socket(*a, Host::a, 5000);
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    for (int i = 0; i < 3; i++) {
        hosts->ip(Host::a, {"neigh", "flush", "dev", "veth1"});
        EXPECT_TRUE(recovers());
    }
    hosts->ip(Host::a, {"neigh", "replace", "198.18.1.2", "lladdr", "02:00:00:00:00:99", "nud", "permanent",
                        "dev", "veth1"});
    // The library hears of the entry a moment after the kernel has it.
    long arrived = 5;
    for (int round = 0; round < 10 && arrived > 0; round++) {
        EXPECT_EQ(a->ask("send s 198.18.1.2 6000 100 5"), "sent 5");
        arrived = Agent::value(b->ask("drain s 200"), "count");
    }
    EXPECT_EQ(arrived, 0) << "sent to the old address";
    hosts->ip(Host::a, {"neigh", "del", "198.18.1.2", "dev", "veth1"});
    EXPECT_TRUE(recovers());
    expect_offloaded();
}

TEST_F(Neighbours, OwnMacChanges) {
    start();
    open_socket(*a, Host::a, 5000);
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    hosts->ip(Host::a, {"link", "set", "dev", "veth1", "address", "02:00:00:00:00:55"});
    hosts->ip(Host::b, {"neigh", "flush", "dev", "veth1"});
    EXPECT_TRUE(recovers());
    expect_offloaded();
}

// An address reached over wire 1, then over wire 2, then over wire 1 again.
TEST_F(Neighbours, RouteMoves) {
    start({.links = 2});
    for (Host host : {Host::a, Host::b})
        for (const char* dev : {"veth1", "veth2", "all"})
            hosts->sysctl(host, {std::string("net.ipv4.conf.") + dev + ".rp_filter=0"});
    hosts->ip(Host::a, {"address", "add", "198.18.50.1/32", "dev", "lo"});
    hosts->ip(Host::b, {"address", "add", "198.18.60.1/32", "dev", "lo"});
    auto route = [&](int link) {
        std::string n = std::to_string(link);
        hosts->ip(Host::a,
                  {"route", "replace", "198.18.60.1/32", "via", "198.18." + n + ".2", "src", "198.18.50.1"});
        hosts->ip(Host::b,
                  {"route", "replace", "198.18.50.1/32", "via", "198.18." + n + ".1", "src", "198.18.60.1"});
    };
    route(1);
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    EXPECT_EQ(b->ask("open s 0.0.0.0 6000"), "ok 6000");
    EXPECT_TRUE(recovers("198.18.60.1"));
    expect_conversation(*a, *b, "198.18.60.1");
    for (int link : {2, 1, 2}) {
        route(link);
        EXPECT_TRUE(recovers("198.18.60.1")) << "link " << link;
        expect_conversation(*a, *b, "198.18.60.1", 20);
    }
}

TEST_F(Neighbours, RouteMovesWhileSending) {
    start({.links = 2});
    hosts->ip(Host::b, {"address", "add", "198.18.60.1/32", "dev", "lo"});
    hosts->ip(Host::a, {"route", "replace", "198.18.60.1/32", "via", "198.18.1.2"});
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    EXPECT_EQ(b->ask("open s 0.0.0.0 6000"), "ok 6000");
    for (const char* dev : {"veth1", "veth2", "all"})
        hosts->sysctl(Host::b, {std::string("net.ipv4.conf.") + dev + ".rp_filter=0"});
    a->post("send s 198.18.60.1 6000 100 1000 0 1000");
    b->post("drain s 700");
    for (const char* via : {"198.18.2.2", "198.18.1.2", "198.18.2.2"}) {
        b->process().wait_for_out("never", milliseconds(200));  // time for some traffic
        hosts->ip(Host::a, {"route", "replace", "198.18.60.1/32", "via", via});
    }
    EXPECT_EQ(a->answer(), "sent 1000");
    std::string got = b->answer();
    // Neither wire loses anything when its sender goes away; the first one over a new wire waits for the
    // neighbour.
    EXPECT_GE(Agent::value(got, "count"), 990) << got;
    EXPECT_EQ(Agent::value(got, "count"), Agent::value(got, "distinct")) << got;
}

TEST_F(Neighbours, RouteDisappears) {
    start();
    hosts->ip(Host::b, {"address", "add", "198.18.60.1/32", "dev", "lo"});
    hosts->ip(Host::a, {"route", "add", "198.18.60.1/32", "via", "198.18.1.2"});
    open_socket(*a, Host::a, 5000);
    EXPECT_EQ(b->ask("open s 0.0.0.0 6000"), "ok 6000");
    EXPECT_EQ(a->ask("send s 198.18.60.1 6000 100 5"), "sent 5");
    EXPECT_EQ(Agent::value(b->ask("drain s 300 5"), "count"), 5);
    hosts->ip(Host::a, {"route", "del", "198.18.60.1/32"});
    a->ask("sleep 50");  // the notice has to arrive
    EXPECT_EQ(a->ask("send s 198.18.60.1 6000 100 2"), "sent 0 error ENETUNREACH");
    hosts->ip(Host::a, {"route", "add", "unreachable", "198.18.60.1/32"});
    a->ask("sleep 50");
    EXPECT_EQ(a->ask("send s 198.18.60.1 6000 100 2"), "sent 0 error EHOSTUNREACH");
    hosts->ip(Host::a, {"route", "del", "unreachable", "198.18.60.1/32"});
    hosts->ip(Host::a, {"route", "add", "198.18.60.1/32", "via", "198.18.1.2"});
    a->ask("sleep 50");
    EXPECT_EQ(a->ask("send s 198.18.60.1 6000 100 5"), "sent 5");
    EXPECT_EQ(Agent::value(b->ask("drain s 300 5"), "count"), 5);
}

TEST_F(Neighbours, InterfaceDownAndUp) {
    start();
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    for (Host host : {Host::a, Host::b}) {
        hosts->ip(host, {"link", "set", "dev", "veth1", "down"});
        a->ask("ping s 198.18.1.2 6000 100 3 50");
        hosts->ip(host, {"link", "set", "dev", "veth1", "up"});
        EXPECT_TRUE(recovers());
        expect_conversation(*a, *b, "198.18.1.2", 20);
        expect_offloaded();
    }
    EXPECT_TRUE(a->process().running());
}

TEST_F(Neighbours, InterfaceDisappears) {
    start({.links = 2});
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    EXPECT_EQ(b->ask("open s 0.0.0.0 6000"), "ok 6000");
    expect_conversation(*a, *b, "198.18.1.2");
    expect_conversation(*a, *b, "198.18.2.2");
    hosts->ip(Host::a, {"link", "del", "dev", "veth1"});
    EXPECT_TRUE(recovers("198.18.2.2"));
    EXPECT_EQ(a->ask("sleep 50"), "ok");
    EXPECT_EQ(a->ask("send s 198.18.1.2 6000 100 1"), "sent 0 error ENETUNREACH");
    EXPECT_TRUE(a->finish().ok());
}

TEST_F(Neighbours, AddressesComeAndGo) {
    start();
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    for (int round = 0; round < 2; round++) {
        hosts->ip(Host::a, {"address", "add", "198.18.1.33/24", "dev", "veth1"});
        a->ask("sleep 50");
        long before = kernel_datagrams(*a);
        EXPECT_EQ(b->ask("send s 198.18.1.33 5000 100 20"), "sent 20");
        EXPECT_EQ(Agent::value(a->ask("drain s 300 20"), "count"), 20);
        EXPECT_LE(kernel_datagrams(*a) - before, 2) << "the new address is not offloaded";
        hosts->ip(Host::a, {"address", "del", "198.18.1.33/24", "dev", "veth1"});
        a->ask("sleep 50");
        b->ask("send s 198.18.1.33 5000 100 5");
        EXPECT_EQ(Agent::value(a->ask("drain s 100"), "count"), 0)
            << "the address is gone, its datagrams still come";
        expect_conversation(*a, *b, "198.18.1.2", 20);
    }
}

TEST_F(Neighbours, MtuChanges) {
    start();
    open_socket(*a, Host::a, 5000);
    open_socket(*b, Host::b, 6000);
    for (const char* mtu : {"1500", "1000", "1500", "600"}) {
        for (Host host : {Host::a, Host::b}) hosts->ip(host, {"link", "set", "dev", "veth1", "mtu", mtu});
        a->ask("sleep 50");
        for (int length : {100, 900, 1400, 3000}) expect_conversation(*a, *b, "198.18.1.2", 5, length);
    }
}

TEST_F(Neighbours, InterfaceIsRenamed) {
    start();
    open_socket(*a, Host::a, 5000);
    open_socket(*b, Host::b, 6000);
    expect_conversation(*a, *b, "198.18.1.2");
    hosts->ip(Host::a, {"link", "set", "dev", "veth1", "name", "renamed1"});
    EXPECT_TRUE(recovers());
    hosts->ip(Host::a, {"link", "set", "dev", "renamed1", "name", "veth1"});
    expect_offloaded();
}

}  // namespace
