// SPDX-License-Identifier: BSD-2-Clause
// Datagrams with a source that a host may refuse: martians, and what rp_filter says. A packet socket on the
// other host sends them; the program gets with the library what it gets without.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/wire/udp_frames.h"

namespace {

using namespace testing_support;

const std::vector<std::string> kSources = {
    "198.18.1.2",                                    // the peer
    "198.18.1.77", "198.18.2.77",                    // on link, here and on the other interface
    "198.18.1.1", "198.18.2.1",                      // the host's own
    "127.0.0.1", "127.5.6.7", "0.0.0.0", "0.1.2.3",  //
    "224.0.0.1", "239.1.2.3", "255.255.255.255", "240.1.2.3", "198.18.1.255",
    "198.18.1.0",                              // the subnet's broadcast, and its number
    "198.19.1.5", "198.19.2.5", "198.19.3.5",  // routed back by this interface, by the other one, not at
                                               // all
    "198.19.4.5",                              // two routes: the one by this interface is the better one
    "198.19.5.5",                              // unreachable
};

class SourcesOnTheWire : public testing::Test {
  protected:
    void SetUp() override {
        hosts = std::make_unique<TwoHosts>(Wire{.links = 2});
        hosts->ip_batch(
            Host::a,
            {"route add 198.19.1.0/24 via 198.18.1.2", "route add 198.19.2.0/24 via 198.18.2.2",
             "route add 198.19.4.0/24 via 198.18.1.2 metric 5",
             "route add 198.19.4.0/24 via 198.18.2.2 metric 6", "route add unreachable 198.19.5.0/24"});
        On host(*hosts, Host::b);
        wire = packet_socket("veth1");
        ASSERT_TRUE(wire);
    }
    void send_from(const std::string& source) const {
        udp_frames::Udp u;
        u.dst_mac = {0x02, 0, 0x5e, 0x10, 1, 1};
        u.src_mac = {0x02, 0, 0x5e, 0x10, 1, 2};
        u.src = source.c_str();
        u.dst = "198.18.1.1";
        u.dst_port = 5000;
        u.payload = "from " + source;
        const udp_frames::Bytes frame = udp_frames::make(u);
        ASSERT_EQ(send(wire.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
    }
    // The sources from which the agent gets a datagram, of all that are tried.
    std::set<std::string> heard(Agent& agent) const {
        for (const std::string& source : kSources) send_from(source);
        std::set<std::string> from;
        for (;;) {
            const std::string got = agent.ask("recv s 150");
            const auto at = got.find("from=");
            if (at == std::string::npos) return from;
            from.insert(got.substr(at + 5, got.find(':', at) - at - 5));
        }
    }
    std::set<std::string> heard_with(bool library, const std::vector<std::string>& settings) {
        hosts->sysctl(Host::a, {"net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.veth1.rp_filter=0"});
        if (!library) hosts->sysctl(Host::a, settings);
        Agent agent(*hosts, Host::a, library ? with_library() : RunOptions{});
        open_socket(agent, Host::a, 5000);
        if (library) {
            // The setting changes while the program runs, as an administrator would change it.
            Agent peer(*hosts, Host::b);
            open_socket(peer, Host::b, 6000);
            expect_conversation(agent, peer, "198.18.1.2", 3);
            EXPECT_TRUE(hosts->offloaded(Host::a)) << agent.process().err();
            hosts->sysctl(Host::a, settings);
            agent.ask("sleep 100");
            const long before = Agent::value(agent.ask("udp"), "in");
            expect_conversation(agent, peer, "198.18.1.2", 20);
            EXPECT_LE(Agent::value(agent.ask("udp"), "in") - before, 1) << "a good source is offloaded";
        }
        return heard(agent);
    }
    void expect_as_kernel(const std::vector<std::string>& settings,
                          const std::vector<std::string>& some_of_it) {
        SCOPED_TRACE(testing::PrintToString(settings));
        const std::set<std::string> kernel = heard_with(false, settings),
                                    library = heard_with(true, settings);
        EXPECT_EQ(library, kernel);
        for (const std::string& source : some_of_it) EXPECT_TRUE(kernel.contains(source)) << source;
        EXPECT_LT(kernel.size(), kSources.size());
    }
    std::unique_ptr<TwoHosts> hosts;
    Fd wire;
};

TEST_F(SourcesOnTheWire, MartiansAreTheKernels) {
    expect_as_kernel({"net.ipv4.conf.all.rp_filter=0"},
                     {"198.18.1.2", "198.18.2.77", "198.19.3.5", "240.1.2.3", "0.1.2.3"});
}
TEST_F(SourcesOnTheWire, StrictReversePath) {
    expect_as_kernel({"net.ipv4.conf.veth1.rp_filter=1"},
                     {"198.18.1.2", "198.18.1.77", "198.19.1.5", "198.19.4.5"});
}
TEST_F(SourcesOnTheWire, LooseReversePath) {
    // The larger of the two values counts.
    expect_as_kernel({"net.ipv4.conf.all.rp_filter=2", "net.ipv4.conf.veth1.rp_filter=1"},
                     {"198.18.1.2", "198.18.2.77", "198.19.2.5"});
}
// With policy rules only the kernel knows.
TEST_F(SourcesOnTheWire, StrictReversePathByPolicyRules) {
    hosts->ip_batch(
        Host::a, {"route add 198.19.3.0/24 via 198.18.1.2 table 77", "rule add to 198.19.3.0/24 table 77"});
    hosts->sysctl(Host::a, {"net.ipv4.conf.all.rp_filter=1"});
    Agent plain(*hosts, Host::a);
    open_socket(plain, Host::a, 5000);
    const std::set<std::string> kernel = heard(plain);
    plain.finish();
    EXPECT_TRUE(kernel.contains("198.19.3.5"));
    Agent agent(*hosts, Host::a, with_library());
    open_socket(agent, Host::a, 5000);
    EXPECT_EQ(heard(agent), kernel) << agent.process().err();
}

}  // namespace
