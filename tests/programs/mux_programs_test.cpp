// SPDX-License-Identifier: BSD-2-Clause
// Programs with event loops of their own, as they come: node (libuv), Boost.Asio and Boost.Beast; and what a
// process costs that has nothing to do. (memcached, which is libevent, is in tcp_programs_test.cpp.)
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

std::vector<Sides> all_sides() {
    return {{.server = true}, {.client = true}, {.server = true, .client = true}};
}
std::string side_name(const ::testing::TestParamInfo<Sides>& info) { return name_of(info.param); }

// ---- node ----

class Node : public ProgramTest {};

TEST_P(Node, HttpServerAndClient) {
    need({"node"});
    const std::string script = VMA_SOURCE_DIR "/tests/programs/scripts/node_http.js";
    auto node = server({"node", script, "server", address, "8000"});
    ASSERT_TRUE(node.wait_listening(8000)) << node.process().err();
    EXPECT_EQ(expect_client({"node", script, "client", address, "8000", "400"}), "verified 400, failed 0\n");
    Exit end = node.end(SIGTERM);
    EXPECT_TRUE(end.ok()) << end.code << end.err;
}

INSTANTIATE_TEST_SUITE_P(MuxPrograms, Node, ::testing::ValuesIn(all_sides()), side_name);

// ---- Boost ----

class Boost : public ProgramTest {
  protected:
    void expect_requests(const std::string& kind, int requests) {
        auto beast = server({app("beast_http"), "server", address, "8000"});
        ASSERT_TRUE(beast.wait_listening(8000)) << beast.process().err();
        EXPECT_EQ(expect_client({app("beast_http"), kind, address, "8000", std::to_string(requests)}),
                  "verified " + std::to_string(requests) + ", failed 0\n");
        Exit end = beast.end(SIGTERM);
        EXPECT_TRUE(end.ok()) << end.code << end.err;
    }
};

TEST_P(Boost, BeastBlockingClient) { expect_requests("sync", 200); }
TEST_P(Boost, BeastAsynchronousClient) { expect_requests("async", 400); }
TEST_P(Boost, AsioHttpClient) { expect_requests("asio", 100); }

INSTANTIATE_TEST_SUITE_P(MuxPrograms, Boost, ::testing::ValuesIn(all_sides()), side_name);

}  // namespace
