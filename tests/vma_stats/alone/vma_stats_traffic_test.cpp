// SPDX-License-Identifier: BSD-2-Clause
// The manual's examples 1 to 4 (section 8.1.1) with real traffic: what vma_stats prints is what the peer
// counted.
#include <gmock/gmock.h>

#include <regex>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;
using testing::HasSubstr;

class VmaStatsTraffic : public testing::Test {
  protected:
    void SetUp() override {
        // Neighbours are known from the start: what is sent while one is looked up goes through the kernel.
        hosts = std::make_unique<TwoHosts>(Wire{.known_neighbours = true});
        a = std::make_unique<Agent>(*hosts, Host::a,
                                    with_library({"VMA_STATS_SHMEM_DIR=" + scratch.path("")}));
        b = std::make_unique<Agent>(*hosts, Host::b);
        open_socket(*a, Host::a, 5000);
        open_socket(*b, Host::b, 6000);
        expect_conversation(*a, *b, "198.18.1.2", 3);
    }
    void TearDown() override {
        if (HasFailure() && a) std::cout << "log of a:\n" << a->process().err();
    }
    Process start(std::vector<std::string> options) {
        options.insert(options.begin(),
                       {vma_stats(), "-k", scratch.path(""), "-p", std::to_string(a->process().pid())});
        return Process::run(options, {});
    }
    std::string stats(std::vector<std::string> options) {
        const Exit exit = start(std::move(options)).wait();
        EXPECT_EQ(exit.code, 0) << exit.err;
        return exit.out;
    }
    // The numbers of a line of view 1: packets, KB, eagain, error, [poll%,] packets, KB, error.
    static std::vector<double> numbers(const std::string& text, const std::string& direction) {
        std::smatch match;
        std::vector<double> out;
        if (!std::regex_search(text, match, std::regex("(?:^|\\n)[0-9 ]+" + direction + ":([0-9. ]+)\\n")))
            return out;
        std::istringstream in(match[1]);
        for (double number; in >> number;) out.push_back(number);
        return out;
    }
    // 0 when it is not there: lines that would hold only zeros are left out.
    static long after(const std::string& text, const std::string& pattern) {
        std::smatch match;
        return std::regex_search(text, match, std::regex(pattern)) ? std::stol(match[1]) : 0;
    }

    Scratch scratch;
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> a, b;
};

// The process is found without -p, and all it did since is offloaded.
TEST_F(VmaStatsTraffic, Example1) {
    const auto run = [&] {
        const Exit exit = Process::run({vma_stats(), "-k", scratch.path(""), "-c", "1"}, {}).wait();
        EXPECT_EQ(exit.code, 0) << exit.err;
        return exit.out;
    };
    const std::string before = run();
    expect_conversation(*a, *b, "198.18.1.2", 400, 1024);
    const std::string after_it = run();
    const auto rx0 = numbers(before, "Rx"), tx0 = numbers(before, "Tx"), rx = numbers(after_it, "Rx"),
               tx = numbers(after_it, "Tx");
    ASSERT_EQ(rx0.size(), 8u) << before;
    ASSERT_EQ(tx0.size(), 7u) << before;
    ASSERT_EQ(rx.size(), 8u) << after_it;
    EXPECT_EQ(rx[0] - rx0[0], 400) << before << after_it;
    EXPECT_EQ(rx[1] - rx0[1], 400);
    EXPECT_EQ(rx[5] - rx0[5], 0);
    EXPECT_EQ(tx[0] - tx0[0], 400);
    EXPECT_EQ(tx[1] - tx0[1], 400);
    EXPECT_EQ(tx[4] - tx0[4], 0);
}

// Deltas, of a second, over an interval of two.
TEST_F(VmaStatsTraffic, Example2) {
    Process watcher = start({"-d", "2", "-i", "2", "-c", "2"});
    usleep(500'000);
    expect_conversation(*a, *b, "198.18.1.2", 400, 1024);
    const Exit exit = watcher.wait();
    ASSERT_EQ(exit.code, 0) << exit.err;
    const auto rx = numbers(exit.out, "Rx"), tx = numbers(exit.out, "Tx");
    ASSERT_EQ(rx.size(), 8u) << exit.out;
    EXPECT_THAT(exit.out, HasSubstr("pkt/s    Kbyte/s   eagain/s  error/s   poll%"));
    EXPECT_NEAR(rx[0], 200, 5) << exit.out;
    EXPECT_NEAR(rx[1], 200, 5);
    EXPECT_NEAR(tx[0], 200, 5);
    EXPECT_EQ(rx[5], 0);
    // The second report is of two quiet seconds.
    EXPECT_THAT(exit.out, testing::ContainsRegex("Rx: +0 +0 "));
}

// The most detailed view, of a socket and of the ring that carried it.
TEST_F(VmaStatsTraffic, Example3) {
    const std::string before = stats({"-v", "3", "-c", "1"});
    expect_conversation(*a, *b, "198.18.1.2", 300, 1000);
    const std::string text = stats({"-v", "3", "-c", "1"});
    EXPECT_THAT(text, HasSubstr("- Bound IF = [198.18.1.1:5000]"));
    const char* kRx = "Rx Offload: [0-9]+ KB / ([0-9]+) /";
    const char* kTx = "Tx Offload: [0-9]+ KB / ([0-9]+) /";
    EXPECT_EQ(after(text, kRx) - after(before, kRx), 300) << before << text;
    EXPECT_EQ(after(text, kTx) - after(before, kTx), 300);
    EXPECT_EQ(after(text, "Rx Offload: ([0-9]+) KB"), (303 * 1000 - 3 * 900) / 1024) << text;
    EXPECT_THAT(text, HasSubstr("Rx pkt : cur 0 / max"));
    const char* kPackets = "\nPackets count: +([0-9]+)";
    const char* kBytes = "\nPackets bytes: +([0-9]+)";
    EXPECT_EQ(after(text, kPackets) - after(before, kPackets), 300) << text;
    EXPECT_EQ(after(text, kBytes) - after(before, kBytes), 300 * (1000 + 42));
    EXPECT_THAT(text, HasSubstr("CQ=[0]\nPackets dropped:          0\n"));
    EXPECT_THAT(text, HasSubstr("- veth1 by xdp"));
}

// Groups and who is a member.
TEST_F(VmaStatsTraffic, Example4) {
    EXPECT_EQ(a->ask("join s 224.7.7.7 198.18.1.1"), "ok");
    const std::string text = stats({"-v", "4"});
    EXPECT_THAT(
        text, HasSubstr("VMA Group Membership Information\nGroup                                fd number"));
    EXPECT_THAT(text, testing::ContainsRegex("\\[224\\.7\\.7\\.7\\] +[0-9]+ "));
}

// Drops are those that the peer sent and we did not read.
TEST_F(VmaStatsTraffic, DropsAreExact) {
    EXPECT_EQ(a->ask("set s rcvbuf 4096"), "ok");
    // Few enough for the device's queue, and more than the socket's, which VMA_RX_BYTES_MIN makes at least 64
    // KB.
    EXPECT_EQ(b->ask("send s 198.18.1.1 5000 1000 250 1 20"), "sent 250");
    const std::string got = a->ask("drain s 500");
    const std::string text = stats({"-v", "2", "-c", "1"});
    const auto rx = numbers(text, "Rx");
    ASSERT_EQ(rx.size(), 11u) << text;
    EXPECT_EQ(rx[7] + static_cast<double>(Agent::value(got, "count")), 250) << text << got;
    EXPECT_GT(rx[7], 100);
}

TEST_F(VmaStatsTraffic, ExplainsWhatIsOffloaded) {
    const std::string text = stats({"--explain"});
    EXPECT_THAT(text, HasSubstr("is a UDP socket, bound to 198.18.1.1:5000"));
    EXPECT_THAT(text, HasSubstr("It sends and receives through libvma."));
    EXPECT_THAT(text, HasSubstr("on veth1, served by xdp"));
}

TEST_F(VmaStatsTraffic, Commands) {
    EXPECT_THAT(start({"-z"}).wait().err, HasSubstr("counters zeroed"));
    expect_conversation(*a, *b, "198.18.1.2", 100, 1024);
    const std::string text = stats({"-c", "1"});
    const auto rx = numbers(text, "Rx");
    ASSERT_EQ(rx.size(), 8u) << text;
    EXPECT_EQ(rx[0], 100);
    EXPECT_EQ(rx[1], 100);
    EXPECT_EQ(start({"-l", "debug"}).wait().code, 0);
    EXPECT_THAT(stats({"--json", "-c", "1"}), HasSubstr("\"log_level\":4"));
    EXPECT_EQ(start({"-D", "2"}).wait().code, 0);
    EXPECT_EQ(start({"-S", "0", "info"}).wait().code, 0);
    EXPECT_TRUE(a->process().wait_for_err("Rx Offload")) << a->process().err();
    const Exit wrong = start({"-S", "999"}).wait();
    EXPECT_EQ(wrong.code, 1) << wrong.err;
}

}  // namespace
