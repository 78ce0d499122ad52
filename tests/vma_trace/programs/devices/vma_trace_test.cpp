// SPDX-License-Identifier: BSD-2-Clause
// vma_trace beside libvma, over the device that VMA_TEST_DEVICE names: the rings' own requests are traced as
// those of any other verbs program.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

// What the tracer wrote about a process that has ended.
struct Report {
    nlohmann::json json;
    std::vector<std::vector<std::string>> records;  // lines of the CSV file, without the heading

    explicit Report(const Scratch& scratch)
        : json(nlohmann::json::parse(scratch.read("report"), nullptr, false)) {
        std::istringstream lines(scratch.read("records"));
        std::string line;
        for (std::getline(lines, line); std::getline(lines, line);) {
            std::istringstream in(line);
            records.emplace_back();
            for (std::string field; std::getline(in, field, ',');) records.back().push_back(field);
        }
    }
    static std::vector<std::string> environment(const Scratch& scratch) {
        return {"VMA_TRACE_JSON=" + scratch.path("report"), "VMA_TRACE_CSV=" + scratch.path("records"),
                "VMA_TRACE_RECORDS=8192", "VMA_TRACE_QUIET=1"};
    }
    // Of all queues of one side.
    long sum(const char* side, const char* member) const {
        long all = 0;
        for (const auto& queue : json["queues"])
            if (queue["side"] == side) all += queue[member].get<long>();
        return all;
    }
    // Records with these in the columns "side", "opcode" and "bytes". Their times must make sense.
    long count(const std::string& side, const std::string& opcode, long bytes = -1) const {
        long n = 0;
        for (const auto& r : records) {
            if (r.at(2) != side || r.at(4) != opcode || (bytes >= 0 && r.at(5) != std::to_string(bytes)))
                continue;
            const double posted = std::stod(r.at(6)), completed = std::stod(r.at(7)),
                         latency = std::stod(r.at(8));
            EXPECT_GT(posted, 0);
            EXPECT_GE(completed, posted);
            EXPECT_NEAR(latency, completed - posted, .002);
            EXPECT_EQ(r.at(13), "0") << "its status";
            n++;
        }
        return n;
    }
};

// What the library counted, as its log at level debug says when the process ends; all rings together.
long counted(const std::string& log, const std::string& name) {
    long all = 0;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        if (line.find("counters of ") == line.npos) continue;
        const auto at = line.find(" " + name + " ");
        if (at != line.npos) all += std::stol(line.substr(at + name.size() + 2));
    }
    return all;
}

// A ping-pong of `transport` beside the tracer; `preload` is both libraries, in one order or the other.
void expect_each_request_once(const std::string& transport, const std::string& preload, long headers) {
    SCOPED_TRACE(transport);
    constexpr long kMessages = 300, kBytes = 333;
    const Scratch scratch;
    const TwoHosts hosts;
    Process server = hosts.run(Host::b, {VMA_PERF_TOOL, "server"});
    ASSERT_TRUE(server.wait_for_out("listens")) << server.err();
    RunOptions options;
    options.env = adapter_environment(hosts.netns(Host::a));
    options.env.push_back("LD_PRELOAD=" + preload + adapter_preload(hosts.netns(Host::a)));
    options.env.push_back("VMA_TRACELEVEL=debug");
    for (std::string& entry : Report::environment(scratch)) options.env.push_back(std::move(entry));
    const Exit client = hosts
                            .run(Host::a,
                                 {VMA_PERF_TOOL, "pingpong", TwoHosts::address(Host::b), "-t", transport,
                                  "-n", std::to_string(kMessages), "-s", std::to_string(kBytes), "--warmup",
                                  "0", "--verify", "--json"},
                                 options)
                            .wait(milliseconds(30000) * patience());
    ASSERT_EQ(client.code, 0) << client.err;
    const auto result = nlohmann::json::parse(client.out, nullptr, false);
    EXPECT_EQ(result.value("client", ""), "libvma");
    EXPECT_EQ(result.value("received", 0), kMessages);
    // Its options are none of libvma's.
    EXPECT_EQ(client.err.find("VMA_TRACE_"), std::string::npos) << client.err;

    const Report report(scratch);
    ASSERT_FALSE(report.json.is_discarded()) << client.err;
    EXPECT_EQ(report.json["strays"], 0);
    EXPECT_EQ(report.json["untraced"], 0);
    for (const auto& queue : report.json["queues"]) {
        EXPECT_EQ(queue["unmatched"], 0) << queue;
        EXPECT_EQ(queue["errors"], 0) << queue;
        EXPECT_EQ(queue["posted"].get<long>(), queue["completed"].get<long>() +
                                                   queue["outstanding"].get<long>() +
                                                   queue["forgotten"].get<long>())
            << queue;
        EXPECT_EQ(queue["device"].get<std::string>().starts_with(simulated() ? "mlx5_0" : "xdp:veth1"), true)
            << queue;
    }
    // As the library counts. Requests that send nothing (Device::mark) are no frames.
    // Preloaded before the library, the tracer ends first: a connection's last frames come and go while the
    // library ends.
    const long most = preload.starts_with(VMA_TRACE_LIBRARY) ? 4 : 0;
    const long late_sends =
        counted(client.err, "tx_frames") + report.count("send", "driver") - report.sum("send", "posted");
    EXPECT_GE(late_sends, 0) << client.err;
    EXPECT_LE(late_sends, most) << client.err;
    const long late = counted(client.err, "rx_frames") - report.sum("receive", "completed");
    EXPECT_GE(late, 0) << client.err;
    EXPECT_LE(late, most) << client.err;
    EXPECT_EQ(report.sum("receive", "bytes") + 66 * late, counted(client.err, "rx_bytes")) << client.err;
    // As the program counts. Sends are not signalled one by one: the last ones need not have completed. TCP
    // may send again.
    const long unfinished = report.sum("send", "outstanding") + report.sum("send", "forgotten");
    const long sent = report.count("send", "send", kBytes + headers);
    const long received = report.count("receive", "receive", kBytes + headers);
    EXPECT_GE(sent, kMessages - unfinished);
    EXPECT_GE(received, kMessages);
    if (transport == "udp") {
        EXPECT_LE(sent, kMessages);
        EXPECT_EQ(received, kMessages);
    }
}

TEST(VmaTrace, CountsEachRequestOfLibvmasRingsOnce) {
    expect_each_request_once("udp", VMA_TRACE_LIBRARY ":" + library(), 14 + 20 + 8);
    expect_each_request_once("tcp", library() + ":" VMA_TRACE_LIBRARY, 14 + 20 + 20 + 12);
}

}  // namespace
