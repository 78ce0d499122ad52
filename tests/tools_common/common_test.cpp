// SPDX-License-Identifier: BSD-2-Clause
// The small parts: descriptors, numbers, files, sums, signals, JSON, command lines.
#include <gtest/gtest.h>

#include <cerrno>
#include <climits>
#include <string>
#include <utility>

#include "tools/common/cli.h"
#include "tools/common/clock.h"
#include "tools/common/fd.h"
#include "tools/common/files.h"
#include "tools/common/json.h"
#include "tools/common/numbers.h"
#include "tools/common/signals.h"
#include "tools/common/sums.h"

namespace tools {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(CommonFd, ClosesOnce) {
    Pipe pipe = make_pipe();
    ASSERT_TRUE(pipe.read);
    EXPECT_EQ(fcntl(pipe.read.get(), F_GETFD), FD_CLOEXEC);
    const int number = pipe.read.get();
    Fd moved(std::move(pipe.read));
    EXPECT_EQ(moved.get(), number);
    EXPECT_TRUE(is_open(number));
    moved.reset();
    EXPECT_FALSE(moved);
    EXPECT_FALSE(is_open(number));
    const int other = pipe.write.get();
    pipe.write = Fd();
    EXPECT_FALSE(is_open(other));
}

TEST(CommonNumbers, WholeTexts) {
    EXPECT_EQ(whole_number<unsigned>("42"), 42u);
    EXPECT_EQ(whole_number<std::size_t>("18446744073709551615"), SIZE_MAX);
    for (const char* wrong : {"", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616"})
        EXPECT_EQ(whole_number<std::size_t>(wrong), std::nullopt) << wrong;
}

TEST(CommonNumbers, Ranges) {
    using Ranges = std::vector<Range>;
    EXPECT_EQ(parse_ranges("4-16,9", INT_MAX), (Ranges{{4, 16}, {9, 9}}));
    EXPECT_EQ(parse_ranges("0", 0), (Ranges{{0, 0}}));
    for (const char* wrong : {"", ",", "1,", "1-", "-1", "2-1", "1;2", "1-2-3", "11", "1-11", "99999999999"})
        EXPECT_EQ(parse_ranges(wrong, 10), std::nullopt) << wrong;
}

TEST(CommonFiles, ReadsAndPrints) {
    EXPECT_EQ(read_file("/proc/self/comm").value_or("").back(), '\n');
    EXPECT_EQ(read_file("/no/such/file").error(), ENOENT);
    EXPECT_EQ(read_file("/").error(), EISDIR);
    FILE* const full = fopen("/dev/full", "we");
    ASSERT_NE(full, nullptr);
    EXPECT_FALSE(print("text", full));
    fclose(full);
}

TEST(CommonSums, AddsMembers) {
    struct Pair {
        int a = 1, b = 2, c = 3;
    } to, from;
    static constexpr int Pair::*kMembers[] = {&Pair::a, &Pair::c};
    add_members(to, from, kMembers);
    EXPECT_EQ(to.a, 2);
    EXPECT_EQ(to.b, 2);
    EXPECT_EQ(to.c, 6);
}

TEST(CommonSignals, IgnoredOnesStayIgnored) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    signal(SIGUSR1, SIG_IGN);
    EXPECT_FALSE(handle_unless_ignored(SIGUSR1, action));
    EXPECT_EQ(signal(SIGUSR1, SIG_DFL), SIG_IGN);
    EXPECT_TRUE(handle_unless_ignored(SIGUSR1, action));
    EXPECT_EQ(signal(SIGUSR1, SIG_DFL), action.sa_handler);
}

TEST(CommonJson, AnyBytes) {
    EXPECT_EQ(json_text(nlohmann::json{{"a", 1}}), "{\"a\":1}\n");
    EXPECT_EQ(json_text(nlohmann::json{{"a", 1}}, 1), "{\n \"a\": 1\n}\n");
    EXPECT_EQ(json_text(nlohmann::json("\xff")), "\"\xef\xbf\xbd\"\n");
}

TEST(CommonClock, Runs) {
    const auto before = now_ns(CLOCK_MONOTONIC);
    EXPECT_GT(before, 0);
    EXPECT_GE(now_ns(CLOCK_MONOTONIC), before);
}

Said run(const std::vector<const char*>& words) {
    CLI::App app("A program.", "program");
    add_usual_flags(app, "program 1", 20);
    int number = 0;
    app.add_option("--number", number, "A number")->check(in_range(1, 5));
    return parse_with(app, "program 1", "program", "Try --help.",
                      [&] { app.parse(static_cast<int>(words.size()), words.data()); });
}

TEST(CommonOptions, SaysWhatThereIsToSay) {
    EXPECT_EQ(run({"program", "--number", "3"}).out, "");
    EXPECT_EQ(run({"program", "-V"}).out, "program 1\n");
    EXPECT_NE(run({"program", "--help"}).out.find("A number"), std::string::npos);
    const Said wrong = run({"program", "--number", "9"});
    EXPECT_EQ(wrong.status, kUsageError);
    EXPECT_TRUE(wrong.err.starts_with("program: --number: ")) << wrong.err;
    EXPECT_TRUE(wrong.err.ends_with("\nTry --help.\n")) << wrong.err;
}

}  // namespace
}  // namespace tools
