// SPDX-License-Identifier: BSD-2-Clause
// Programs on host a that come and go, and a peer on host b that stays.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/hosts/device.h"
#include "tests/support/hosts/plain_test.h"

namespace testing_support {

class Lifecycle : public testing::Test {
  protected:
    void SetUp() override { ASSERT_NO_THROW(make()); }
    void make() {
        try {
            hosts = std::make_unique<TwoHosts>(Wire{.known_neighbours = true});
            peer = std::make_unique<Agent>(*hosts, Host::b);
            open_socket(*peer, Host::b, 6000);
        } catch (const std::exception& e) {
            FAIL() << e.what();
        }
    }
    // A new program on host a, with its socket on port 5000.
    std::unique_ptr<Agent> program(bool library = true, std::vector<std::string> launcher = {},
                                   int port = 5000) {
        RunOptions options = library ? with_library() : RunOptions{};
        auto agent = std::make_unique<Agent>(*hosts, Host::a, options, std::move(launcher));
        open_socket(*agent, Host::a, port);
        return agent;
    }
    void talks(Agent& agent) { expect_conversation(agent, *peer, "198.18.1.2", 20); }
    void talks_offloaded(Agent& agent) {
        talks(agent);
        long before = kernel_datagrams(agent);
        talks(agent);
        EXPECT_LE(kernel_datagrams(agent) - before, 2) << agent.process().err();
    }
    // The library said in one line that it leaves the interface to the kernel, and why.
    static void expect_reason(Agent& agent, const std::string& why) {
        EXPECT_TRUE(
            agent.process().wait_for_err("sockets on veth1 are served by the kernel: ", milliseconds(1000)));
        EXPECT_NE(agent.process().err().find(why), std::string::npos) << why << " is not said in\n"
                                                                      << agent.process().err();
    }
    // Of what stands in the way of AF_XDP only.
    void expect_reason_over_xdp(Agent& agent, const std::string& why) {
        if (simulated())
            talks_offloaded(agent);
        else
            expect_reason(agent, why);
    }
    static std::string hosts_trace() {
        return std::filesystem::temp_directory_path() / ("vmatest-trace-" + std::to_string(getpid()));
    }
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> peer;
};

}  // namespace testing_support
