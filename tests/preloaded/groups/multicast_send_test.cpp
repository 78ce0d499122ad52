// SPDX-License-Identifier: BSD-2-Clause
// Datagrams to groups on the wire: the frames of the library beside those of the kernel, which of the two
// sent them, and receivers on the same host that come and go.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/mroute.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "libvma/net/frame.h"
#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"
#include "tests/support/hosts/stats_file.h"

namespace {

using namespace testing_support;

constexpr const char* kGroup = "239.1.2.3";

// Host a has the agents "library" and "kernel", host b the kernel's receiver. A socket on the wire at b shows
// each frame.
class MulticastSend : public testing::Test {
  protected:
    void start(std::vector<std::string> env = {}) {
        hosts =
            std::make_unique<TwoHosts>(Wire{.links = 2, .second_address = true, .known_neighbours = true});
        library = std::make_unique<Agent>(*hosts, Host::a, with_library(std::move(env)));
        kernel = std::make_unique<Agent>(*hosts, Host::a);
        b = std::make_unique<Agent>(*hosts, Host::b);
        EXPECT_EQ(b->ask("open g 0.0.0.0 6000"), "ok 6000");
        for (int link : {1, 2})
            EXPECT_EQ(b->ask(std::string("join g ") + kGroup + " " + TwoHosts::address(Host::b, link)), "ok");
        b->ask("set g rcvbuf 2000000");
        On host(*hosts, Host::b);
        for (int link : {1, 2}) {
            wire[link - 1] = packet_socket(TwoHosts::interface(link), htons(ETH_P_IP));
            ASSERT_TRUE(wire[link - 1]);
        }
    }
    void TearDown() override {
        if (HasFailure() && library) std::cout << "log of the library:\n" << library->process().err();
    }

    // The next frame to a group or a gateway on the wire: addresses, TTL, TOS, don't-fragment; payload
    // length.
    std::string next_frame(int link = 1) const {
        for (;;) {
            pollfd p{wire[link - 1].get(), POLLIN, 0};
            if (poll(&p, 1, 3000) <= 0) return "nothing";
            std::uint8_t frame[2048];
            const ssize_t got = recv(p.fd, frame, sizeof frame, MSG_DONTWAIT);
            if (got < static_cast<ssize_t>(vma::net::kUdpHeaders)) continue;
            vma::net::EthernetHeader e;
            vma::net::Ipv4Header ip;
            std::memcpy(&e, frame, sizeof e);
            std::memcpy(&ip, frame + sizeof e, sizeof ip);
            if (ip.protocol != IPPROTO_UDP || !IN_MULTICAST(ntohl(ip.dst))) continue;
            std::string text;
            for (const std::uint8_t byte : e.dst) text += two_digits(byte);
            text += " from ";
            for (const std::uint8_t byte : e.src) text += two_digits(byte);
            text += " " + dotted(ip.src) + " to " + dotted(ip.dst) + " ttl " + std::to_string(ip.ttl) +
                    " tos " + std::to_string(ip.tos) +
                    (ntohs(ip.fragment) == vma::net::kDontFragment ? " DF" : "") + " ports " +
                    std::to_string(frame[34] << 8 | frame[35]) + " " +
                    std::to_string(frame[36] << 8 | frame[37]) + " length " +
                    std::to_string(ntohs(ip.total_length));
            return text;
        }
    }
    static std::string two_digits(unsigned byte) {
        char text[4];
        std::snprintf(text, sizeof text, "%02x", byte);
        return text;
    }
    static std::string dotted(std::uint32_t address) {
        char text[INET_ADDRSTRLEN];
        const in_addr a{address};
        return inet_ntop(AF_INET, &a, text, sizeof text);
    }

    // Both agents of host a open such a socket and send; the frames have to be the same.
    void expect_same_frame(const std::string& address, const std::vector<std::string>& settings, int link = 1,
                           const std::string& group = kGroup) {
        std::string frames[2];
        for (Agent* agent : {kernel.get(), library.get()}) {
            EXPECT_EQ(agent->ask("open f " + address + " 5009"), "ok 5009");
            for (const std::string& setting : settings) EXPECT_EQ(agent->ask("set f " + setting), "ok");
            const long before = sent_by_kernel();
            EXPECT_EQ(agent->ask("send f " + group + " 6000 100"), "sent 1");
            frames[agent == library.get()] = next_frame(link);
            EXPECT_EQ(sent_by_kernel() - before, agent == library.get() ? 0 : 1) << agent->process().err();
            agent->ask("close f");
        }
        EXPECT_EQ(frames[0], frames[1]);
        EXPECT_NE(frames[0], "nothing");
    }
    long sent_by_kernel() const { return Agent::value(kernel->ask("udp"), "out"); }
    // The library's agent gets its socket "s", which sends by link 1.
    void open_sender() {
        open_socket(*library, Host::a, 5000);
        EXPECT_EQ(library->ask("set s multicast_if 198.18.1.1"), "ok");
    }
    std::string send(int count, int seed = 0, int gap_usec = 0) {
        return library->ask(std::string("send s ") + kGroup + " 6000 100 " + std::to_string(count) + " " +
                            std::to_string(seed) + " " + std::to_string(gap_usec));
    }
    // Sends until one datagram more goes the other way.
    bool wait_for_kernel(bool wanted) {
        for (int i = 0; i < 300; i++) {
            const long before = sent_by_kernel();
            EXPECT_EQ(send(1), "sent 1");
            if ((sent_by_kernel() > before) == wanted) return true;
            usleep(10'000);
        }
        return false;
    }

    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> library, kernel, b;
    Fd wire[2];
};

TEST_F(MulticastSend, FramesAreTheKernels) {
    start();
    expect_same_frame("198.18.1.1", {});
    expect_same_frame("198.18.1.101", {"multicast_ttl 17", "ttl 99", "tos 184"});
    expect_same_frame("0.0.0.0", {"multicast_if 198.18.1.101"});
    expect_same_frame("198.18.1.101", {"multicast_if 198.18.1.1", "multicast_loop 0"});
    expect_same_frame("198.18.2.1", {}, 2);
    expect_same_frame("198.18.1.1", {"multicast_if 198.18.2.1", "multicast_ttl 255"}, 2);
    expect_same_frame("198.18.1.1", {}, 1, "239.255.255.250");
    expect_same_frame("198.18.1.1", {}, 1, "224.0.0.251");
    expect_same_frame("198.18.1.1", {"pmtu 2"}, 1, "232.129.2.3");
}

TEST_F(MulticastSend, OverTheRing) {
    start();
    open_sender();
    const long before = sent_by_kernel();
    EXPECT_EQ(send(500), "sent 500");
    EXPECT_EQ(b->ask("drain g 300"), "count=500 distinct=500 disordered=0 bad=0");
    EXPECT_EQ(sent_by_kernel() - before, 0);
    StatsFile file(library->process().pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, file));
    const auto s = file.socket(SOCK_DGRAM, 5000);
    ASSERT_TRUE(s);
    EXPECT_EQ(s->tx_path, static_cast<std::uint8_t>(vma::stats::Path::offloaded));
    EXPECT_EQ(s->tx_offload.packets, 500u);
    EXPECT_EQ(s->tx_os.packets, 0u);
}

// A receiver of another process gets its copies within the window, and the far side misses and doubles
// nothing meanwhile.
TEST_F(MulticastSend, ForeignMembersComeAndGo) {
    start();
    open_sender();
    EXPECT_EQ(kernel->ask("open k 0.0.0.0 6000"), "ok 6000");
    kernel->ask("set k rcvbuf 2000000");
    EXPECT_EQ(send(10), "sent 10");
    EXPECT_EQ(kernel->ask("recv k 50"), "timeout");
    EXPECT_EQ(b->ask("drain g 200"), "count=10 distinct=10 disordered=0 bad=0");

    library->post(std::string("send s ") + kGroup + " 6000 100 2000 0 300");
    usleep(100'000);
    EXPECT_EQ(kernel->ask(std::string("join k ") + kGroup + " 198.18.1.1"), "ok");
    EXPECT_EQ(library->answer(), "sent 2000");
    const std::string here = kernel->ask("drain k 200"), there = b->ask("drain g 200");
    EXPECT_GT(Agent::value(here, "count"), 0) << here;
    EXPECT_EQ(Agent::value(here, "count"), Agent::value(here, "distinct")) << here;
    EXPECT_EQ(Agent::value(there, "count"), 2000) << there;
    EXPECT_EQ(Agent::value(there, "distinct"), 2000) << there;
    // From now on none is missed.
    EXPECT_EQ(send(200), "sent 200");
    EXPECT_EQ(kernel->ask("drain k 200"), "count=200 distinct=200 disordered=0 bad=0");

    StatsFile file(library->process().pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, file));
    const auto s = file.socket(SOCK_DGRAM, 5000);
    ASSERT_TRUE(s);
    EXPECT_EQ(s->tx_reason, static_cast<std::uint16_t>(vma::stats::Reason::multicast));
    EXPECT_STREQ(reinterpret_cast<const char*>(s->detail), "this host is a member, and gets a copy");

    EXPECT_EQ(kernel->ask("close k"), "ok");
    EXPECT_TRUE(wait_for_kernel(false)) << "the ring does not come back";
    // The same once more: the look goes on.
    EXPECT_EQ(kernel->ask("open k 0.0.0.0 6000"), "ok 6000");
    EXPECT_EQ(kernel->ask(std::string("join k ") + kGroup + " 198.18.1.1"), "ok");
    EXPECT_TRUE(wait_for_kernel(true)) << "the member is not seen";
    // A member of another group, or at the other link, is none.
    EXPECT_EQ(kernel->ask("close k"), "ok");
    EXPECT_TRUE(wait_for_kernel(false));
    EXPECT_EQ(kernel->ask("open k 0.0.0.0 6000"), "ok 6000");
    EXPECT_EQ(kernel->ask(std::string("join k ") + kGroup + " 198.18.2.1"), "ok");
    EXPECT_EQ(kernel->ask("join k 239.1.2.4 198.18.1.1"), "ok");
    usleep(300'000);
    EXPECT_TRUE(wait_for_kernel(false));
    const long before = sent_by_kernel();
    EXPECT_EQ(send(20), "sent 20");
    EXPECT_EQ(sent_by_kernel(), before);
}

// What the process itself joins counts from the next datagram on.
TEST_F(MulticastSend, OwnMembersCountAtOnce) {
    start();
    open_sender();
    EXPECT_EQ(library->ask("open m 0.0.0.0 6000 reuseaddr"), "ok 6000");
    for (int round = 0; round < 3; round++) {
        EXPECT_TRUE(wait_for_kernel(false));
        library->ask("drain m 50");
        b->ask("drain g 50");
        EXPECT_EQ(library->ask(std::string("join m ") + kGroup + " 198.18.1.1"), "ok");
        EXPECT_EQ(send(20), "sent 20");
        EXPECT_EQ(library->ask("drain m 200"), "count=20 distinct=20 disordered=0 bad=0");
        EXPECT_EQ(b->ask("drain g 200"), "count=20 distinct=20 disordered=0 bad=0");
        EXPECT_EQ(library->ask("set s multicast_loop 0"), "ok");
        const long before = sent_by_kernel();
        EXPECT_EQ(send(20), "sent 20");
        EXPECT_EQ(sent_by_kernel(), before) << "without a copy the ring sends";
        EXPECT_EQ(library->ask("drain m 50"), "count=0 distinct=0 disordered=0 bad=0");
        EXPECT_EQ(library->ask("set s multicast_loop 1"), "ok");
        EXPECT_EQ(library->ask("close m"), "ok");
        EXPECT_EQ(library->ask("open m 0.0.0.0 6000 reuseaddr"), "ok 6000");
    }
}

TEST_F(MulticastSend, RoutesAreTheKernels) {
    start();
    hosts->ip(Host::a, {"route", "add", "239.0.0.0/8", "dev", "veth2"});
    expect_same_frame("0.0.0.0", {}, 2);
    // The route's choice, not the bound address's, as soon as the option names an interface.
    expect_same_frame("0.0.0.0", {"multicast_if 198.18.1.1"}, 1);
    EXPECT_EQ(library->ask("open s 0.0.0.0 5000"), "ok 5000");
    EXPECT_EQ(send(1), "sent 1");
    EXPECT_NE(next_frame(2).find("198.18.2.1 to"), std::string::npos);
    hosts->ip(Host::a, {"route", "replace", "239.0.0.0/8", "dev", "veth1", "src", "198.18.1.101"});
    EXPECT_EQ(send(1), "sent 1");
    EXPECT_NE(next_frame(1).find("198.18.1.101 to"), std::string::npos);
    // A gateway of such a route gets the frame; that of a default route does not.
    hosts->ip(Host::a, {"route", "replace", "239.0.0.0/8", "via", "198.18.1.2"});
    std::string frames[2];
    for (Agent* agent : {kernel.get(), library.get()}) {
        EXPECT_EQ(agent->ask("open f 0.0.0.0 5009"), "ok 5009");
        EXPECT_EQ(agent->ask(std::string("send f ") + kGroup + " 6000 100"), "sent 1");
        frames[agent == library.get()] = next_frame(1);
        agent->ask("close f");
    }
    EXPECT_EQ(frames[0], frames[1]);
    hosts->ip(Host::a, {"route", "del", "239.0.0.0/8"});
    hosts->ip(Host::a, {"route", "add", "default", "via", "198.18.2.2"});
    expect_same_frame("0.0.0.0", {}, 2);
    hosts->ip(Host::a, {"route", "del", "default"});
    EXPECT_EQ(send(1), "sent 0 error ENETUNREACH");
}

TEST_F(MulticastSend, RulesOfTheFile) {
    Scratch scratch;
    scratch.write("libvma.conf", "use os udp_sender 239.1.2.0/24:6000\n");
    start({"VMA_CONFIG_FILE=" + scratch.path("libvma.conf")});
    open_sender();
    long before = sent_by_kernel();
    EXPECT_EQ(send(5), "sent 5");
    EXPECT_EQ(sent_by_kernel() - before, 5);
    before = sent_by_kernel();
    for (const char* to : {"239.1.2.3 6001", "239.1.3.3 6000"})
        EXPECT_EQ(library->ask(std::string("send s ") + to + " 100 5"), "sent 5");
    EXPECT_EQ(sent_by_kernel() - before, 0);
}

// A router on this host (mrouted, pimd) gets the copies that receivers would get.
TEST_F(MulticastSend, RouterOnThisHost) {
    start();
    open_sender();
    EXPECT_TRUE(wait_for_kernel(false));
    {
        const On host(*hosts, Host::a);
        const Fd router(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_IGMP));
        const int on = 1;
        if (setsockopt(router.get(), IPPROTO_IP, MRT_INIT, &on, sizeof on) != 0)
            GTEST_SKIP() << "the kernel has no multicast routing";
        EXPECT_TRUE(wait_for_kernel(true)) << "the router is not seen";
        EXPECT_EQ(library->ask("set s multicast_loop 0"), "ok");
        EXPECT_TRUE(wait_for_kernel(false)) << "it gets copies only with IP_MULTICAST_LOOP";
        EXPECT_EQ(library->ask("set s multicast_loop 1"), "ok");
    }
    EXPECT_TRUE(wait_for_kernel(false));
}

TEST_F(MulticastSend, LoopbackParameter) {
    start({"VMA_TX_MC_LOOPBACK=0"});
    open_sender();
    EXPECT_EQ(kernel->ask("open k 0.0.0.0 6000"), "ok 6000");
    EXPECT_EQ(kernel->ask(std::string("join k ") + kGroup + " 198.18.1.1"), "ok");
    const long before = sent_by_kernel();
    EXPECT_EQ(send(10), "sent 10");
    EXPECT_EQ(sent_by_kernel() - before, 0);
    EXPECT_EQ(kernel->ask("recv k 100"), "timeout");
    StatsFile file(library->process().pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, file));
    EXPECT_EQ(file.socket(SOCK_DGRAM, 5000)->multicast_loop, 0);
    // The program has the last word.
    EXPECT_EQ(library->ask("set s multicast_loop 1"), "ok");
    EXPECT_EQ(send(10), "sent 10");
    EXPECT_EQ(kernel->ask("drain k 100"), "count=10 distinct=10 disordered=0 bad=0");
}

}  // namespace
