// SPDX-License-Identifier: BSD-2-Clause
// The command line: every option of the manual, long and short, and what is wrong.
#include "tools/vma_stats/options.h"

#include <gmock/gmock.h>
#include <stdlib.h>

namespace {

using namespace vma_stats;
using testing::HasSubstr;
using vma::stats::Command;

Parsed parse(std::vector<std::string> words) {
    std::vector<const char*> argv{"vma_stats"};
    for (const auto& word : words) argv.push_back(word.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data());
}
Options good(const std::vector<std::string>& words) {
    Parsed parsed = parse(words);
    EXPECT_TRUE(parsed.options) << parsed.err;
    return parsed.options ? *parsed.options : Options{};
}
void expect_wrong(const std::vector<std::string>& words, const std::string& message) {
    const Parsed parsed = parse(words);
    EXPECT_FALSE(parsed.options);
    EXPECT_EQ(parsed.status, 2);
    EXPECT_EQ(parsed.out, "");
    EXPECT_THAT(parsed.err, testing::StartsWith("vmastat: "));
    EXPECT_THAT(parsed.err, HasSubstr(message));
}

TEST(StatsOptions, Defaults) {
    unsetenv("VMA_STATS_SHMEM_DIR");
    const Options o = good({});
    EXPECT_FALSE(o.pid);
    EXPECT_EQ(o.view, 1);
    EXPECT_FALSE(o.shape.deltas);
    EXPECT_EQ(o.interval, 1);
    EXPECT_EQ(o.cycles, 0);
    EXPECT_TRUE(o.clean);
    EXPECT_EQ(o.directory, "/dev/shm");
    EXPECT_TRUE(o.instructions.empty());
    setenv("VMA_STATS_SHMEM_DIR", "/run/statistics", 1);
    EXPECT_EQ(good({}).directory, "/run/statistics");
    unsetenv("VMA_STATS_SHMEM_DIR");
}

TEST(StatsOptions, ShortAndLong) {
    for (const auto& words : std::vector<std::vector<std::string>>{
             {"-p", "12", "-v", "3", "-d", "2", "-i", "0.5", "-c", "4", "-F", "-s", "4-6,9", "-k", "/x"},
             {"--pid", "12", "--view", "3", "--details", "2", "--interval", "0.5", "--cycles", "4",
              "--forbid_clean", "--sockets", "4-6,9", "--directory", "/x"},
             {"--pid=12", "--view=3", "--details=2", "--interval=0.5", "--cycles=4", "--forbid-clean",
              "--sockets=4-6,9", "--directory=/x"},
             {"-p12", "-v3", "-d2", "-i=0.5", "-c=4", "-F", "-s=4-6,9", "-k/x"}}) {
        const Options o = good(words);
        EXPECT_EQ(o.pid, 12);
        EXPECT_EQ(o.view, 3);
        EXPECT_TRUE(o.shape.deltas);
        EXPECT_EQ(o.interval, 0.5);
        EXPECT_EQ(o.cycles, 4);
        EXPECT_FALSE(o.clean);
        EXPECT_TRUE(o.shape.sockets.contains(5));
        EXPECT_FALSE(o.shape.sockets.contains(7));
        EXPECT_EQ(o.directory, "/x");
    }
    EXPECT_EQ(good({"-n", "sockperf"}).name, "sockperf");
    EXPECT_EQ(good({"--name=sockperf", "--find_pid"}).name, "sockperf");
    EXPECT_TRUE(good({"-f", "--wait"}).wait);
}

TEST(StatsOptions, Commands) {
    const Options o = good({"-l", "debug", "-D", "3", "-S", "14", "fine", "-z"});
    ASSERT_EQ(o.instructions.size(), 4u);
    EXPECT_EQ(o.instructions[0].command, Command::log_level);
    EXPECT_EQ(o.instructions[0].value, 4);
    EXPECT_EQ(o.instructions[1].command, Command::log_details);
    EXPECT_EQ(o.instructions[1].value, 3);
    EXPECT_EQ(o.instructions[2].command, Command::dump_socket);
    EXPECT_EQ(o.instructions[2].value, 14);
    EXPECT_EQ(o.instructions[2].level, 5);
    EXPECT_EQ(o.instructions[3].command, Command::zero);
    EXPECT_TRUE(o.only_instructions);
    EXPECT_FALSE(good({"--zero", "-v", "1"}).only_instructions);
    EXPECT_FALSE(good({"-z", "-d", "2"}).only_instructions);
    EXPECT_EQ(good({"--dump", "0"}).instructions[0].level, 3);
    EXPECT_EQ(good({"--details_level=1"}).instructions[0].value, 1);
    EXPECT_EQ(good({"--log_level=all"}).instructions[0].value, 6);
}

TEST(StatsOptions, LogLevels) {
    const std::pair<const char*, int> kLevels[] = {
        {"none", -1},   {"panic", 0}, {"error", 1}, {"WARN", 2}, {"warning", 2}, {"info", 3},
        {"details", 3}, {"Debug", 4}, {"func", 5},  {"fine", 5}, {"finer", 6},   {"func_all", 6},
        {"all", 6},     {"0", 0},     {"6", 6},     {"7", 6}};
    for (const auto& [text, level] : kLevels) EXPECT_EQ(log_level(text), level) << text;
    for (const char* bad : {"", "8", "-2", "loud", "3 ", "10"}) EXPECT_FALSE(log_level(bad)) << bad;
    EXPECT_STREQ(log_level_name(4), "debug");
    EXPECT_STREQ(log_level_name(42), "unknown");
}

TEST(StatsOptions, Outputs) {
    EXPECT_EQ(good({"--json"}).output, Output::json);
    EXPECT_EQ(good({"--json"}).cycles, 0);
    EXPECT_EQ(good({"--top"}).output, Output::top);
    EXPECT_EQ(good({"--explain"}).cycles, 1);
    EXPECT_EQ(good({"--explain", "-i", "2"}).cycles, 0);
    EXPECT_EQ(good({"-v", "5"}).cycles, 1);
    EXPECT_EQ(good({"-v", "4", "-c", "3"}).cycles, 3);
    EXPECT_EQ(good({"--parameters"}).output, Output::parameters);
    EXPECT_EQ(good({"--prometheus"}).output, Output::prometheus);
    EXPECT_EQ(good({"--prometheus"}).cycles, 1);
    EXPECT_EQ(good({"--prometheus=9100"}).output, Output::serve);
    EXPECT_EQ(good({"--prometheus=127.0.0.1:9100"}).listen, "127.0.0.1:9100");
    EXPECT_EQ(good({"--listen", "[::1]:0"}).listen, "[::1]:0");
    EXPECT_EQ(good({"--listen", ":9100"}).output, Output::serve);
}

TEST(StatsOptions, HelpAndVersion) {
    for (const char* word : {"-h", "--help"}) {
        const Parsed parsed = parse({word});
        EXPECT_EQ(parsed.status, 0);
        EXPECT_EQ(parsed.err, "");
        for (const char* option :
             {"-p,--pid", "-v,--view", "-d,--details", "-i,--interval", "-c,--cycles", "-n,--name",
              "-f,--find_pid", "-F,--forbid_clean", "-z,--zero", "-l,--log_level", "-D,--details_level",
              "-s,--sockets", "-V,--version", "-h,--help", "-k,--directory", "-S,--dump"})
            EXPECT_THAT(parsed.out, HasSubstr(option));
    }
    EXPECT_EQ(parse({"-V"}).out, "vma_stats " VMA_VERSION "\n");
    EXPECT_EQ(parse({"--version"}).status, 0);
}

TEST(StatsOptions, WrongOnes) {
    expect_wrong({"-v", "6"}, "--view");
    expect_wrong({"-v", "x"}, "--view");
    expect_wrong({"-d", "0"}, "--details");
    expect_wrong({"-p", "0"}, "--pid");
    expect_wrong({"-p", "-4"}, "--pid");
    expect_wrong({"-p", "12x"}, "--pid");
    expect_wrong({"-p"}, "--pid");
    expect_wrong({"-i", "0"}, "--interval");
    expect_wrong({"-i", "nan"}, "--interval");
    expect_wrong({"-i", "inf"}, "--interval");
    expect_wrong({"-c", "-1"}, "--cycles");
    expect_wrong({"-s", "9-4"}, "9-4 is no list");
    expect_wrong({"-l", "loud"}, "loud is none of none, panic");
    expect_wrong({"-D", "4"}, "--details_level");
    expect_wrong({"-S", "x"}, "x is no descriptor");
    expect_wrong({"-S", "1", "loud"}, "loud is no log level");
    expect_wrong({"-n", ""}, "--name");
    expect_wrong({"-p", "1", "-n", "x"}, "--pid: does not go together with --name");
    expect_wrong({"--json", "-v", "2"}, "does not go together");
    expect_wrong({"--prometheus=nowhere"}, "expected PORT");
    expect_wrong({"--listen", "127.0.0.1:99999"}, "expected PORT");
    expect_wrong({"--listen", "::1:80"}, "expected PORT");
    expect_wrong({"--frobnicate"}, "--frobnicate");
    expect_wrong({"extra"}, "extra");
}

}  // namespace
