// SPDX-License-Identifier: BSD-2-Clause
// Receiving multicast past the kernel: who gets a copy, and that nobody else on the host loses one.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

const std::string kGroup = "239.1.2.3", kAlias = "239.129.2.3";  // one Ethernet address

class Multicast : public testing::Test {
  protected:
    // a has the library, and b, without it, sends from 198.18.1.2:6000.
    void start(std::vector<std::string> env = {}, Wire wire = {}) {
        wire.known_neighbours = true;
        hosts = std::make_unique<TwoHosts>(wire);
        a = std::make_unique<Agent>(*hosts, Host::a, with_library(std::move(env)));
        b = std::make_unique<Agent>(*hosts, Host::b);
        open_socket(*b, Host::b, 6000, 1, "p");
        EXPECT_EQ(b->ask("set p multicast_if 198.18.1.2"), "ok");
    }
    // A socket on 0.0.0.0:5000 that shares the port.
    static void open_any(Agent& agent, const std::string& id, const std::string& address = "0.0.0.0") {
        EXPECT_EQ(agent.ask("open " + id + " " + address + " 5000 reuseaddr"), "ok 5000");
    }
    static void join(Agent& agent, const std::string& id, const std::string& group = kGroup) {
        EXPECT_EQ(agent.ask("join " + id + " " + group + " 198.18.1.1"), "ok");
    }
    void send(int count, const std::string& group = kGroup, int port = 5000, int length = 100) {
        EXPECT_EQ(b->ask("send p " + group + " " + std::to_string(port) + " " + std::to_string(length) + " " +
                         std::to_string(count) + " 1"),
                  "sent " + std::to_string(count));
    }
    // How many datagrams came, none of them twice.
    static long drained(Agent& agent, const std::string& id, int idle = 300) {
        const std::string got = agent.ask("drain " + id + " " + std::to_string(idle));
        EXPECT_EQ(Agent::value(got, "count"), Agent::value(got, "distinct")) << got;
        EXPECT_EQ(Agent::value(got, "bad"), 0) << got;
        return Agent::value(got, "count");
    }
    // More than the time in which the library notices another receiver.
    static void wait_out_the_window(Agent& agent) { agent.ask("sleep 700"); }
    // `count` datagrams that a's kernel has nothing to do with.
    void expect_past_the_kernel(int count) {
        const long before = kernel_datagrams(*a);
        send(count);
        EXPECT_EQ(drained(*a, "s"), count);
        EXPECT_EQ(kernel_datagrams(*a) - before, 0) << a->process().err();
    }
    void TearDown() override {
        if (HasFailure() && a) std::cout << "log of a:\n" << a->process().err();
    }
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> a, b;
};

TEST_F(Multicast, ComesPastTheKernel) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(100);
    EXPECT_TRUE(hosts->offloaded(Host::a));
    EXPECT_EQ(a->ask("leave s " + kGroup + " 198.18.1.1"), "ok");
    send(10);
    EXPECT_EQ(drained(*a, "s"), 0);
    join(*a, "s");
    expect_past_the_kernel(10);
}

TEST_F(Multicast, EverySocketHasItsCopy) {
    start();
    for (const char* id : {"s", "t", "u"}) {
        open_any(*a, id, id[0] == 'u' ? kGroup : "0.0.0.0");
        join(*a, id);
    }
    expect_past_the_kernel(100);
    EXPECT_EQ(drained(*a, "t"), 100);
    EXPECT_EQ(drained(*a, "u"), 100);
    a->ask("close t");
    expect_past_the_kernel(50);
    EXPECT_EQ(drained(*a, "u"), 50);
}

TEST_F(Multicast, ASocketThatWasThereFirstLosesNothing) {
    start();
    Agent other(*hosts, Host::a);
    open_any(other, "o");
    join(other, "o");
    open_any(*a, "s");
    join(*a, "s");
    send(100);
    EXPECT_EQ(drained(*a, "s"), 100);
    EXPECT_EQ(drained(other, "o"), 100);
    // When it goes, the group comes past the kernel.
    other.ask("close o");
    wait_out_the_window(*a);
    expect_past_the_kernel(100);
}

TEST_F(Multicast, ASocketThatComesLaterLosesNothingAfterTheWindow) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    Agent other(*hosts, Host::a);
    open_any(other, "o");  // it joins nothing, and receives all the same
    wait_out_the_window(*a);
    send(100);
    EXPECT_EQ(drained(*a, "s"), 100);
    EXPECT_EQ(drained(other, "o"), 100);
}

// It is seen when this process joins another group, so before the next look: all groups of the port go.
TEST_F(Multicast, ASocketThatAJoinFindsLosesNothing) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    Agent other(*hosts, Host::a);
    a->ask("sleep 60");  // what the library has seen is too old for a join
    open_any(other, "o");
    join(*a, "s", "239.1.2.4");
    wait_out_the_window(*a);
    send(50);
    EXPECT_EQ(drained(*a, "s"), 50);
    EXPECT_EQ(drained(other, "o"), 50);
}

// Rules come and go while datagrams arrive: each comes once.
TEST_F(Multicast, ChangesOfTheWayLoseNothingAndDoubleNothing) {
    start();
    open_any(*a, "s");
    a->ask("set s rcvbuf 2000000");
    join(*a, "s");
    Agent other(*hosts, Host::a);
    b->post("send p " + kGroup + " 5000 100 3000 1 800");
    a->post("drain s 1500");
    for (int i = 0; i < 3; i++) {
        other.ask("sleep 300");
        open_any(other, "o");
        other.ask("sleep 400");
        other.ask("close o");
    }
    EXPECT_EQ(b->answer(), "sent 3000");
    const std::string got = a->answer();
    EXPECT_EQ(Agent::value(got, "count"), 3000) << got;
    EXPECT_EQ(Agent::value(got, "distinct"), 3000) << got;
    EXPECT_EQ(Agent::value(got, "bad"), 0) << got;
}

TEST_F(Multicast, OtherPortsAndGroupsStayWithTheirSockets) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    Agent other(*hosts, Host::a);
    // The group's other port, and a group with the same Ethernet address on the same port.
    EXPECT_EQ(other.ask("open o 0.0.0.0 5001"), "ok 5001");
    join(other, "o");
    open_any(other, "x", kAlias);
    join(other, "x", kAlias);
    wait_out_the_window(*a);
    send(20, kGroup, 5001);
    send(30, kAlias);
    EXPECT_EQ(drained(other, "o"), 20);
    EXPECT_EQ(drained(other, "x"), 30);
    // The kernel gives the alias to s, too, which has IP_MULTICAST_ALL.
    EXPECT_EQ(drained(*a, "s"), 30);
    expect_past_the_kernel(40);
    EXPECT_EQ(drained(other, "x"), 0);
}

TEST_F(Multicast, SourcesAreFiltered) {
    start({}, {.second_address = true});
    EXPECT_EQ(b->ask("open q 198.18.1.102 6000"), "ok 6000");
    EXPECT_EQ(b->ask("set q multicast_if 198.18.1.102"), "ok");
    open_any(*a, "s");
    open_any(*a, "t");
    EXPECT_EQ(a->ask("listen_to s " + kGroup + " 198.18.1.1 198.18.1.2"), "ok");
    EXPECT_EQ(a->ask("listen_to t " + kGroup + " 198.18.1.1 198.18.1.102"), "ok");
    const long before = kernel_datagrams(*a);
    send(10);
    EXPECT_EQ(b->ask("send q " + kGroup + " 5000 100 20 1"), "sent 20");
    EXPECT_EQ(drained(*a, "s"), 10);
    EXPECT_EQ(drained(*a, "t"), 20);
    EXPECT_EQ(kernel_datagrams(*a) - before, 0);
}

TEST_F(Multicast, FragmentsComeByTheKernel) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    send(20, kGroup, 5000, 4000);
    EXPECT_EQ(drained(*a, "s"), 20);
    expect_past_the_kernel(10);
}

TEST_F(Multicast, TheParameterDecides) {
    start({"VMA_MC_OFFLOAD=1"});
    open_any(*a, "s");
    join(*a, "s");
    const long before = kernel_datagrams(*a);
    send(50);
    EXPECT_EQ(drained(*a, "s"), 50);
    EXPECT_EQ(kernel_datagrams(*a) - before, 50);
    a.reset();
    start({"VMA_MC_OFFLOAD=2"});
    Agent other(*hosts, Host::a);
    open_any(other, "o");
    join(other, "o");
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(50);
    EXPECT_EQ(drained(other, "o"), 0);
}

// A rule of libvma.conf names the group; others come past the kernel.
TEST_F(Multicast, RulesAreAskedAtTheJoin) {
    const std::string file = "/tmp/vma_multicast_rules." + std::to_string(getpid());
    std::ofstream(file) << "application-id * *\nuse os udp_receiver " << kGroup << ":5000\n";
    start({"VMA_CONFIG_FILE=" + file});
    open_any(*a, "s");
    join(*a, "s");
    long before = kernel_datagrams(*a);
    send(20);
    EXPECT_EQ(drained(*a, "s"), 20);
    EXPECT_EQ(kernel_datagrams(*a) - before, 20);
    join(*a, "s", "239.1.2.4");
    before = kernel_datagrams(*a);
    send(20, "239.1.2.4");
    EXPECT_EQ(drained(*a, "s"), 20);
    EXPECT_EQ(kernel_datagrams(*a) - before, 0);
    a.reset();
    unlink(file.c_str());
}

TEST_F(Multicast, ManySocketsOnOneGroup) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    for (int i = 0; i < 63; i++) {
        open_any(*a, "m" + std::to_string(i));
        join(*a, "m" + std::to_string(i));
    }
    expect_past_the_kernel(50);
    for (int i = 0; i < 63; i++) EXPECT_EQ(drained(*a, "m" + std::to_string(i), 0), 50);
}

// What the kernel does with an interface without an address, or with another name, the library does, too.
TEST_F(Multicast, TheAddressGoesAndTheNameChanges) {
    start();
    auto heard = [&](Agent& agent) {
        const std::vector<std::string> address = {"198.18.1.1/24", "dev", "veth1"};
        open_any(agent, "s");
        join(agent, "s");
        std::string counts;
        auto count = [&] {
            send(10);
            counts += std::to_string(drained(agent, "s")) + " ";
        };
        count();
        hosts->ip(Host::a, {"address", "del", address[0], address[1], address[2]});
        count();
        hosts->ip(Host::a, {"address", "add", address[0], address[1], address[2]});
        count();
        if (!simulated()) {  // its adapter is found by the name
            hosts->ip(Host::a, {"link", "set", "veth1", "down"});
            hosts->ip(Host::a, {"link", "set", "veth1", "name", "eth7"});
            hosts->ip(Host::a, {"link", "set", "eth7", "up"});
            for (int i = 0; i < 100 && drained(agent, "s", 50) == 0; i++)
                b->ask("send p " + kGroup + " 5000 100 1 1");
            drained(agent, "s");
            count();
            hosts->ip(Host::a, {"link", "set", "eth7", "down"});
            hosts->ip(Host::a, {"link", "set", "eth7", "name", "veth1"});
            hosts->ip(Host::a, {"link", "set", "veth1", "up"});
            for (int i = 0; i < 100 && drained(agent, "s", 50) == 0; i++)
                b->ask("send p " + kGroup + " 5000 100 1 1");
            drained(agent, "s");
        }
        agent.ask("close s");
        return counts;
    };
    std::string kernel;
    {
        Agent plain(*hosts, Host::a);
        kernel = heard(plain);
    }
    EXPECT_EQ(heard(*a), kernel);
}

// The kernel takes a dead process's rules.
TEST_F(Multicast, AKilledProcessLeavesNoRule) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    Agent other(*hosts, Host::a);
    open_any(other, "o");
    join(other, "o");
    a->process().kill(SIGKILL);
    a->process().wait();
    EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    send(50);
    EXPECT_EQ(drained(other, "o"), 50);
}

TEST_F(Multicast, HundredsOfGroups) {
    constexpr int kGroups = 300;
    start();
    hosts->sysctl(Host::a, {"net.ipv4.igmp_max_memberships=1000"});
    open_any(*a, "s");
    a->ask("set s rcvbuf 2000000");
    auto group = [](int i) { return "239.7." + std::to_string(i / 100) + "." + std::to_string(i % 100); };
    for (int i = 0; i < kGroups; i++) join(*a, "s", group(i));
    const long before = kernel_datagrams(*a);
    for (int i = 0; i < kGroups; i++)
        EXPECT_EQ(b->ask("send p " + group(i) + " 5000 100 1 " + std::to_string(i)), "sent 1");
    EXPECT_EQ(drained(*a, "s"), kGroups);
    EXPECT_EQ(kernel_datagrams(*a) - before, 0);
    for (int i = 0; i < kGroups; i += 2) EXPECT_EQ(a->ask("leave s " + group(i) + " 198.18.1.1"), "ok");
    for (int i = 0; i < kGroups; i++) b->ask("send p " + group(i) + " 5000 100 1 " + std::to_string(i));
    EXPECT_EQ(drained(*a, "s"), kGroups / 2);
}

TEST_F(Multicast, TheLinkGoesDownAndComesBack) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    expect_past_the_kernel(10);
    hosts->ip(Host::a, {"link", "set", "veth1", "down"});
    hosts->ip(Host::a, {"link", "set", "veth1", "up"});
    // The sender's route and the link take their time.
    for (int i = 0; i < 100 && drained(*a, "s", 50) == 0; i++) b->ask("send p " + kGroup + " 5000 100 1 1");
    drained(*a, "s");
    send(20);
    EXPECT_EQ(drained(*a, "s"), 20);
}

}  // namespace
