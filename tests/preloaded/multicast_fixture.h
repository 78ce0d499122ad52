// SPDX-License-Identifier: BSD-2-Clause
// Two hosts on a wire: one receives groups with the library, the other one sends to them without it.
#pragma once

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/hosts/plain_test.h"

namespace testing_support {

inline const std::string kGroup = "239.1.2.3", kAlias = "239.129.2.3";  // one Ethernet address

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

}  // namespace testing_support
