// SPDX-License-Identifier: BSD-2-Clause
// Frames to groups as nobody sends them in good faith. A packet socket on the other host sends them; the
// program gets with the library what it gets without.
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
        wire = packet_socket("veth1");
        ASSERT_TRUE(wire);
    }
    // What the sockets of an agent get of the frames that `sends` puts on the wire; by length.
    template <class Sends>
    std::vector<std::string> heard(RunOptions options, Sends&& sends) {
        Agent agent(*hosts, Host::a, std::move(options));
        // All sources of the group; one source, bound to the group; the group with the same station address
        // alone; nothing joined; connected.
        EXPECT_EQ(agent.ask("open s 0.0.0.0 5000 reuseaddr"), "ok 5000");
        EXPECT_EQ(agent.ask("join s 239.1.2.3 198.18.1.1"), "ok");
        EXPECT_EQ(agent.ask("open t 239.1.2.3 5000 reuseaddr"), "ok 5000");
        EXPECT_EQ(agent.ask("listen_to t 239.1.2.3 198.18.1.1 198.18.1.2"), "ok");
        EXPECT_EQ(agent.ask("open u 0.0.0.0 5000 reuseaddr"), "ok 5000");
        EXPECT_EQ(agent.ask("set u multicast_all 0"), "ok");
        EXPECT_EQ(agent.ask("join u 239.129.2.3 198.18.1.1"), "ok");
        EXPECT_EQ(agent.ask("open v 0.0.0.0 5000 reuseaddr"), "ok 5000");
        EXPECT_EQ(agent.ask("open w 239.1.2.3 5000 reuseaddr"), "ok 5000");
        EXPECT_EQ(agent.ask("join w 239.1.2.3 198.18.1.1"), "ok");
        EXPECT_EQ(agent.ask("connect w 198.18.1.2 1001"), "ok");
        sends();
        std::vector<std::string> all;
        for (const char* id : {"s", "t", "u", "v", "w"})
            for (int wait = 250;; wait = 50) {
                const std::string got = agent.ask(std::string("recv ") + id + " " + std::to_string(wait));
                const auto from = got.find(" from=");
                if (from == std::string::npos) break;
                all.push_back(std::string(id) + " " + got.substr(0, got.find(" ttl", from)));
            }
        std::sort(all.begin(), all.end());  // they come by two ways
        EXPECT_TRUE(std::ranges::adjacent_find(all) == all.end()) << "something came twice";
        return all;
    }
    template <class Sends>
    void expect_same(Sends&& sends) {
        const auto kernel = heard({}, sends), library = heard(with_library(), sends);
        EXPECT_FALSE(kernel.empty());
        EXPECT_EQ(kernel, library);
    }

    static Bytes frame(const char* group, const Mac& to, const char* source, int length) {
        udp_frames::Udp u;
        u.dst_mac = to;
        u.src_mac = kPeer;
        u.src = source;
        u.dst = group;
        u.dst_port = 5000;
        u.payload = udp_frames::pattern(static_cast<std::size_t>(length), static_cast<unsigned>(length));
        return udp_frames::make(u);
    }
    void send(const Bytes& frame) const {
        ASSERT_EQ(::send(wire.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
    }

    std::unique_ptr<TwoHosts> hosts;
    Fd wire;
};

// Station addresses of other groups, of this host and of all; spoofed sources; hop counts.
TEST_F(MulticastFrames, AreHeardAsOnTheKernel) {
    expect_same([this] {
        int length = 20;
        for (const char* group : {"239.1.2.3", "239.129.2.3", "239.1.2.4", "224.0.0.1"})
            for (const Mac& to : {kStation, kHost, Mac{0x01, 0, 0x5e, 1, 2, 4},
                                  Mac{0x01, 0, 0x5e, 0x81, 2, 3}, Mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}})
                for (const char* source : {"198.18.1.2", "198.18.1.1", "127.0.0.1", "239.1.1.1", "0.0.0.0",
                                           "255.255.255.255", "198.18.1.255", "198.18.1.77", "203.0.113.9"})
                    for (const int ttl : {64, 0}) {
                        Bytes f = frame(group, to, source, length++);
                        f[udp_frames::kIp + 8] = static_cast<std::uint8_t>(ttl);
                        udp_frames::seal_ip(f);
                        send(f);
                    }
    });
}

// Wrong sums and lengths, options, fragments that are complete or not.
TEST_F(MulticastFrames, DamagedAreHeardAsOnTheKernel) {
    using namespace udp_frames;
    expect_same([this] {
        int length = 40;
        const auto damaged = [&](auto&& damage, const char* group = "239.1.2.3") {
            Bytes f = frame(group, kStation, "198.18.1.2", length++);
            put16(f, kIp + 4, static_cast<unsigned>(length));  // its identification
            damage(f);
            send(f);
        };
        const auto in_ip = [&](std::size_t at, unsigned value) {
            damaged([&](Bytes& f) {
                put16(f, kIp + at, value);
                seal_ip(f);
            });
        };
        for (const char* group : {"239.1.2.3", "239.129.2.3"}) {
            damaged([](Bytes&) {}, group);
            damaged([](Bytes& f) { f[kIp + 10] ^= 1; }, group);
            damaged([](Bytes& f) { f[kUdp + 6] ^= 1; }, group);
            damaged([](Bytes& f) { put16(f, kUdp + 6, 0); }, group);  // no sum
        }
        // Lengths of the packet: less than there is, more than there is, less than the headers.
        for (const unsigned total : {38u, 28u, 27u, 20u, 19u, 0u, 200u, 65535u}) in_ip(2, total);
        // Lengths of the datagram, with a sum that is right for them where that can be.
        for (const unsigned udp : {20u, 9u, 8u, 7u, 0u, 200u, 65535u})
            damaged([&](Bytes& f) {
                put16(f, kUdp + 4, udp);
                if (udp + kUdp <= f.size()) seal_udp(f);
            });
        for (const unsigned version : {0x46u, 0x44u, 0x55u, 0x65u, 0x4fu})
            damaged([&](Bytes& f) {
                f[kIp] = static_cast<std::uint8_t>(version);
                seal_ip(f);
            });
        // Behind the packet stands what is not of it.
        damaged([](Bytes& f) { f.insert(f.end(), 30, 'x'); });
        damaged([](Bytes& f) { f.resize(f.size() - 5); });
        // Parts of datagrams that never become whole, and flags of no meaning.
        for (const unsigned fragment :
             {0x2000u, 0x0001u, 0x2001u, 0x1fffu, 0x3fffu, 0x6000u, 0x8000u, 0xc000u})
            in_ip(6, fragment);
        // A datagram in two parts, in order, the other way round, and with one part twice.
        for (const int order : {0, 1, 2}) {
            Bytes whole = frame("239.1.2.3", kStation, "198.18.1.2", 1000 + order);
            const std::size_t cut = kUdp + 504;
            Bytes first(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)), second(first);
            second.resize(kUdp);
            second.insert(second.end(), whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end());
            unsigned at = 0x2000;
            for (Bytes* part : {&first, &second}) {
                put16(*part, kIp + 2, static_cast<unsigned>(part->size() - kIp));
                put16(*part, kIp + 4, 0x7000u + static_cast<unsigned>(order));
                put16(*part, kIp + 6, at);
                seal_ip(*part);
                at = 504 / 8;
            }
            if (order == 1) std::swap(first, second);
            send(first);
            if (order == 2) send(first);
            send(second);
        }
        damaged([](Bytes&) {});
    });
}

}  // namespace
