// SPDX-License-Identifier: BSD-2-Clause
// Many groups, many sockets on one group, many changes of membership.
#include <string>

#include "tests/preloaded/multicast_fixture.h"
#include "tests/support/hosts/stats_file.h"

namespace {

using namespace testing_support;

TEST_F(Multicast, ManySocketsOnOneGroup) {
    start();
    open_any(*a, "s");
    join(*a, "s");
    for (int i = 0; i < 63; i++) {
        open_any(*a, "m" + std::to_string(i));
        join(*a, "m" + std::to_string(i));
    }
    expect_past_the_kernel(50);
    for (int i = 0; i < 63; i++) EXPECT_EQ(drained(*a, "m" + std::to_string(i), 0), 50);
}

TEST_F(Multicast, AThousandGroupsOnOneSocket) {
    constexpr int kGroups = 1000;
    start({"VMA_RX_BYTES_MIN=4000000"});
    hosts->sysctl(Host::a, {"net.ipv4.igmp_max_memberships=2000"});
    open_any(*a, "s");
    a->ask("set s rcvbuf 2000000");
    auto group = [](int i) { return "239.7." + std::to_string(i / 100) + "." + std::to_string(i % 100); };
    for (int i = 0; i < kGroups; i++) join(*a, "s", group(i));
    const long before = kernel_datagrams(*a);
    for (int i = 0; i < kGroups; i++)
        EXPECT_EQ(b->ask("send p " + group(i) + " 5000 100 1 " + std::to_string(i)), "sent 1");
    EXPECT_EQ(drained(*a, "s"), kGroups);
    EXPECT_EQ(kernel_datagrams(*a) - before, 0);
    for (int i = 0; i < kGroups; i += 2) EXPECT_EQ(a->ask("leave s " + group(i) + " 198.18.1.1"), "ok");
    for (int i = 0; i < kGroups; i++) b->ask("send p " + group(i) + " 5000 100 1 " + std::to_string(i));
    EXPECT_EQ(drained(*a, "s"), kGroups / 2);
}

// Ten thousand joins and as many leaves, as fast as they go, beside a group that stays.
TEST_F(Multicast, TenThousandJoinsAndLeavesWhileTrafficFlows) {
    constexpr int kDatagrams = 6000;
    const char* joins = simulated() ? "2000" : "10000";  // the simulator takes its time for a rule
    start();
    a.reset();
    Process churn = hosts->run(Host::a, {app("group_churn"), kGroup, "198.18.1.1", "5000", joins},
                               with_library({"VMA_RX_BYTES_MIN=4000000"}));
    ASSERT_TRUE(churn.wait_for_out("ready")) << churn.err();
    StatsFile stats(churn.pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, stats));
    ASSERT_EQ(stats.rings().size(), 1u);
    const std::uint64_t rules = stats.rings()[0].rules;
    EXPECT_GE(rules, 1u);

    b->post("send p " + kGroup + " 5000 100 " + std::to_string(kDatagrams) + " 1 100");
    ASSERT_TRUE(churn.wait_for_out("done", milliseconds(60000))) << churn.out() << churn.err();
    EXPECT_EQ(b->answer(), "sent " + std::to_string(kDatagrams));
    const std::string got = churn.out();
    EXPECT_EQ(Agent::value(got, "errors"), 0) << got;
    EXPECT_EQ(Agent::value(got, "received"), kDatagrams) << got << churn.err();
    EXPECT_GT(Agent::value(got, "meanwhile"), 100) << got;
    EXPECT_EQ(Agent::value(got, "distinct"), kDatagrams) << got;
    EXPECT_LT(Agent::value(got, "grown_kb"), 256) << got;
    ASSERT_TRUE(refresh(*hosts, Host::a, stats));
    EXPECT_EQ(stats.rings()[0].rules, rules);
    EXPECT_EQ(stats.groups().size(), 1u);
}

}  // namespace
