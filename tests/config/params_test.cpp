// SPDX-License-Identifier: BSD-2-Clause
// The parameters: each row of the table is read, checked and documented.
#include "libvma/config/params.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "libvma/runtime/cpus.h"

namespace {

using namespace vma::config;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::StrEq;

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
    for (const ParamValue& value : values(reading.params)) {
        const Parameter& row = *find(value.name);
        EXPECT_EQ(value.value, row.text != nullptr ? row.standard_text : std::to_string(row.standard))
            << value.name;
        EXPECT_STREQ(value.origin, "default") << value.name;
    }
}

std::vector<std::string> choices_of(const Parameter& row) {
    std::vector<std::string> all;
    std::istringstream in(row.choices);
    for (std::string one; std::getline(in, one, '|');) all.push_back(one);
    return all;
}

// Every number takes its bounds, and nothing beyond them or beside numbers.
TEST(Params, EveryNumberHasItsRange) {
    for (const Parameter& row : table()) {
        if (row.number == nullptr || row.type == Type::choice) continue;
        SCOPED_TRACE(row.env);
        EXPECT_GE(row.standard, row.min);
        EXPECT_LE(row.standard, row.max);
        const std::string name = row.env, fallback = std::to_string(row.standard);
        for (std::int64_t value : {row.min, row.max}) {
            Reading reading = read_with({{name, std::to_string(value)}});
            EXPECT_EQ(reading.params.*row.number, name == "VMA_RX_POLL" && value == 0 ? 1 : value);
            EXPECT_THAT(reading.complaints, IsEmpty());
            EXPECT_THAT(values(reading.params)[static_cast<std::size_t>(&row - table().data())].origin,
                        StrEq("environment"));
        }
        for (std::int64_t value : {row.min - 1, row.max + 1}) {
            const std::string text = std::to_string(value);
            Reading reading = read_with({{name, text}});
            EXPECT_EQ(reading.params.*row.number, row.standard);
            EXPECT_THAT(
                reading.complaints,
                ElementsAre(name + "=\"" + text + "\" is not between " + std::to_string(row.min) + " and " +
                            std::to_string(row.max) + ": the default " + fallback + " is used"));
        }
        Reading reading = read_with({{name, "abc"}});
        EXPECT_EQ(reading.params.*row.number, row.standard);
        EXPECT_THAT(reading.complaints,
                    ElementsAre(name + "=\"abc\" is not a number: the default " + fallback + " is used"));
        EXPECT_THAT(values(reading.params)[static_cast<std::size_t>(&row - table().data())].origin,
                    StrEq("default"));
    }
}

TEST(Params, EveryChoiceByNumberAndName) {
    for (const Parameter& row : table()) {
        if (row.type != Type::choice) continue;
        SCOPED_TRACE(row.env);
        bool standard_is_one = false;
        for (const std::string& choice : choices_of(row)) {
            const std::string number = choice.substr(0, choice.find('='));
            standard_is_one |= number == std::to_string(row.standard);
            std::string texts[] = {number,
                                   choice.substr(choice.find('=') + 1)};  // without a name: the number twice
            for (std::string& text : texts) {
                for (char& c : text) c = static_cast<char>(tolower(c));
                Reading reading = read_with({{row.env, text}});
                EXPECT_EQ(std::to_string(reading.params.*row.number), number) << text;
                EXPECT_THAT(reading.complaints, IsEmpty()) << text;
            }
        }
        EXPECT_TRUE(standard_is_one);
        for (const char* wrong : {"99", "-99", "", "1x", "=", "|", "nobody"}) {
            Reading reading = read_with({{row.env, wrong}});
            EXPECT_EQ(reading.params.*row.number, row.standard) << wrong;
            EXPECT_THAT(reading.complaints, ElementsAre(testing::HasSubstr("is none of"))) << wrong;
        }
    }
}

TEST(Params, EveryTextIsTaken) {
    for (const Parameter& row : table()) {
        const bool checked = row.text == &Params::tracelevel || row.text == &Params::xdp_mode ||
                             row.text == &Params::spec || row.text == &Params::internal_thread_affinity;
        if (row.text == nullptr || checked) continue;
        EXPECT_EQ(read_with({{row.env, "some text"}}).params.*row.text, "some text") << row.env;
    }
}

TEST(Params, BytesMayHaveASuffix) {
    auto taken = [](const char* text) { return read_with({{"VMA_RX_BYTES_MIN", text}}).params.rx_bytes_min; };
    EXPECT_EQ(taken("128k"), 128 << 10);
    EXPECT_EQ(taken("3M"), 3 << 20);
    EXPECT_EQ(taken("1g"), 1 << 30);
    EXPECT_EQ(taken("0x10K"), 16 << 10);
    for (const char* wrong :
         {"2g", "k", "1kb", "1 k", "1.5k", "-1k", "9999999999999g", "99999999999999999999k", "1t"}) {
        Reading reading = read_with({{"VMA_RX_BYTES_MIN", wrong}});
        EXPECT_EQ(reading.params.rx_bytes_min, 65536) << wrong;
        EXPECT_EQ(reading.complaints.size(), 1u) << wrong;
    }
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
    Params explicit_ratio =
        read_with({{"VMA_SELECT_POLL_OS_FORCE", "1"}, {"VMA_SELECT_POLL_OS_RATIO", "7"}}).params;
    EXPECT_EQ(explicit_ratio.select_poll_os_ratio, 7);
    EXPECT_EQ(explicit_ratio.select_skip_os, 1);
    EXPECT_EQ(read_with({{"VMA_TRACELEVEL", "4"}}).params.log_details, 2);
    EXPECT_EQ(read_with({{"VMA_TRACELEVEL", "4"}, {"VMA_LOG_DETAILS", "3"}}).params.log_details, 3);
    EXPECT_EQ(read_with({{"VMA_LOG_DETAILS", "1"}}).params.log_details, 1);
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
    for (const char* mode : {"auto", "drv", "skb", "tc"}) {
        reading = read_with({{"VMA_XDP_MODE", mode}});
        EXPECT_EQ(reading.params.xdp_mode, mode);
        EXPECT_THAT(reading.complaints, IsEmpty());
    }
}

TEST(Params, UnknownNames) {
    const char* environment[] = {
        "PATH=/bin",        "VMA_RX_POLL=1",      "VMA_RX_POOL=1", "VMA_TRACE_LEVEL=3",
        "VMA_TRACE_FILE=x", "VMA_SOMETHING=1",    "VMA_MTU=1500",  "VMA_RX_SKIP_OS=1",
        "LOG_COLORS=1",     "VMA_HANDLE_SIGIN=1", "VMA_",          nullptr};
    Complaints complaints;
    check_names(environment, complaints);
    EXPECT_THAT(
        complaints,
        ElementsAre("VMA_RX_POOL is not a parameter and has no effect: is VMA_RX_POLL meant?",
                    "VMA_TRACE_LEVEL is not a parameter and has no effect: is VMA_TRACELEVEL meant?",
                    "VMA_SOMETHING is not a parameter and has no effect",
                    "VMA_HANDLE_SIGIN is not a parameter and has no effect: is VMA_HANDLE_SIGINTR meant?",
                    testing::StartsWith("VMA_ is not a parameter and has no effect")));
}

TEST(Params, RowsAreComplete) {
    std::map<std::string, int> seen;
    for (const Parameter& row : table()) {
        EXPECT_EQ(++seen[row.env], 1) << row.env << " twice";
        EXPECT_TRUE(std::string(row.env).starts_with("VMA_")) << row.env;
        EXPECT_GT(std::string(row.help).size(), 10u) << row.env;
        EXPECT_NE(*row.label, '\0') << row.env;
        EXPECT_NE(*row.section, '\0') << row.env;
        EXPECT_EQ(row.standing.state == State::works, *row.standing.why == '\0') << row.env;
        EXPECT_EQ((row.number == nullptr) + (row.text == nullptr), 1) << row.env;
    }
    for (const OldName& name : old_names()) {
        EXPECT_EQ(find(name.old), nullptr) << name.old;
        EXPECT_NE(find(name.now), nullptr) << name.old;
    }
    for (const Preset& preset : presets()) {
        Reading reading = read_with({{"VMA_SPEC", preset.name}});
        EXPECT_THAT(reading.complaints, IsEmpty()) << preset.name;
    }
}

// The names in the manual's tables 4 and 5 and its start-up print, and those that came later.
TEST(Params, EveryKnownName) {
    std::istringstream names(
        "TRACELEVEL LOG_DETAILS LOG_FILE CONFIG_FILE LOG_COLORS CPU_USAGE_STATS APPLICATION_ID "
        "HANDLE_SIGINTR HANDLE_SIGSEGV "
        "STATS_FD_NUM STATS_FILE TX_SEGS_TCP TX_BUFS TX_WRE TX_MAX_INLINE MAX_INLINE TX_MC_LOOPBACK "
        "TX_NONBLOCKED_EAGAINS "
        "TX_PREFETCH_BYTES TX_BACKLOG_MAX RX_BUFS RX_WRE RX_WRE_BATCHING RX_BYTES_MIN RX_POLL RX_POLL_INIT "
        "RX_UDP_POLL_OS_RATIO "
        "RX_POLL_OS_RATIO RX_SKIP_OS RX_POLL_YIELD RX_PREFETCH_BYTES RX_PREFETCH_BYTES_BEFORE_POLL "
        "RX_CQ_DRAIN_RATE_NSEC "
        "GRO_STREAMS_MAX TCP_3T_RULES ETH_MC_L2_ONLY_RULES SELECT_POLL SELECT_POLL_OS_FORCE "
        "SELECT_POLL_OS_RATIO SELECT_POLL_RATIO "
        "SELECT_POLL_YIELD SELECT_SKIP_OS SELECT_CQ_IRQ PROGRESS_ENGINE_INTERVAL PROGRESS_ENGINE_WCE_MAX "
        "CQ_DRAIN_WCE_MAX "
        "CQ_MODERATION_ENABLE CQ_MODERATION_COUNT CQ_MODERATION_PERIOD_USEC CQ_AIM_MAX_COUNT "
        "CQ_AIM_MAX_PERIOD_USEC "
        "CQ_AIM_MAX_PERIOD_US CQ_AIM_INTERVAL_MSEC CQ_AIM_INTERRUPTS_RATE_PER_SEC CQ_POLL_BATCH_MAX "
        "CQ_KEEP_QP_FULL "
        "QP_COMPENSATION_LEVEL OFFLOADED_SOCKETS TIMER_RESOLUTION_MSEC TCP_TIMER_RESOLUTION_MSEC "
        "WAIT_AFTER_JOIN_MSEC "
        "WAIT_AFTER_REREG_MSEC INTERNAL_THREAD_AFFINITY INTERNAL_THREAD_CPUSET INTERNAL_THREAD_CPUSSET "
        "INTERNAL_THREAD_ARM_CQ "
        "THREAD_MODE MEM_ALLOC_TYPE NEIGH_UC_ARP_QUATA NEIGH_UC_ARP_DELAY_MSEC NEIGH_NUM_ERR_RETRIES IPOIB "
        "BF FORK CLOSE_ON_DUP2 "
        "MTU MSS TCP_CC_ALGO WINDOW_SCALING SUPPRESS_IGMP_WARNING IGMP QP_LOGIC HUGETLB HUGETBL "
        "RING_ALLOCATION_LOGIC_TX "
        "RING_ALLOCATION_LOGIC_RX RING_MIGRATION_RATIO_TX RING_MIGRATION_RATIO_RX RING_LIMIT_PER_INTERFACE "
        "SPEC SPEC_PARAM1 "
        "SPEC_PARAM2 STATS_SHMEM_DIR VMAD_NOTIFY_DIR TX_WRE_BATCHING RING_DEV_MEM_TX HW_TS_CONVERSION "
        "RX_POLL_ON_TX_TCP "
        "TRIGGER_DUMMY_SEND_GETSOCKNAME UDP_3T_RULES MC_FORCE_FLOWTAG TCP_CTL_THREAD TCP_TIMESTAMP_OPTION "
        "TCP_NODELAY TCP_QUICKACK "
        "TCP_MAX_SYN_RATE EXCEPTION_HANDLING AVOID_SYS_CALLS_ON_TCP_FD ALLOW_PRIVILEGED_SOCK_OPT "
        "BUFFER_BATCHING_MODE SOCKETXTREME "
        "NETLINK_TIMER DEFERRED_CLOSE LOG_CB_FUNC_PTR DBG_SEND_MCPKT_COUNTER DBG_SEND_MCPKT_MCGROUP "
        "TIME_MEASURE_NUM_SAMPLES "
        "TIME_MEASURE_DUMP_FILE");
    for (std::string name; names >> name;) {
        name.insert(0, "VMA_");
        const bool old =
            std::ranges::any_of(old_names(), [&](const OldName& row) { return name == row.old; });
        EXPECT_TRUE(old || find(name) != nullptr) << name;
    }
    EXPECT_TRUE(std::ranges::any_of(
        old_names(), [](const OldName& row) { return row.old == std::string_view("LOG_COLORS"); }));
}

std::filesystem::path source_root() {
    return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
}

std::string content(const std::filesystem::path& file) {
    std::ifstream in(file);
    EXPECT_TRUE(in) << file;
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

// What is said to work is used somewhere beside the table, and what is said not to work is not.
TEST(Params, StateIsTrue) {
    std::string code;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_root() / "libvma"))
        if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
            if (entry.path().parent_path().filename() != "config" ||
                entry.path().filename() == "rules_file.cpp" ||
                entry.path().filename() == "start.cpp")  // these two put parameters to use
                code += content(entry.path());
    std::map<std::string, std::string> members;
    std::istringstream table_text(content(source_root() / "libvma/config/params.def"));
    for (std::string line; std::getline(table_text, line);) {
        const std::size_t open = line.find('('), comma = line.find(", \"VMA_");
        if (!line.starts_with("VMA_") || comma == std::string::npos) continue;
        members[line.substr(comma + 3, line.find('"', comma + 3) - comma - 3)] =
            line.substr(open + 1, comma - open - 1);
    }
    ASSERT_EQ(members.size(), kParameters);
    // Spent in reading the others.
    const std::string inside[] = {"VMA_SPEC", "VMA_SELECT_POLL_OS_FORCE"};
    for (const Parameter& row : table()) {
        if (std::ranges::find(inside, row.env) != std::end(inside)) continue;
        bool used = false;
        for (const char* object : {"get().", "params.", " p.", "(p.", "{p."}) {
            const std::string use = object + members[row.env];
            for (std::size_t at = 0; !used && (at = code.find(use, at)) != std::string::npos; at++) {
                const char next = code[at + use.size()];
                used = isalnum(next) == 0 && next != '_';
            }
        }
        EXPECT_EQ(row.standing.state == State::works, used)
            << row.env << (used ? " is used" : " is used nowhere");
    }
}

TEST(Params, Presets) {
    Reading reading = read_with({{"VMA_SPEC", "latency"}, {"VMA_RX_POLL", "5"}});
    EXPECT_THAT(reading.complaints, IsEmpty());
    EXPECT_EQ(reading.params.rx_poll, 5);  // what is set wins
    EXPECT_EQ(reading.params.select_poll, -1);
    EXPECT_EQ(reading.params.tx_wre, 256);
    EXPECT_EQ(reading.params.tcp_nodelay, 1);
    EXPECT_EQ(reading.params.internal_thread_affinity, "0");
    std::map<std::string, std::string> origins;
    for (const ParamValue& value : values(reading.params)) origins[value.name] = value.origin;
    EXPECT_EQ(origins["VMA_SPEC"], "environment");
    EXPECT_EQ(origins["VMA_RX_POLL"], "environment");
    EXPECT_EQ(origins["VMA_SELECT_POLL"], "preset");
    EXPECT_EQ(origins["VMA_CQ_MODERATION_ENABLE"], "derived");
    EXPECT_EQ(origins["VMA_RX_BYTES_MIN"], "default");

    EXPECT_EQ(read_with({{"VMA_SPEC", "10"}}).params.tx_bufs, 512);
    EXPECT_EQ(read_with({{"VMA_SPEC", "ultra-latency"}}).params.progress_engine_interval, 0);
    EXPECT_EQ(read_with({{"VMA_SPEC", "multi_ring_latency"}}).params.ring_allocation_logic_rx, 20);
    EXPECT_EQ(read_with({{"VMA_SPEC", "7750"}}).params.tracelevel, "warn");
    // Also under an old name.
    EXPECT_EQ(
        read_with({{"VMA_SPEC", "latency"}, {"VMA_SELECT_POLL_RATIO", "7"}}).params.select_poll_os_ratio, 7);
    // A bad value of a variable leaves the preset's.
    reading = read_with({{"VMA_SPEC", "15"}, {"VMA_TX_WRE", "many"}});
    EXPECT_THAT(reading.complaints,
                ElementsAre("VMA_TX_WRE=\"many\" is not a number: the default 256 is used"));
    for (const char* same : {"none", "0"}) EXPECT_EQ(read_with({{"VMA_SPEC", same}}).params.tx_wre, 2048);
    for (const char* known :
         {"29west", "29", "wombat_fh", "554", "mcd", "623", "mcd-irq", "624", "rti", "784"})
        EXPECT_THAT(read_with({{"VMA_SPEC", known}}).complaints, IsEmpty()) << known;
    for (const char* wrong : {"", "fast", "11", "Latency "}) {
        reading = read_with({{"VMA_SPEC", wrong}});
        EXPECT_THAT(reading.complaints,
                    ElementsAre(testing::HasSubstr("is not a preset: the default none is used")))
            << wrong;
        EXPECT_EQ(reading.params.tx_wre, 2048);
    }
}

TEST(Params, StartUpLines) {
    auto lines = parameter_lines(read_with({}).params, false);
    EXPECT_THAT(lines, ElementsAre(testing::MatchesRegex("Log Level +info +\\[VMA_TRACELEVEL\\]"),
                                   testing::MatchesRegex("Log File +\\[VMA_LOG_FILE\\]")));
    lines = parameter_lines(
        read_with({{"VMA_TX_PREFETCH_BYTES", "64"}, {"VMA_RX_POLL", "100000"}, {"VMA_MEM_ALLOC_TYPE", "2"}})
            .params,
        false);
    EXPECT_THAT(
        lines,
        ElementsAre(testing::_, testing::_,
                    testing::MatchesRegex("Tx Prefetch Bytes +64 +\\[VMA_TX_PREFETCH_BYTES\\] no effect: .*"),
                    testing::MatchesRegex("Mem Allocate type +2 \\(HUGEPAGES\\) +\\[VMA_MEM_ALLOC_TYPE\\]")));
    EXPECT_EQ(parameter_lines(read_with({}).params, true).size(), kParameters);
}

TEST(Params, WithPid) {
    EXPECT_EQ(with_pid("/tmp/%d.log"), "/tmp/" + std::to_string(getpid()) + ".log");
    EXPECT_EQ(with_pid("%d %d"), std::to_string(getpid()) + " %d");
    EXPECT_EQ(with_pid(""), "");
}

TEST(Params, DocumentIsCurrent) {
    EXPECT_TRUE(content(source_root() / "docs/parameters.md") == parameters_markdown())
        << "run the build target docs and commit docs/parameters.md";
    EXPECT_TRUE(content(source_root() / "docs/man/libvma.7") == parameters_man())
        << "run the build target docs and commit docs/man/libvma.7";
}

}  // namespace
