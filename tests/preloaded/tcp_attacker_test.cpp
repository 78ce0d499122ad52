// SPDX-License-Identifier: BSD-2-Clause
// A hostile TCP on a packet socket (tests/apps/tcp_attacker.cpp) against a server and a client on the
// library. Whatever it does: the program lives, an honest connection beside it gets every byte, what the
// program reads is what was sent, and the memory of the process stays within a limit.
#include <stdio.h>

#include <fstream>

#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

constexpr int kPort = 4567;

// VmRSS in KiB.
long resident(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
    return -1;
}

struct Assault {
    const char* name;
    int count;
    long limit_kib;  // growth of the victim's memory while it lasts
};
void PrintTo(const Assault& a, std::ostream* out) { *out << a.name; }

class AttackTest : public testing::Test {
  protected:
    Process attacker(const std::string& assault, int count) {
        return hosts.run(Host::a,
                         {app("tcp_attacker"), assault, TwoHosts::interface(), TwoHosts::address(Host::b),
                          std::to_string(kPort), "1", std::to_string(count)});
    }
    TwoHosts hosts;
};
class TcpAttacker : public AttackTest, public testing::WithParamInterface<Assault> {};
class TcpAttackerOfClients : public AttackTest {};

TEST_P(TcpAttacker, HarmsNobody) {
    const Assault& assault = GetParam();
    Process victim = hosts.run(Host::b, {app("tcp_victim"), "serve", std::to_string(kPort)}, with_library());
    ASSERT_TRUE(victim.wait_for_out("ready", milliseconds(10000) * patience())) << victim.err();
    auto honest = [&](int connections, long bytes) {
        return hosts.run(Host::a,
                         {app("tcp_attacker"), "honest", TwoHosts::address(Host::b), std::to_string(kPort),
                          std::to_string(connections), std::to_string(bytes)});
    };
    // What every connection needs once is there before memory is looked at.
    const Exit first = honest(20, 100'000).wait(milliseconds(60000) * patience());
    ASSERT_TRUE(first.ok()) << first.out << first.err << victim.err();
    EXPECT_TRUE(hosts.offloaded(Host::b));
    const long before = resident(victim.pid());
    Process beside = honest(30, 100'000);
    const Exit attack = attacker(assault.name, assault.count).wait(milliseconds(60000) * patience());
    EXPECT_TRUE(attack.ok()) << attack.code << (attack.timed_out ? " timed out\n" : "\n") << attack.out
                             << attack.err;
    const long during = resident(victim.pid());
    const Exit friendly = beside.wait(milliseconds(60000) * patience());
    EXPECT_TRUE(friendly.ok()) << friendly.code << (friendly.timed_out ? " timed out\n" : "\n")
                               << friendly.out;
    const Exit after = honest(5, 100'000).wait(milliseconds(60000) * patience());
    EXPECT_TRUE(after.ok()) << after.out;
    EXPECT_TRUE(victim.running()) << victim.err();
    // Sanitizers keep freed memory, so it only counts without them.
    if (!sanitized()) {
        EXPECT_LE(during - before, assault.limit_kib) << attack.out;
    }
    victim.kill(SIGTERM);
    const Exit end = victim.wait(milliseconds(30000) * patience());
    EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << "\n" << end.err;
    RecordProperty("attacker", attack.out);
}

INSTANTIATE_TEST_SUITE_P(Assaults, TcpAttacker,
                         testing::Values(Assault{"options", 200, 8192}, Assault{"numbers", 8, 8192},
                                         Assault{"states", 60, 8192}, Assault{"sacks", 20, 8192},
                                         Assault{"half_open", 20000, 1024}, Assault{"strays", 20000, 8192},
                                         Assault{"tiny", 20000, 16384}, Assault{"conflicts", 40, 8192},
                                         Assault{"icmp", 4, 8192}, Assault{"random", 150, 16384}),
                         [](const auto& info) { return std::string(info.param.name); });

// The same for a program that connects to the attacker.
TEST_F(TcpAttackerOfClients, HarmsNobody) {
    Process victim = hosts.run(Host::b, {app("tcp_victim"), "connect", "198.18.1.60", std::to_string(kPort)},
                               with_library());
    ASSERT_TRUE(victim.wait_for_out("ready", milliseconds(10000) * patience())) << victim.err();
    const Exit attack = attacker("answers", 300).wait(milliseconds(60000) * patience());
    EXPECT_TRUE(attack.ok()) << attack.code << (attack.timed_out ? " timed out\n" : "\n") << attack.out
                             << attack.err;
    EXPECT_TRUE(victim.running()) << victim.err();
    EXPECT_TRUE(hosts.offloaded(Host::b));
    victim.kill(SIGTERM);
    const Exit end = victim.wait(milliseconds(30000) * patience());
    EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << "\n" << end.err;
}

}  // namespace
