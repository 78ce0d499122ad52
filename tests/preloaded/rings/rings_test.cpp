// SPDX-License-Identifier: BSD-2-Clause
// Several rings on an interface: threads and sockets with rings of their own lose nothing and reorder
// nothing, and share rings when there are no more.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/hosts/agent.h"
#include "tests/support/hosts/device.h"
#include "tests/support/hosts/programs.h"
#include "tests/support/hosts/stats_file.h"

namespace {

using namespace testing_support;

class RingLogic : public testing::Test {
  protected:
    void SetUp() override {
        hosts = std::make_unique<TwoHosts>(Wire{.known_neighbours = true});
        peer = program(Host::b, {"serve", "6000"}, {}, peer_input);
        ASSERT_TRUE(peer.wait_for_out("serving"));
    }
    // Its input ends with `input`.
    Process program(Host host, std::vector<std::string> arguments, RunOptions options, Fd& input) {
        int ends[2];
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        input = Fd(ends[1]);
        const Fd theirs(ends[0]);
        options.fds.emplace_back(ends[0], 0);
        arguments.insert(arguments.begin(), app("ring_logic"));
        return hosts->run(host, std::move(arguments), std::move(options));
    }
    // Runs until it is done, and looks at the statistics; it goes on with go_on().
    void start(const std::string& logic, std::vector<std::string> arguments,
               std::vector<std::string> further = {}) {
        RunOptions options{.preload = true, .env = {"VMA_TRACELEVEL=info"}};
        options.env.push_back("VMA_RING_ALLOCATION_LOGIC_RX=" + logic);
        options.env.insert(options.env.end(), further.begin(), further.end());
        process = program(Host::a, std::move(arguments), std::move(options), input);
        ASSERT_TRUE(process.wait_for_out("done", milliseconds(30000 * patience()))) << process.err();
        StatsFile file(process.pid());
        ASSERT_TRUE(refresh(*hosts, Host::a, file));
        rings = file.rings();
        sockets_seen = file.sockets();
    }
    void go_on() {
        input.reset();
        const Exit end = process.wait(milliseconds(20000 * patience()));
        EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << end.err;
    }
    std::set<std::string> owners() const {
        std::set<std::string> names;
        for (const auto& ring : rings) names.insert(std::string(ring.owner, strnlen(ring.owner, 32)));
        return names;
    }
    // How many of them received frames.
    long used() const {
        return std::ranges::count_if(rings, [](const auto& ring) { return ring.rx_packets != 0; });
    }
    // The simulated adapter is slow.
    static std::string messages(int over_xdp) {
        return std::to_string(simulated() ? over_xdp / 10 : over_xdp);
    }

    std::unique_ptr<TwoHosts> hosts;
    Process peer, process;
    Fd peer_input, input;
    std::vector<vma::stats::RingBlock> rings;
    std::vector<vma::stats::SocketBlock> sockets_seen;
};

TEST_F(RingLogic, OneRingForAll) {
    start("0", {"talk", "198.18.1.2", "6000", "4", "2", messages(500)});
    EXPECT_EQ(rings.size(), 1u);
    EXPECT_EQ(owners(), std::set<std::string>{"all sockets"});
    go_on();
}

TEST_F(RingLogic, ARingForEachThread) {
    start("20", {"talk", "198.18.1.2", "6000", "4", "3", messages(1000)});
    EXPECT_EQ(rings.size(), 4u) << process.err();
    EXPECT_EQ(used(), 4) << process.err();
    EXPECT_EQ(owners().size(), 4u);
    for (const std::string& owner : owners()) EXPECT_EQ(owner.rfind("thread ", 0), 0u) << owner;
    for (const auto& ring : rings) EXPECT_EQ(ring.logic, 20u);
    go_on();
}

TEST_F(RingLogic, ARingForEachSocket) {
    start("10", {"talk", "198.18.1.2", "6000", "2", "3", messages(500)});
    EXPECT_EQ(rings.size(), 8u) << process.err();
    EXPECT_EQ(used(), 8) << process.err();
    go_on();
}

TEST_F(RingLogic, ARingForEachCore) {
    for (const char* logic : {"30", "31"}) {
        start(logic, {"talk", "198.18.1.2", "6000", "4", "2", messages(300)});
        EXPECT_GE(used(), 1) << process.err();
        EXPECT_LE(rings.size(), static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN)));
        for (const std::string& owner : owners()) EXPECT_EQ(owner.rfind("core ", 0), 0u) << owner;
        go_on();
    }
}

TEST_F(RingLogic, ARingForAnAddress) {
    start("1", {"talk", "198.18.1.2", "6000", "3", "2", messages(300)});
    EXPECT_EQ(rings.size(), 1u);
    EXPECT_EQ(owners(), std::set<std::string>{"198.18.1.1"});
    go_on();
}

TEST_F(RingLogic, NoMoreRingsThanTheLimit) {
    start("20", {"talk", "198.18.1.2", "6000", "6", "2", messages(500)}, {"VMA_RING_LIMIT_PER_INTERFACE=2"});
    EXPECT_EQ(rings.size(), 2u);
    EXPECT_EQ(used(), 2);
    EXPECT_NE(process.err().find("further sockets share them"), std::string::npos) << process.err();
    go_on();
}

TEST_F(RingLogic, ManySocketsEndInSharedRingsAndALine) {
    const std::string sockets = simulated() ? "300" : "10000";
    start("10", {"many", "198.18.1.2", "6000", sockets}, {"VMA_RX_WRE=1024"});
    EXPECT_GE(rings.size(), 4u) << process.err();
    EXPECT_LE(rings.size(), 64u);
    EXPECT_EQ(used(), static_cast<long>(rings.size())) << "the sockets are spread over all";
    const std::string log = process.err();
    const std::size_t line = log.find("further sockets share them");
    EXPECT_NE(line, std::string::npos) << log;
    go_on();
}

// 64 sockets (24 over an adapter) change hands between 8 threads again and again while messages are under
// way: none is lost, none comes twice or out of order, with any logic. 11 is no value of the parameters, only
// one of the extra API: it leaves them at their defaults.
class RingMigration : public RingLogic, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Logics, RingMigration, testing::Values("0", "1", "10", "11", "20", "30", "31"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RingMigration, InTheMidstOfTraffic) {
    const std::string logic = GetParam();
    const std::string pairs = simulated() ? "12" : "32";  // a simulated adapter is a thread, and slow
    start(logic, {"move", "198.18.1.2", "6000", "8", pairs, "6"},
          {"VMA_RING_ALLOCATION_LOGIC_TX=" + logic, "VMA_RING_MIGRATION_RATIO_RX=20",
           "VMA_RING_MIGRATION_RATIO_TX=20"});
    std::uint64_t moves = 0, flows = 0;
    for (const auto& socket : sockets_seen) moves += socket.ring_migrations;
    for (const auto& ring : rings) flows += ring.migrations;
    if (logic == "20") {
        EXPECT_GE(moves, sockets_seen.size()) << process.err();
        EXPECT_GE(flows, sockets_seen.size()) << process.err();
    }
    if (logic < "20") {
        EXPECT_EQ(moves, 0u);
    }
    EXPECT_EQ(process.err().find("stays on its ring"), std::string::npos) << process.err();
    go_on();
}

// Each thread has its sockets and its ring, and does not meet the others at locks. It meets the library's own
// threads, which look at the rings now and then, and lose the processor there.
TEST_F(RingLogic, ThreadsDoNotMeetAtLocks) {
    std::map<std::string, std::uint64_t> waits;
    for (const char* logic : {"0", "20"}) {
        start(logic, {"talk", "198.18.1.2", "6000", "4", "3", messages(4000)});
        for (const auto& ring : rings) waits[logic] += ring.rx_lock_waits + ring.tx_lock_waits;
        go_on();
    }
    EXPECT_LT(waits["20"] * 4, waits["0"]);
}

TEST_F(RingLogic, NoSocketMovesWithARatioOfMinusOne) {
    start("20", {"move", "198.18.1.2", "6000", "2", "2", "3"},
          {"VMA_RING_MIGRATION_RATIO_RX=-1", "VMA_RING_MIGRATION_RATIO_TX=-1"});
    for (const auto& socket : sockets_seen) EXPECT_EQ(socket.ring_migrations, 0u);
    go_on();
}

// Sockets of one port share the ring of the first of them, whatever threads they have.
TEST_F(RingLogic, APortOfTwoThreadsAndAFork) {
    RunOptions options{.preload = true, .env = {"VMA_TRACELEVEL=info"}};
    options.env.push_back("VMA_RING_ALLOCATION_LOGIC_RX=20");
    process = program(Host::a, {"shared", "198.18.1.2", "6000"}, std::move(options), input);
    const Exit end = process.wait(milliseconds(30000 * patience()));
    EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << end.err;
}

// The presets ask for a ring for each thread.
TEST_F(RingLogic, ThePresetForLatency) {
    start("20", {"talk", "198.18.1.2", "6000", "2", "2", messages(500)}, {"VMA_SPEC=latency"});
    EXPECT_EQ(used(), 2) << process.err();
    go_on();
}

}  // namespace
