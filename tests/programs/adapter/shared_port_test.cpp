// SPDX-License-Identifier: BSD-2-Clause
// Several processes on one port of an adapter (SO_REUSEPORT, SO_REUSEADDR): workers, and a successor that
// starts before its predecessor ends. An adapter gives a copy of each frame to every process with the rule,
// and so does the simulated one here. Each datagram must come once, and each connection to one process.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/preloaded/lifecycle_fixture.h"

namespace {

using namespace testing_support;

class SharedPort : public Lifecycle {
  protected:
    std::unique_ptr<Agent> worker(const std::string& more = "MLX5_SIM_COPIES=1") {
        return std::make_unique<Agent>(*hosts, Host::a, with_library({"MLX5_SIM_COPIES=1", more}));
    }
    std::unique_ptr<Agent> udp_worker(const std::string& option = "reuseport") {
        auto agent = worker();
        EXPECT_EQ(agent->ask("open s 198.18.1.1 5000 " + option), "ok 5000");
        return agent;
    }
    std::unique_ptr<Agent> tcp_worker() {
        auto agent = worker();
        EXPECT_EQ(agent->ask("listen l 198.18.1.1 7000 16 reuseport"), "ok 7000");
        return agent;
    }
    // What the workers got of datagrams of 32 peers, four of each.
    std::vector<long> heard(const std::vector<Agent*>& workers) {
        EXPECT_EQ(peer->ask("fan 20000 32 4 198.18.1.1 5000 100"), "sent 128");
        std::vector<long> counts;
        for (Agent* w : workers) counts.push_back(Agent::value(w->ask("drain s 300"), "count"));
        return counts;
    }
    static long sum(const std::vector<long>& counts) {
        long all = 0;
        for (const long n : counts) all += n;
        return all;
    }
    // A conversation, until the kernel has no part in it. What comes while a process ends may be lost.
    bool becomes_offloaded(Agent& agent) {
        for (int i = 0; i < 100 * patience(); i++) {
            // What comes late would be answered for this round's datagrams, and so would all that follows.
            peer->ask("drain s 10");
            agent.ask("drain s 10");
            const long before = kernel_datagrams(agent);
            peer->post("echo s 20 500");
            const bool all = agent.ask("ping s 198.18.1.2 6000 100 20 500") == "answered 20";
            peer->answer();
            if (all && kernel_datagrams(agent) - before <= 2) return true;
            agent.ask("sleep 50");
        }
        return false;
    }
    static void expect_told(Agent& agent, bool told = true) {
        EXPECT_EQ(
            agent.process().err().find("another process has a socket on the same port") != std::string::npos,
            told)
            << agent.process().err();
    }
};

TEST_F(SharedPort, EachDatagramComesOnce) {
    for (const std::string option : {"reuseport", "reuseaddr"}) {
        SCOPED_TRACE(option);
        auto first = udp_worker(option), second = udp_worker(option), third = udp_worker(option);
        EXPECT_EQ(sum(heard({first.get(), second.get(), third.get()})), 128);
        expect_told(*first, false);
        expect_told(*second);
        expect_told(*third);
        talks_offloaded(*first);
    }
}

TEST_F(SharedPort, EachConnectionIsOneProcesss) {
    auto first = tcp_worker(), second = tcp_worker();
    expect_told(*second);
    for (int i = 0; i < 16; i++) {
        const std::string id = "c" + std::to_string(i);
        ASSERT_EQ(peer->ask("dial " + id + " 198.18.1.1 7000"), "ok");
        Agent* server = nullptr;
        for (Agent* worker : {first.get(), second.get()})
            if (server == nullptr && worker->ask("accept l " + id + " 100") == "ok") server = worker;
        ASSERT_NE(server, nullptr) << i;
        server->post("answer " + id + " 1000 20");
        EXPECT_EQ(peer->ask("talk " + id + " 1000 20"), "talked 20") << i;
        EXPECT_EQ(server->answer(), "answered 20");
    }
}

// However the first process ends, or only lets go of its socket, the second one has the rule then.
TEST_F(SharedPort, TheSuccessorTakesOver) {
    auto first = udp_worker();
    for (const bool killed : {true, false, true}) {
        auto second = udp_worker();
        EXPECT_EQ(sum(heard({first.get(), second.get()})), 128);
        expect_told(*second);
        if (killed)
            first->process().kill(SIGKILL);
        else
            EXPECT_EQ(first->ask("close s"), "ok");
        EXPECT_TRUE(becomes_offloaded(*second)) << second->process().err();
        EXPECT_EQ(heard({second.get()}), (std::vector<long>{128}));
        first = std::move(second);
    }
}

TEST_F(SharedPort, AListenerTakesOver) {
    auto first = tcp_worker();
    auto second = tcp_worker();
    expect_told(*second);
    first->process().kill(SIGKILL);
    bool offloaded = false;
    for (int i = 0; i < 50 * patience() && !offloaded; i++) {
        const std::string id = "c" + std::to_string(i);
        // Until the new listener has its rule, the kernel's has the connection.
        if (peer->ask("dial " + id + " 198.18.1.1 7000") != "ok") continue;
        if (second->ask("accept l " + id + " 1000") != "ok") continue;
        const long before = Agent::value(second->ask("tcp"), "in");
        second->post("answer " + id + " 100 20");
        EXPECT_EQ(peer->ask("talk " + id + " 100 20"), "talked 20");
        EXPECT_EQ(second->answer(), "answered 20");
        offloaded = Agent::value(second->ask("tcp"), "in") - before <= 2;
        second->ask("sleep 50");
    }
    EXPECT_TRUE(offloaded) << second->process().err();
}

// What two processes do not share they both have: other ports, and other peers of one port.
TEST_F(SharedPort, OtherRulesAreEachProcesss) {
    auto first = worker("VMA_UDP_3T_RULES=0"), second = worker("VMA_UDP_3T_RULES=0");
    EXPECT_EQ(first->ask("open s 198.18.1.1 5000"), "ok 5000");
    EXPECT_EQ(second->ask("open s 198.18.1.1 5001"), "ok 5001");
    talks_offloaded(*first);
    talks_offloaded(*second);
    int port = 6000;
    for (Agent* agent : {second.get(), first.get()}) {
        EXPECT_EQ(agent->ask("open t 198.18.1.1 5002 reuseport"), "ok 5002");
        EXPECT_EQ(agent->ask("connect t 198.18.1.2 " + std::to_string(++port)), "ok");
    }
    EXPECT_EQ(peer->ask("open p 198.18.1.2 6001"), "ok 6001");
    EXPECT_EQ(peer->ask("open q 198.18.1.2 6002"), "ok 6002");
    const long before = kernel_datagrams(*first);
    EXPECT_EQ(peer->ask("send p 198.18.1.1 5002 100 20"), "sent 20");
    EXPECT_EQ(peer->ask("send q 198.18.1.1 5002 100 30"), "sent 30");
    EXPECT_EQ(Agent::value(second->ask("drain t 300"), "count"), 20);
    EXPECT_EQ(Agent::value(first->ask("drain t 300"), "count"), 30);
    EXPECT_LE(kernel_datagrams(*first) - before, 2);
    expect_told(*first, false);
    expect_told(*second, false);
}

}  // namespace
