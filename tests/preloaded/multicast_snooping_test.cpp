// SPDX-License-Identifier: BSD-2-Clause
// A real peer of IGMP: the kernel's bridge, in a namespace of its own between the two hosts. It asks for
// members (querier), and sends a group only where somebody wants it (snooping).
#include <stdio.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/preloaded/multicast_fixture.h"

namespace {

using namespace testing_support;

class MulticastSnooping : public Multicast {
  protected:
    // Both hosts' wires end in the bridge, at the ports "a" and "b".
    void start_with_bridge(int igmp_version) {
        start();
        middle_ = hosts->netns(Host::a) + "bridge";
        tool({"ip", "netns", "add", middle_});
        // The hosts' wire was one pair. Its far end becomes a's port, and b gets another pair.
        hosts->ip(Host::b, {"link", "set", "veth1", "netns", middle_, "name", "a"});
        hosts->ip(Host::b, {"link", "add", "veth1", "type", "veth", "peer", "name", "b", "netns", middle_});
        hosts->ip_batch(Host::b, {"address add dev veth1 198.18.1.2/24", "link set veth1 up",
                                  "route add 224.0.0.0/4 dev veth1"});
        // Times are in hundredths of a second. They are set before the querier begins: for the first response
        // interval the bridge sends groups everywhere.
        in_bridge({"link", "add", "bridge", "type", "bridge", "mcast_snooping", "1", "mcast_igmp_version",
                   std::to_string(igmp_version), "mcast_query_interval", "100",
                   "mcast_query_response_interval", "20", "mcast_startup_query_interval", "100",
                   "mcast_last_member_interval", "10", "mcast_last_member_count", "2"});
        in_bridge({"link", "set", "dev", "bridge", "type", "bridge", "mcast_querier", "1"});
        for (const char* port : {"a", "b"}) {
            in_bridge({"link", "set", "dev", port, "master", "bridge"});
            in_bridge({"link", "set", "dev", port, "up"});
        }
        in_bridge({"link", "set", "bridge", "up"});
        hosts->ip(Host::a, {"link", "set", "veth1", "up"});
        b = std::make_unique<Agent>(*hosts, Host::b);
        open_socket(*b, Host::b, 6000, 1, "p");
        EXPECT_EQ(b->ask("set p multicast_if 198.18.1.2"), "ok");
        for (const char* port : {"a", "b"})
            EXPECT_TRUE(wait([&] {
                return in_bridge({"-d", "link", "show", "dev", port}).find("state forwarding") !=
                       std::string::npos;
            }));
        // The bridge holds back what nobody wants from its first query on.
        EXPECT_TRUE(wait([&] { return passed(20) == 0; }));
    }
    void TearDown() override {
        if (HasFailure()) std::cout << "members:\n" << members();
        Multicast::TearDown();
        a.reset();
        b.reset();
        bool ok;
        tool({"ip", "netns", "del", middle_}, &ok);
    }
    std::string in_bridge(std::vector<std::string> args) const {
        args.insert(args.begin(), {"ip", "-n", middle_});
        return tool(std::move(args));
    }
    // What the bridge believes who wants.
    std::string members() const { return tool({"bridge", "-n", middle_, "-d", "mdb", "show"}); }
    bool wants(const std::string& group) const {
        return members().find("port a grp " + group + " ") != std::string::npos;
    }
    static bool wait(const std::function<bool()>& what) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!what()) {
            if (std::chrono::steady_clock::now() > end) return false;
            std::this_thread::sleep_for(milliseconds(20));
        }
        return true;
    }
    // Of `count` datagrams to the group, how many the bridge sends to a. Some IGMP may be among them.
    long passed(int count) {
        const long before = frames_to_a();
        send(count);
        return (frames_to_a() - before) * 2 / count;  // 0: fewer than half
    }
    long frames_to_a() const {
        const std::string text = in_bridge({"-s", "-s", "-o", "link", "show", "dev", "a"});
        const auto tx = text.find("TX:");
        const auto line = text.find("\\", tx);
        long bytes = 0, packets = -1;
        sscanf(text.c_str() + line + 1, "%ld %ld", &bytes, &packets);
        return packets;
    }

    std::string middle_;
};

TEST_F(MulticastSnooping, JoinsAndLeavesOfAnOffloadedSocketAreSeen) {
    start_with_bridge(2);
    open_any(*a, "s");
    EXPECT_FALSE(wants(kGroup));
    join(*a, "s");
    EXPECT_TRUE(wait([&] { return wants(kGroup); }));
    expect_past_the_kernel(50);
    EXPECT_TRUE(hosts->offloaded(Host::a));
    EXPECT_EQ(a->ask("leave s " + kGroup + " 198.18.1.1"), "ok");
    EXPECT_TRUE(wait([&] { return !wants(kGroup); }));
    EXPECT_EQ(passed(100), 0);
    EXPECT_EQ(drained(*a, "s"), 0);
    join(*a, "s");
    EXPECT_TRUE(wait([&] { return wants(kGroup); }));
    expect_past_the_kernel(50);
}

// The bridge forgets the member, and learns of it by its next query: the kernel answers while the group comes
// past it.
TEST_F(MulticastSnooping, AQueryIsAnsweredWhileTheGroupIsOffloaded) {
    start_with_bridge(2);
    open_any(*a, "s");
    join(*a, "s");
    EXPECT_TRUE(wait([&] { return wants(kGroup); }));
    expect_past_the_kernel(50);
    tool({"bridge", "-n", middle_, "mdb", "del", "dev", "bridge", "port", "a", "grp", kGroup});
    EXPECT_FALSE(wants(kGroup));
    EXPECT_TRUE(wait([&] { return wants(kGroup); })) << members();
    expect_past_the_kernel(50);
}

// IGMPv3: the bridge knows the source, too.
TEST_F(MulticastSnooping, SourcesAreSeen) {
    start_with_bridge(3);
    open_any(*a, "s");
    EXPECT_EQ(a->ask("listen_to s " + kGroup + " 198.18.1.1 198.18.1.2"), "ok");
    EXPECT_TRUE(wait([&] { return wants(kGroup + " src 198.18.1.2"); })) << members();
    expect_past_the_kernel(50);
    a->ask("close s");
    EXPECT_TRUE(wait([&] { return !wants(kGroup + " src 198.18.1.2"); })) << members();
    EXPECT_EQ(passed(100), 0);
}

}  // namespace
