// SPDX-License-Identifier: BSD-2-Clause
// The parameters: each row of the table is read, checked and documented.
#include "libvma/config/params.h"
#include "libvma/runtime/cpus.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace {

using namespace vma::config;
using testing::ElementsAre;
using testing::IsEmpty;

std::map<std::string, std::string> g_environment;

const char* lookup(const char* name) {
    auto at = g_environment.find(name);
    return at == g_environment.end() ? nullptr : at->second.c_str();
}

struct Reading {
    Params params;
    Complaints complaints;
};

Reading read_with(std::map<std::string, std::string> environment) {
    g_environment = std::move(environment);
    Reading reading;
    reading.params = read(lookup, reading.complaints);
    return reading;
}

TEST(Params, DefaultsWithoutEnvironment) {
    Reading reading = read_with({});
    EXPECT_THAT(reading.complaints, IsEmpty());
#define VMA_PARAM_INT(member, env, def, min, max, doc)          \
    EXPECT_EQ(reading.params.member, std::int64_t{def}) << env; \
    EXPECT_GE(std::int64_t{def}, std::int64_t{min}) << env;     \
    EXPECT_LE(std::int64_t{def}, std::int64_t{max}) << env;
#define VMA_PARAM_STR(member, env, def, doc) EXPECT_EQ(reading.params.member, def) << env;
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
}

// Every number takes its bounds, and nothing beyond them or beside numbers.
void check_int(const char* env, std::int64_t Params::*member, std::int64_t fallback, std::int64_t min,
               std::int64_t max) {
    SCOPED_TRACE(env);
    auto taken = [](std::int64_t value) { return value; };
    for (std::int64_t value : {min, max}) {
        Reading reading = read_with({{env, std::to_string(value)}});
        std::int64_t expected = std::string(env) == "VMA_RX_POLL" && value == 0 ? 1 : value;
        EXPECT_EQ(reading.params.*member, taken(expected));
        EXPECT_THAT(reading.complaints, IsEmpty());
    }
    for (std::int64_t value : {min - 1, max + 1}) {
        std::string text = std::to_string(value);
        Reading reading = read_with({{env, text}});
        EXPECT_EQ(reading.params.*member, fallback);
        EXPECT_THAT(reading.complaints,
                    ElementsAre(std::string(env) + "=\"" + text + "\" is not between " + std::to_string(min) +
                                " and " + std::to_string(max) + ": the default " + std::to_string(fallback) +
                                " is used"));
    }
    Reading reading = read_with({{env, "abc"}});
    EXPECT_EQ(reading.params.*member, fallback);
    EXPECT_THAT(reading.complaints, ElementsAre(std::string(env) + "=\"abc\" is not a number: the default " +
                                                std::to_string(fallback) + " is used"));
}

TEST(Params, EveryNumberHasItsRange) {
#define VMA_PARAM_INT(member, env, def, min, max, doc) check_int(env, &Params::member, def, min, max);
#define VMA_PARAM_STR(member, env, def, doc)
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
}

TEST(Params, EveryTextIsTaken) {
#define VMA_PARAM_INT(member, env, def, min, max, doc)
#define VMA_PARAM_STR(member, env, def, doc)                                          \
    if (std::string(env) != "VMA_TRACELEVEL" && std::string(env) != "VMA_XDP_MODE" && \
        std::string(env) != "VMA_INTERNAL_THREAD_AFFINITY") {                         \
        EXPECT_EQ(read_with({{env, "some text"}}).params.member, "some text") << env; \
    }
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
}

TEST(Params, NumbersAreTakenWhole) {
    for (const char* wrong :
         {"", " 5", "5 ", "5k", "+5", "0x", "--5", "5.0", "0x5g", "1e3", "-", "0x-5", "-0x-5", "x5"}) {
        Reading reading = read_with({{"VMA_RX_POLL", wrong}});
        EXPECT_EQ(reading.params.rx_poll, 100000) << wrong;
        EXPECT_THAT(reading.complaints, ElementsAre(testing::HasSubstr("is not a number"))) << wrong;
    }
    EXPECT_EQ(read_with({{"VMA_RX_POLL", "0x1F"}}).params.rx_poll, 31);
    EXPECT_EQ(read_with({{"VMA_RX_POLL", "-0x1"}}).params.rx_poll, -1);
    EXPECT_EQ(read_with({{"VMA_RX_POLL", "007"}}).params.rx_poll, 7);
    Reading reading = read_with({{"VMA_RX_POLL", "99999999999999999999999"}});
    EXPECT_THAT(reading.complaints, ElementsAre(testing::HasSubstr("is not between -1 and 100000000")));
}

TEST(Params, ZeroPollsAreOne) { EXPECT_EQ(read_with({{"VMA_RX_POLL", "0"}}).params.rx_poll, 1); }

TEST(Params, SomeFollowFromOthers) {
    Params force = read_with({{"VMA_SELECT_POLL_OS_FORCE", "1"}}).params;
    EXPECT_EQ(force.select_poll_os_ratio, 1);
    EXPECT_EQ(force.select_skip_os, 1);
    Params explicit_ratio = read_with({{"VMA_SELECT_POLL_OS_FORCE", "1"}, {"VMA_SELECT_POLL_OS_RATIO", "7"}}).params;
    EXPECT_EQ(explicit_ratio.select_poll_os_ratio, 7);
    EXPECT_EQ(explicit_ratio.select_skip_os, 1);
    EXPECT_EQ(read_with({}).params.cq_moderation_enable, 1);
    EXPECT_EQ(read_with({{"VMA_RX_POLL", "-1"}}).params.cq_moderation_enable, 0);
    EXPECT_EQ(read_with({{"VMA_SELECT_POLL", "-1"}}).params.cq_moderation_enable, 0);
    EXPECT_EQ(read_with({{"VMA_CQ_AIM_MAX_PERIOD_US", "77"}}).params.cq_aim_max_period_usec, 77);
    EXPECT_EQ(read_with({{"VMA_INTERNAL_THREAD_CPUSSET", "/x"}}).params.internal_thread_cpuset, "/x");
}

TEST(Params, Processors) {
    for (const char* good : {"-1", "0", "0x1", "0xff", "0,2-3", "1-1"})
        EXPECT_EQ(read_with({{"VMA_INTERNAL_THREAD_AFFINITY", good}}).params.internal_thread_affinity, good);
    for (const char* wrong : {"", "x", "0x", "0x0", "-2", "1,", "3-1", "99999", "0 1", "1-"}) {
        Reading reading = read_with({{"VMA_INTERNAL_THREAD_AFFINITY", wrong}});
        EXPECT_EQ(reading.params.internal_thread_affinity, "-1") << wrong;
        EXPECT_EQ(reading.complaints.size(), 1u) << wrong;
    }
    cpu_set_t cpus;
    ASSERT_TRUE(vma::parse_cpus("0,2-4", cpus));
    EXPECT_EQ(CPU_COUNT(&cpus), 4);
    EXPECT_TRUE(CPU_ISSET(3, &cpus) && !CPU_ISSET(1, &cpus));
    ASSERT_TRUE(vma::parse_cpus("0x1A", cpus));
    EXPECT_EQ(CPU_COUNT(&cpus), 3);
    EXPECT_TRUE(CPU_ISSET(1, &cpus) && CPU_ISSET(3, &cpus) && CPU_ISSET(4, &cpus));
}

TEST(Params, OldNames) {
    Reading reading = read_with({{"VMA_RX_POLL_OS_RATIO", "7"}});
    EXPECT_EQ(reading.params.rx_udp_poll_os_ratio, 7);
    EXPECT_THAT(reading.complaints,
                ElementsAre("VMA_RX_POLL_OS_RATIO is an old name: use VMA_RX_UDP_POLL_OS_RATIO"));
    EXPECT_EQ(read_with({{"VMA_RX_SKIP_OS", "8"}}).params.rx_udp_poll_os_ratio, 8);

    reading = read_with({{"VMA_RX_SKIP_OS", "8"}, {"VMA_RX_UDP_POLL_OS_RATIO", "9"}});
    EXPECT_EQ(reading.params.rx_udp_poll_os_ratio, 9);
    EXPECT_THAT(reading.complaints, IsEmpty());

    EXPECT_EQ(read_with({{"VMA_SELECT_POLL_RATIO", "3"}}).params.select_poll_os_ratio, 3);
    EXPECT_EQ(read_with({{"LOG_COLORS", "0"}}).params.log_colors, 0);
    reading = read_with({{"LOG_COLORS", "always"}});
    EXPECT_EQ(reading.params.log_colors, 1);
    EXPECT_THAT(reading.complaints, IsEmpty());
}

TEST(Params, WordsAreChecked) {
    Reading reading = read_with({{"VMA_TRACELEVEL", "loud"}});
    EXPECT_EQ(reading.params.tracelevel, "info");
    EXPECT_THAT(reading.complaints,
                ElementsAre("VMA_TRACELEVEL=\"loud\" is not a log level: the default info is used"));
    EXPECT_EQ(read_with({{"VMA_TRACELEVEL", "6"}}).params.tracelevel, "6");
    reading = read_with({{"VMA_XDP_MODE", "native"}});
    EXPECT_EQ(reading.params.xdp_mode, "auto");
    EXPECT_EQ(reading.complaints.size(), 1u);
}

TEST(Params, UnknownNames) {
    const char* environment[] = {
        "PATH=/bin",    "VMA_RX_POLL=1",    "VMA_RX_POOL=1", "VMA_TRACE_LEVEL=3",  "VMA_SOMETHING=1",
        "VMA_MTU=1500", "VMA_RX_SKIP_OS=1", "LOG_COLORS=1",  "VMA_HANDLE_SIGIN=1", "VMA_",
        nullptr};
    Complaints complaints, notes;
    check_names(environment, complaints, notes);
    EXPECT_THAT(
        complaints,
        ElementsAre("VMA_RX_POOL is not a parameter and has no effect: is VMA_RX_POLL meant?",
                    "VMA_TRACE_LEVEL is not a parameter and has no effect: is VMA_TRACELEVEL meant?",
                    "VMA_SOMETHING is not a parameter and has no effect",
                    "VMA_HANDLE_SIGIN is not a parameter and has no effect: is VMA_HANDLE_SIGINTR meant?",
                    testing::StartsWith("VMA_ is not a parameter and has no effect")));
    EXPECT_THAT(notes, ElementsAre("VMA_MTU is not implemented yet and has no effect"));
}

TEST(Params, DescriptionsAreComplete) {
    std::map<std::string, int> seen;
    for (const ParamInfo& row : describe()) {
        EXPECT_EQ(++seen[row.env], 1) << row.env << " twice";
        EXPECT_TRUE(std::string(row.env).starts_with("VMA_")) << row.env;
        EXPECT_GT(std::string(row.doc).size(), 10u) << row.env;
        EXPECT_FALSE(row.range.empty()) << row.env;
    }
    EXPECT_TRUE(seen.contains("VMA_RX_POLL"));
}

TEST(Params, DocumentIsCurrent) {
    auto file =
        std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "docs" / "parameters.md";
    std::ifstream in(file);
    ASSERT_TRUE(in) << file;
    std::ostringstream text;
    text << in.rdbuf();
    EXPECT_TRUE(text.str() == parameters_markdown())
        << "run the build target docs and commit docs/parameters.md";
}

}  // namespace
