// SPDX-License-Identifier: BSD-2-Clause
// vma_trace beside libvma: the rings' own requests are traced as those of any other verbs program.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/plain_test.h"
#include "support/programs.h"

namespace {

using namespace testing_support;

TEST(VmaTrace, FollowsTheRequestsOfLibvmasRings) {
    constexpr int kDatagrams = 300;
    const Scratch scratch;
    const TwoHosts hosts;
    const std::string report = scratch.path("report");
    RunOptions options = with_library({"VMA_TRACE_JSON=" + report, "VMA_TRACE_QUIET=1"});
    options.env.push_back("LD_PRELOAD=" VMA_TRACE_LIBRARY ":" VMA_LIBRARY);
    options.preload = false;
    Agent a(hosts, Host::a, options), b(hosts, Host::b);
    open_socket(a, Host::a, 5000);
    open_socket(b, Host::b, 6000);
    expect_conversation(a, b, "198.18.1.2", 3);  // the neighbour is known now
    expect_conversation(a, b, "198.18.1.2", kDatagrams);
    const Exit exit = a.finish();
    EXPECT_EQ(exit.code, 0) << exit.err;
    // Its options are none of libvma's.
    EXPECT_EQ(exit.err.find("VMA_TRACE_JSON"), std::string::npos) << exit.err;

    std::ifstream in(report);
    const auto parsed = nlohmann::json::parse(in, nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << exit.err;
    long sent = 0, received = 0;
    for (const auto& queue : parsed["queues"]) {
        EXPECT_EQ(queue["unmatched"], 0) << queue;
        EXPECT_EQ(queue["errors"], 0) << queue;
        EXPECT_EQ(queue["posted"].get<long>(),
                  queue["completed"].get<long>() + queue["outstanding"].get<long>() + queue["forgotten"].get<long>())
            << queue;
        // Payload, UDP, IP and Ethernet headers are at least what a datagram has.
        const bool send = queue["side"] == "send";
        (send ? sent : received) += queue["posted"].get<long>() - (send ? 0 : queue["outstanding"].get<long>());
    }
    EXPECT_GE(sent, kDatagrams);
    EXPECT_GE(received, kDatagrams);
    EXPECT_EQ(parsed["strays"], 0);
}

}  // namespace
