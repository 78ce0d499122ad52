// SPDX-License-Identifier: BSD-2-Clause
// An adapter that fails under a running program: MLX5_SIM_FAIL_AFTER (tests/support/mlx5_sim/sim.h). The
// netdev behind it goes on, so the kernel can take over: the program loses no byte of a stream, no more than
// the datagrams that were under way, and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/support/hosts/device.h"
#include "tests/support/hosts/two_hosts.h"

namespace {

using namespace testing_support;
using nlohmann::json;
using testing::HasSubstr;

constexpr unsigned kRequests = 3000;

class DeviceFailure : public testing::Test {
  protected:
    // vma_perf on both hosts, with the library at the client or the server, whose adapter fails in the middle
    // of the run. The client's result: all requests are accounted for, and none of the answers was wrong.
    json run(const std::string& words, Host with_library, const std::string& how = "",
             const std::string& why = "the device has failed") {
        const RunOptions plain;
        RunOptions library{.preload = true, .env = {"MLX5_SIM_FAIL_AFTER=1000", "VMA_TRACELEVEL=info"}};
        if (!how.empty()) library.env.push_back(how + "=1");
        const bool at_server = with_library == Host::b;
        Process server =
            hosts.run(Host::b, {vma_perf(), "server", "--clients", "1"}, at_server ? library : plain);
        EXPECT_TRUE(server.wait_for_out("listens")) << server.err();
        std::vector<std::string> argv = {vma_perf()};
        std::istringstream in(words);
        for (std::string word; in >> word;) {
            argv.push_back(word);
            if (argv.size() == 2) argv.push_back(TwoHosts::address(Host::b));
        }
        const Exit client = hosts.run(Host::a, argv, at_server ? plain : library).wait(milliseconds(30000));
        const Exit end = server.wait(milliseconds(10000));
        EXPECT_TRUE(end.ok()) << end.err;
        const std::string& log = at_server ? end.err : client.err;
        EXPECT_THAT(log, HasSubstr("offloaded by " + device_name() + ":"));
        EXPECT_THAT(log, HasSubstr(why + "; the kernel serves its sockets from now on"));
        EXPECT_EQ(client.code, 0) << client.err << log;
        const json r = json::parse(client.out, nullptr, false);
        if (r.is_discarded()) return json::object();
        EXPECT_EQ(r.value("received", 0u) + r.value("lost", 0u), kRequests) << client.out;
        EXPECT_EQ(r.value("corrupt", 1u), 0u) << client.out;
        return r;
    }
    void streams(const std::string& how = "", const std::string& why = "the device has failed",
                 const std::vector<Host>& sides = {Host::a, Host::b}) {
        for (Host with_library : sides) {
            const json r = run("pingpong -t tcp -c 3 -w 4 -s 16-1400 --timeout 25 --verify --json -n " +
                                   std::to_string(kRequests),
                               with_library, how, why);
            EXPECT_EQ(r.value("lost", 1u), 0u) << r;
            EXPECT_EQ(r.value("received", 0u), kRequests) << r;
        }
    }
    TwoHosts hosts;
};

// With the library at the client, then at the server.
TEST_F(DeviceFailure, StreamsGoOnWithoutALostByte) { streams(); }

// The adapter's rules go 50 ms before it tells. The kernel, which knows no such connections, gets their
// segments meanwhile.
TEST_F(DeviceFailure, StreamsGoOnWhereTheRulesGoBeforeTheEvent) { streams("MLX5_SIM_RULES_FIRST"); }

// It sends and receives nothing any more, and no event tells: that no completion comes does.
TEST_F(DeviceFailure, StreamsGoOnWhereTheAdapterIsSilent) {
    streams("MLX5_SIM_STALLS", "nothing that was sent has left for 5 s", {Host::b});
}

TEST_F(DeviceFailure, DatagramsGoOnThroughTheKernel) {
    for (Host with_library : {Host::a, Host::b}) {
        const json r =
            run("pingpong -t udp -w 4 --verify --json -n " + std::to_string(kRequests), with_library);
        // Those that were on their way into the adapter when it failed.
        EXPECT_LE(r.value("lost", kRequests), 64u) << r;
    }
}

}  // namespace
