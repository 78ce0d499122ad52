// SPDX-License-Identifier: BSD-2-Clause
// vma_trace in a program of plain verbs on a simulated ConnectX adapter, under the real libibverbs and
// libmlx5.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

// Sends `count` datagrams to port 4711 of host a and wants each back; runs on host b. 0 if all came.
int converse(int count) {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(4711);
    to.sin_addr.s_addr = inet_addr(TwoHosts::address(Host::a).c_str());
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return 2;
    for (int i = 0; i < count; i++) {
        char message[200] = {};
        pollfd waiting{fd, POLLIN, 0};
        if (send(fd, message, sizeof message, 0) != sizeof message || poll(&waiting, 1, 5000) != 1) return 3;
        if (recv(fd, message, sizeof message, 0) != sizeof message) return 4;
    }
    return 0;
}

TEST(VmaTrace, GivesAPlainCqTheAdaptersTimeStamps) {
    constexpr int kDatagrams = 100;
    const Scratch scratch;
    const TwoHosts hosts;
    const std::string sysfs = scratch.path("sys");
    const std::string link = hosts.ip(Host::a, {"-o", "link", "show", TwoHosts::interface()});
    const std::string mac = link.substr(link.find("link/ether ") + 11, 17);
    ASSERT_EQ(Process::run({SIM_SYSFS_TOOL, sysfs, TwoHosts::interface() + "=" + mac}, {}).wait().code, 0);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const Fd theirs(ends[0]);
    Fd input(ends[1]);
    RunOptions options;
    options.env = {"SYSFS_PATH=" + sysfs, "LD_PRELOAD=" VMA_TRACE_LIBRARY ":" SIM_LIBRARY,
                   "MLX5_SIM_WIRE=netdev", "VMA_TRACE_JSON=" + scratch.path("report")};
    options.fds = {{theirs.get(), STDIN_FILENO}};
    Process program = hosts.run(Host::a, {SIM_ECHO, "4711"}, options);
    ASSERT_TRUE(program.wait_for_out("ready")) << program.err();
    EXPECT_EQ(hosts.run(Host::b, [] { return converse(kDatagrams); }, {}).wait().code, 0);
    input.reset();
    const Exit exit = program.wait();
    EXPECT_EQ(exit.code, 0) << exit.err;

    const auto parsed = nlohmann::json::parse(scratch.read("report"), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << exit.err;
    EXPECT_EQ(parsed["strays"], 0);
    ASSERT_EQ(parsed["queues"].size(), 2u) << parsed;
    for (const auto& queue : parsed["queues"]) {
        EXPECT_EQ(queue["device"], "mlx5_0");
        EXPECT_EQ(queue["kind"], "RAW");
        EXPECT_EQ(queue["completed"], kDatagrams) << queue;
        EXPECT_EQ(queue["unmatched"], 0) << queue;
        EXPECT_EQ(queue["bytes"], kDatagrams * (200 + 8 + 20 + 14)) << queue;
        // Of the adapter's clock: the gaps add up to the time from the first completion to the last, nearly
        // all of the run.
        const auto& gap = queue["hardware_gap_us"];
        EXPECT_EQ(gap["count"], kDatagrams - 1) << queue;
        EXPECT_GT(gap["min"].get<double>(), 0) << queue;
        EXPECT_LT(gap["mean"].get<double>() * (kDatagrams - 1), 1e6 * queue["seconds"].get<double>() * 1.5)
            << queue;
        EXPECT_GT(gap["max"].get<double>(), gap["min"].get<double>()) << queue;
    }
    // In the summary for people, too.
    for (const char* row : {"\n  latency ", "\n  gap ", "\n  hardware gap "})
        EXPECT_NE(exit.err.find(row), std::string::npos) << exit.err;
}

}  // namespace
