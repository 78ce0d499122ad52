// SPDX-License-Identifier: BSD-2-Clause
// Frames to groups as nobody sends them in good faith. A packet socket on the other host sends them; the
// program gets with the library what it gets without.
#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/wire/udp_frames.h"

namespace {

using namespace testing_support;
using udp_frames::Bytes;
using udp_frames::Mac;

const Mac kStation{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03};  // of 239.1.2.3, and of 239.129.2.3
const Mac kHost{0x02, 0, 0x5e, 0x10, 1, 1}, kPeer{0x02, 0, 0x5e, 0x10, 1, 2};

class MulticastFrames : public testing::Test {
  protected:
    void SetUp() override {
        hosts = std::make_unique<TwoHosts>(testing_support::Wire{});
        On host(*hosts, Host::b);
        wire = Fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
        sockaddr_ll at{};
        at.sll_family = AF_PACKET;
        at.sll_ifindex = static_cast<int>(if_nametoindex("veth1"));
        ASSERT_EQ(bind(wire.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    }
    // What the agent gets of frames that differ in one thing each; by length.
    std::vector<std::string> heard(RunOptions options) {
        Agent agent(*hosts, Host::a, std::move(options));
        EXPECT_EQ(agent.ask("open s 0.0.0.0 5000"), "ok 5000");
        EXPECT_EQ(agent.ask("join s 239.1.2.3 198.18.1.1"), "ok");
        int length = 20;
        for (const char* group : {"239.1.2.3", "239.129.2.3", "239.1.2.4", "224.0.0.1"})
            for (const Mac& to : {kStation, kHost, Mac{0x01, 0, 0x5e, 1, 2, 4},
                                  Mac{0x01, 0, 0x5e, 0x81, 2, 3}, Mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}})
                for (const char* source : {"198.18.1.2", "198.18.1.1", "127.0.0.1", "239.1.1.1", "0.0.0.0"})
                    for (int ttl : {64, 0}) send(group, to, source, ttl, length++);
        std::vector<std::string> all;
        for (;;) {
            const std::string got = agent.ask("recv s 250");
            if (got.find("from=") == std::string::npos) break;
            all.push_back(got.substr(0, got.find(" hash")) + got.substr(got.find(" from=")));
        }
        std::sort(all.begin(), all.end());  // they come by two ways
        return all;
    }
    void send(const char* group, const Mac& to, const char* source, int ttl, int length) {
        udp_frames::Udp u;
        u.dst_mac = to;
        u.src_mac = kPeer;
        u.src = source;
        u.dst = group;
        u.dst_port = 5000;
        u.payload = std::string(static_cast<std::size_t>(length), 'm');
        Bytes frame = udp_frames::make(u);
        frame[udp_frames::kIp + 8] = static_cast<std::uint8_t>(ttl);
        udp_frames::seal_ip(frame);
        ASSERT_EQ(::send(wire.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
    }
    std::unique_ptr<TwoHosts> hosts;
    Fd wire;
};

TEST_F(MulticastFrames, AreHeardAsOnTheKernel) {
    const auto kernel = heard({}), library = heard(with_library());
    EXPECT_FALSE(kernel.empty());
    EXPECT_EQ(kernel, library);
}

}  // namespace
