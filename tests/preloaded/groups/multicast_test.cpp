// SPDX-License-Identifier: BSD-2-Clause
// Receiving multicast past the kernel: who gets a copy, and that nobody else on the host loses one.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/preloaded/multicast_fixture.h"

namespace {

using namespace testing_support;

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
