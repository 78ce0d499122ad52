// SPDX-License-Identifier: BSD-2-Clause
// Small helpers most integration tests share.
#pragma once

#include <gtest/gtest.h>

#include "agent.h"
#include "device.h"

namespace testing_support {

// Default-constructs the options of a program on the library; extra variables as given.
inline RunOptions with_library(std::vector<std::string> env = {}) {
    return {.preload = true, .env = std::move(env)};
}

// "open s 198.18.<link>.<host> PORT" on an agent.
inline void open_socket(Agent& agent, Host host, int port, int link = 1, const std::string& id = "s") {
    EXPECT_EQ(agent.ask("open " + id + " " + TwoHosts::address(host, link) + " " + std::to_string(port)),
              "ok " + std::to_string(port));
}

// `count` datagrams from a's socket "s" to b's on port 6000 and back, all answered.
inline void expect_conversation(Agent& a, Agent& b, const std::string& b_address, int count = 50,
                                int length = 100) {
    b.post("echo s " + std::to_string(count) + " 3000");
    EXPECT_EQ(a.ask("ping s " + b_address + " 6000 " + std::to_string(length) + " " + std::to_string(count) +
                    " 3000"),
              "answered " + std::to_string(count));
    EXPECT_EQ(b.answer(), "echoed " + std::to_string(count));
}

// Datagrams that went through the kernel's UDP in the agent's namespace so far.
inline long kernel_datagrams(Agent& agent) {
    std::string counters = agent.ask("udp");
    return Agent::value(counters, "in") + Agent::value(counters, "out");
}

}  // namespace testing_support
