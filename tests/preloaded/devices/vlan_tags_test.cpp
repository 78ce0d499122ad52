// SPDX-License-Identifier: BSD-2-Clause
// Frames with a VLAN tag that reach the untagged interface: the program gets with the library what it gets
// without. A priority tag (VLAN 0) says no VLAN; other tags are for interfaces that there are not.
#include <sys/socket.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/wire/udp_frames.h"

namespace {

using namespace testing_support;

// Tags in front of the IPv4 packet.
const std::vector<std::vector<std::uint8_t>> kTags = {
    {},
    {0x81, 0, 0, 0},        // priority 0
    {0x81, 0, 0xe0, 0},     // priority 7
    {0x81, 0, 0x30, 0},     // priority 1, may be dropped
    {0x81, 0, 0, 100},      // a VLAN that this host has not
    {0x81, 0, 0xa0, 100},   //
    {0x81, 0, 0x0f, 0xff},  // reserved
    {0x88, 0xa8, 0, 0},     // of a provider's bridge
    {0x88, 0xa8, 0, 100},
    {0x81, 0, 0, 0, 0x81, 0, 0, 0},
    {0x81, 0, 0, 0, 0x81, 0, 0, 100},
    {0x81, 0, 0, 100, 0x81, 0, 0, 0},
};

class VlanTags : public testing::Test {
  protected:
    // The tags whose datagram the program gets.
    std::set<std::size_t> heard(RunOptions options) {
        TwoHosts hosts(Wire{.known_neighbours = true});
        Agent agent(hosts, Host::a, std::move(options)), peer(hosts, Host::b);
        open_socket(agent, Host::a, 5000);
        open_socket(peer, Host::b, 6000);
        expect_conversation(agent, peer, "198.18.1.2", 3);
        On host(hosts, Host::b);
        Fd wire = packet_socket("veth1");
        std::set<std::size_t> all;
        for (std::size_t i = 0; i < kTags.size(); i++) {
            udp_frames::Udp u;
            u.dst_mac = {0x02, 0, 0x5e, 0x10, 1, 1};
            u.src_mac = {0x02, 0, 0x5e, 0x10, 1, 2};
            u.src = "198.18.1.2";
            u.dst = "198.18.1.1";
            u.src_port = 6000;
            u.dst_port = 5000;
            u.payload = std::string(100 + i, 'x');
            udp_frames::Bytes frame = udp_frames::make(u);
            frame.insert(frame.begin() + 12, kTags[i].begin(), kTags[i].end());
            EXPECT_EQ(send(wire.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
        }
        for (;;) {
            const long length = Agent::value(agent.ask("recv s 200"), "len");
            if (length < 100) return all;
            all.insert(static_cast<std::size_t>(length) - 100);
        }
    }
};

TEST_F(VlanTags, ReachWhomTheyReachOnTheKernel) {
    const std::set<std::size_t> kernel = heard({});
    EXPECT_TRUE(kernel.contains(0));
    EXPECT_TRUE(kernel.contains(2));
    EXPECT_FALSE(kernel.contains(4));
    std::vector<std::string> modes = {"auto"};
    if (!simulated()) modes.insert(modes.end(), {"skb", "drv"});
    for (const std::string& mode : modes)
        EXPECT_EQ(heard(with_library({"VMA_XDP_MODE=" + mode})), kernel) << mode;
}

}  // namespace
