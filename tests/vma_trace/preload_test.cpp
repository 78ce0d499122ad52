// SPDX-License-Identifier: BSD-2-Clause
// The library itself, preloaded into a program with a device of its own (traced_program).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace {

struct TracePreload : testing::Test {
    void SetUp() override {
        if (std::string_view(VMA_SANITIZERS) != "")
            GTEST_SKIP() << "a sanitizer's runtime must be the first library";
        char name[] = "/tmp/vma_trace_test.XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        directory = name;
    }
    void TearDown() override {
        for (const char* file : {"/out", "/err", "/json", "/text", "/csv"})
            unlink((directory + file).c_str());
        if (!directory.empty()) rmdir(directory.c_str());
    }
    std::string file(const char* name) const {
        std::ifstream in(directory + "/" + name);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // Runs the program and returns its wait status.
    int run(const std::string& arguments, const std::string& environment = "") {
        const std::string command = "exec env LD_PRELOAD=" VMA_TRACE_LIBRARY " VMA_TRACE_JSON=" + directory +
                                    "/json " + environment + " " VMA_TRACE_PROGRAM " " + arguments + " >" +
                                    directory + "/out 2>" + directory + "/err";
        return std::system(command.c_str());
    }
    nlohmann::json only_queue() {
        const auto report = nlohmann::json::parse(file("json"), nullptr, false);
        if (report.is_discarded() || report["queues"].size() != 1) {
            ADD_FAILURE() << "no report of one queue: " << file("json");
            return {};
        }
        return report["queues"][0];
    }
    std::string directory;
};

TEST_F(TracePreload, ReportsWhenTheProgramReturns) {
    EXPECT_EQ(run("return 50"), 0);
    const auto queue = only_queue();
    EXPECT_EQ(queue["device"], "own0");
    EXPECT_EQ(queue["posted"], 50);
    EXPECT_EQ(queue["completed"], 50);
    EXPECT_EQ(queue["bytes"], 50 * 64);
    EXPECT_NE(file("err").find("own0 RC 1 send"), std::string::npos) << file("err");
}

TEST_F(TracePreload, ReportsHoweverTheProgramEnds) {
    const struct {
        const char* how;
        bool signalled;
        int code;
    } ends[] = {
        {"exit", false, 3}, {"quick_exit", false, 4}, {"abort", true, SIGABRT}, {"term", true, SIGTERM}};
    for (const auto& end : ends) {
        SCOPED_TRACE(end.how);
        const int status = run(end.how);
        EXPECT_EQ(WIFSIGNALED(status), end.signalled);
        EXPECT_EQ(end.signalled ? WTERMSIG(status) : WEXITSTATUS(status), end.code);
        EXPECT_EQ(only_queue()["posted"], 100);
        unlink((directory + "/json").c_str());
    }
}

// As docs/vma_trace.md says.
TEST_F(TracePreload, WhatNobodyTellsUsOfIsLost) {
    const struct {
        const char* how;
        bool signalled;
        int code;
    } ends[] = {{"_exit", false, 5}, {"kill", true, SIGKILL}, {"segv", true, SIGSEGV}};
    for (const auto& end : ends) {
        SCOPED_TRACE(end.how);
        const int status = run(end.how);
        EXPECT_EQ(WIFSIGNALED(status), end.signalled);
        EXPECT_EQ(end.signalled ? WTERMSIG(status) : WEXITSTATUS(status), end.code);
        EXPECT_EQ(file("json"), "");
        EXPECT_EQ(file("err"), "");
    }
    // The second program is traced, the first one's 100 requests are not in its report.
    EXPECT_EQ(run("exec"), 0);
    EXPECT_EQ(only_queue()["posted"], 10);
}

TEST_F(TracePreload, LeavesTheProgramsOwnHandlersAlone) {
    const int status = run("handled");
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(file("json"), "");
}

TEST_F(TracePreload, SignalsAreLeftAloneWhereWanted) {
    const int status = run("term", "VMA_TRACE_SIGNALS=0");
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(file("json"), "");
}

TEST_F(TracePreload, AForkedChildDoesNotReport) {
    EXPECT_EQ(run("fork"), 0);
    const std::string text = file("err");
    EXPECT_EQ(text.find("vma_trace: process"), text.rfind("vma_trace: process"));
    EXPECT_EQ(only_queue()["posted"], 100);
}

TEST_F(TracePreload, CountsMoreRequestsThanItKeeps) {
    EXPECT_EQ(run("return 5000",
                  "VMA_TRACE_RECORDS=16 VMA_TRACE_OUTSTANDING=4 VMA_TRACE_CSV=" + directory + "/csv"),
              0);
    const auto queue = only_queue();
    EXPECT_EQ(queue["completed"], 5000);
    EXPECT_EQ(queue["forgotten"], 0);
    EXPECT_EQ(queue["latency_us"]["count"], 5000);
    EXPECT_EQ(queue["gap_us"]["count"], 4999);
    // The last ones, in order.
    std::istringstream lines(file("csv"));
    std::string line;
    std::getline(lines, line);
    for (int i = 5000 - 16; i < 5000; i++) {
        ASSERT_TRUE(std::getline(lines, line));
        // The program numbers them from 0 again after the first.
        EXPECT_TRUE(line.starts_with("own0,1,send," + std::to_string(i - 1) + ",")) << line;
    }
    EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(TracePreload, ThreadsAreToldApart) {
    EXPECT_EQ(run("threads 5000"), 0);
    const auto report = nlohmann::json::parse(file("json"));
    ASSERT_EQ(report["queues"].size(), 4u);
    for (const auto& queue : report["queues"]) {
        EXPECT_EQ(queue["completed"], 5000);
        EXPECT_EQ(queue["unmatched"], 0);
    }
}

TEST_F(TracePreload, WritesWhatIsAskedFor) {
    EXPECT_EQ(run("return 10", "VMA_TRACE_FILE=" + directory + "/text VMA_TRACE_CSV=" + directory +
                                   "/csv VMA_TRACE_LINES=2"),
              0);
    EXPECT_EQ(file("err"), "");
    EXPECT_NE(file("text").find("wr_id=8 "), std::string::npos) << file("text");
    const std::string lines = file("csv");
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 11);
}

TEST_F(TracePreload, SaysWhatItCannotDo) {
    EXPECT_EQ(run("return", "VMA_TRACE_LINES=many VMA_TRACE_CSV=/nowhere/file"), 0);
    EXPECT_NE(file("err").find("VMA_TRACE_LINES=many: expected a number"), std::string::npos) << file("err");
    EXPECT_NE(file("err").find("vma_trace: /nowhere/file: No such file or directory"), std::string::npos)
        << file("err");
    EXPECT_EQ(run("return", "VMA_TRACE_QUIET=1"), 0);
    EXPECT_EQ(file("err"), "");
}

TEST_F(TracePreload, ProgramsThatLoadLibibverbsThemselvesGetOurFunctions) {
    EXPECT_EQ(run("dlopen"), 0);
    const std::string found = file("out");
    for (const char* line :
         {"dlsym:ibv_open_device libvma_trace.so\n", "dlvsym:ibv_open_device@1.1 libvma_trace.so\n",
          "dlvsym:ibv_open_device@1.0 libibverbs.so", "dlsym:ibv_get_device_list libibverbs.so",
          "dlsym:ibv_nonsense nowhere\n", "next:getpid libc.so.6\n", "devices asked\n"})
        EXPECT_NE(found.find(line), std::string::npos) << line << found;
    // It opened nothing.
    EXPECT_EQ(file("json"), "");
}

TEST_F(TracePreload, ProgramsWithoutVerbsNoticeNothing) {
    const std::string command = "LD_PRELOAD=" VMA_TRACE_LIBRARY " /bin/true 2>" + directory + "/err";
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(file("err"), "");
}

}  // namespace
