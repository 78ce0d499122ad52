// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_trace/report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/vma_trace/fake_device.h"
#include "tools/vma_trace/hooks.h"

namespace {

using namespace vma_trace;
using vma_trace_test::FakeDevice;

std::string written(void (*write)(Registry&, const TimeScale&, Output&), Registry& registry) {
    const int fd = memfd_create("report", MFD_CLOEXEC);
    {
        Output out(fd);
        write(registry, {0, 2}, out);  // two ticks a nanosecond
    }
    std::string text(static_cast<std::size_t>(lseek(fd, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    close(fd);
    return text;
}

// Registries are never destroyed, as that of a process.
Registry* new_registry() {
    static auto& all = *new std::vector<Registry*>;
    return all.emplace_back(new Registry);
}

// A registry of its own, with a queue of four requests.
struct Reports : testing::Test {
    Reports() {
        registry->options.lines = 2;
        registry->add_context(device.context());
        ibv_cq* cq = device.make_cq();
        ibv_qp* qp = device.make_qp(cq, cq, 17);
        WorkQueue& queue = *registry->qp(qp)->send;
        for (std::uint64_t i = 0; i < 4; i++) {
            queue.prepare(i, 1000, IBV_WR_SEND, i % 2 == 1);
            queue.publish(2000 * (i + 1));
        }
        queue.complete({1, 0, IBV_WC_SUCCESS, false, 0}, 24'000);
        queue.complete({3, 0, IBV_WC_RETRY_EXC_ERR, false, 0}, 28'000);
    }
    FakeDevice device;
    Registry* registry = new_registry();
};

TEST_F(Reports, AnObjectForPrograms) {
    const auto report = nlohmann::json::parse(written(write_json, *registry));
    ASSERT_EQ(report["queues"].size(), 1u);
    const auto& queue = report["queues"][0];
    EXPECT_EQ(queue["device"], "fake0");
    EXPECT_EQ(queue["side"], "send");
    EXPECT_EQ(queue["qp"], 17);
    EXPECT_EQ(queue["posted"], 4);
    EXPECT_EQ(queue["completed"], 4);
    EXPECT_EQ(queue["completions"], 2);
    EXPECT_EQ(queue["errors"], 1);
    EXPECT_EQ(queue["bytes"], 3000);
    EXPECT_DOUBLE_EQ(queue["latency_us"]["max"].get<double>(), 11.0);
    EXPECT_DOUBLE_EQ(queue["gap_us"]["max"].get<double>(), 2.0);
}

TEST_F(Reports, ATextForPeople) {
    const std::string text = written(write_text, *registry);
    EXPECT_NE(text.find("fake0 RC 17 send\n  4 posted, 4 completed (2 completions), 0 under way, 3000 bytes"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("1 completions with errors"), std::string::npos) << text;
    EXPECT_NE(text.find("wr_id=2 send 1000 bytes, posted 3.000 us, completed 14.000 us, latency 11.000 us"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("unsignalled"), std::string::npos) << text;
    EXPECT_NE(text.find(", failed"), std::string::npos) << text;
    EXPECT_EQ(text.find("wr_id=1 "), std::string::npos) << text;
}

TEST_F(Reports, ALineForEachRequest) {
    const std::string text = written(write_csv, *registry);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
    EXPECT_NE(text.find("\nfake0,17,send,0,send,1000,1.000,12.000,11.000,0.727273,0.000,0,0,0\n"),
              std::string::npos)
        << text;
}

TEST_F(Reports, WithoutRequestsTheySaySo) {
    Registry& none = *new_registry();
    EXPECT_NE(written(write_text, none).find("no work request was posted"), std::string::npos);
    EXPECT_TRUE(nlohmann::json::parse(written(write_json, none))["queues"].empty());
}

TEST(TraceOptions, AreReadFromTheTable) {
    std::vector<std::string> complaints;
    const Options options = read_options(
        [](const char* name) -> const char* {
            const std::string_view n = name;
            if (n == "VMA_TRACE_FILE") return "/tmp/x.%d";
            if (n == "VMA_TRACE_RECORDS") return "0";
            if (n == "VMA_TRACE_LINES") return "12x";
            if (n == "VMA_TRACE_SIGNALS") return "2";
            if (n == "VMA_TRACE_HARDWARE_TIME") return "0";
            return nullptr;
        },
        complaints);
    EXPECT_EQ(options.file, "/tmp/x.%d");
    EXPECT_EQ(options.records, 0u);
    EXPECT_EQ(options.lines, 0u);
    EXPECT_TRUE(options.signals);
    EXPECT_FALSE(options.hardware_time);
    ASSERT_EQ(complaints.size(), 2u);
    EXPECT_EQ(complaints[0], "VMA_TRACE_LINES=12x: expected a number from 0 to 16777216; 0 is used");
    EXPECT_EQ(complaints[1], "VMA_TRACE_SIGNALS=2: expected a number from 0 to 1; 1 is used");
}

}  // namespace
