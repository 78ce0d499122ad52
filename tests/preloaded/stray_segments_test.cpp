// SPDX-License-Identifier: BSD-2-Clause
// Segments of offloaded connections that reach the kernel. Each cause, with the program as a server and as a
// client, on the kernel and on the library: the peer gets every byte and no reset.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "tests/support/attacker/raw_peer.h"
#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;
using attacker::RawPeer;
using attacker::Way;

constexpr std::uint16_t kPort = 4567;
constexpr std::size_t kBytes = 1200;  // of a segment
using attacker::kAck, attacker::kFin, attacker::kPsh, attacker::kRst;

// What a peer saw, said on standard output; the process ends with 0 when all went well.
int verdict(bool ok, const char* what, const RawPeer& peer, const RawPeer::End& end) {
    if (!ok || peer.resets() != 0)
        printf("failed: %s; resets %u, heard %zu bytes, acked %u of %u, fin %d\n", what, peer.resets(),
               end.heard.size(), end.acked - end.first - 1, end.highest - end.first - 1, end.their_fin);
    fflush(stdout);
    return ok && peer.resets() == 0 ? 0 : 1;
}

// Data by this way, thrice; the program echoes it. Then an end by this way.
int converse(RawPeer& peer, RawPeer::End& end, Way way, std::size_t heard_before) {
    for (int i = 0; i < 3; i++) {
        const std::size_t want = end.heard.size() + kBytes;
        const std::string sent = end.content(end.snd, kBytes);
        peer.say(end, kAck | kPsh, kBytes, way);
        if (!peer.hear_for(5000, [&] { return end.heard.size() >= want || end.resets != 0; }))
            return verdict(false, "an echo of data", peer, end);
        if (end.heard.substr(want - kBytes) != sent) return verdict(false, "other bytes", peer, end);
    }
    if (end.heard.size() != heard_before + 3 * kBytes) return verdict(false, "its length", peer, end);
    // An ACK alone, and what the program must not see: data that came before.
    peer.say(end, kAck, 0, way);
    attacker::Segment again = end.segment(kAck | kPsh);
    again.seq -= kBytes;
    again.payload = end.content(again.seq, kBytes);
    peer.send(attacker::build(again, RawPeer::kMac, peer.theirs()), way);
    peer.say(end, kFin | kAck, 0, way);
    if (!peer.hear_for(5000, [&] { return end.their_fin || end.resets != 0; }))
        return verdict(false, "the program's end", peer, end);
    peer.say(end, kAck, 0, way);
    // The connection is over. What comes now finds a server in no state, and a client in none either, since
    // this end closed first: it is a stranger's, and a reset answers it, as from the kernel. So nothing more.
    return verdict(end.heard.size() == heard_before + 3 * kBytes, "its length at the end", peer, end);
}

struct Wired {
    RawPeer peer{"veth1", "198.18.1.2"}, other{"veth2", "198.18.2.2"};
    Wired() { peer.detour = &other; }
};

// `first`: the way of the SYN.
int as_client(Way way, bool stamps, std::uint16_t port, Way first = Way::plain) try {
    Wired wired;
    RawPeer& peer = wired.peer;
    RawPeer::End end;
    if (!peer.open(end, port, kPort, stamps, way, first)) return verdict(false, "a SYN-ACK", peer, end);
    return converse(peer, end, way, 0);
} catch (const std::exception& e) {
    return printf("%s\n", e.what()), 2;
}

int as_server(Way way, bool stamps) try {
    Wired wired;
    RawPeer& peer = wired.peer;
    RawPeer::End end;
    if (!peer.accept(end, kPort, stamps, way)) return verdict(false, "a handshake", peer, end);
    constexpr std::size_t kFirst = 4000;  // what the program says first
    if (!peer.hear_for(5000, [&] { return end.heard.size() >= kFirst; }))
        return verdict(false, "the first bytes", peer, end);
    return converse(peer, end, way, kFirst);
} catch (const std::exception& e) {
    return printf("%s\n", e.what()), 2;
}

// A reset by this way ends the connection: the server says how many it has at its end.
int as_client_that_resets(Way way, std::uint16_t port) try {
    Wired wired;
    RawPeer& peer = wired.peer;
    RawPeer::End end;
    if (!peer.open(end, port, kPort, true, way)) return verdict(false, "a SYN-ACK", peer, end);
    peer.say(end, kAck | kPsh, kBytes, way);
    if (!peer.hear_for(5000, [&] { return end.heard.size() >= kBytes; }))
        return verdict(false, "an echo", peer, end);
    peer.hear_for(100);
    peer.say(end, kRst, 0, way);
    peer.hear_for(300);
    return verdict(true, "", peer, end);
} catch (const std::exception& e) {
    return printf("%s\n", e.what()), 2;
}

// What comes by this way with a wrong checksum is nothing: no answer, no end. The conversation goes on.
int as_client_that_errs(Way way, std::uint16_t port) try {
    Wired wired;
    RawPeer& peer = wired.peer;
    RawPeer::End end;
    if (!peer.open(end, port, kPort, true, way)) return verdict(false, "a SYN-ACK", peer, end);
    for (const std::uint8_t flags : {kAck | kPsh, kAck | kFin, kRst | kAck}) {
        attacker::Frame frame =
            attacker::build(end.segment(flags, flags & kRst ? 0 : kBytes), RawPeer::kMac, peer.theirs());
        frame[attacker::kEthernet + attacker::kIp + 17] ^= 1;
        const std::uint32_t acked = end.acked;
        peer.send(std::move(frame), way);
        peer.hear_for(200);
        if (end.acked != acked || end.resets != 0 || end.their_fin || !end.heard.empty())
            return verdict(false, "silence", peer, end);
    }
    return converse(peer, end, way, 0);
} catch (const std::exception& e) {
    return printf("%s\n", e.what()), 2;
}

struct Case {
    Way way;
    bool stamps;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << attacker::name_of(c.way) << (c.stamps ? "_stamps" : "");
}

class StraySegments : public testing::TestWithParam<Case> {
  protected:
    static RunOptions options(bool library) {
        return library ? with_library({"VMA_TRACELEVEL=debug"}) : RunOptions{};
    }
    Process program(bool library, std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), app("tcp_victim"));
        Process victim = hosts.run(Host::b, arguments, options(library));
        EXPECT_TRUE(victim.wait_for_out("ready", milliseconds(10000) * patience())) << victim.err();
        return victim;
    }
    // Each program hears of a connection of its own.
    static std::uint16_t port_of(bool library) { return library ? 20001 : 20000; }
    // What matters of a log at level debug.
    static std::string briefly(const std::string& log) {
        std::string out;
        std::istringstream lines(log);
        for (std::string line; std::getline(lines, line);)
            if (line.find("DEBUG") == line.npos && line.find("INFO") == line.npos) out += line + "\n";
        return out + log.substr(log.size() - std::min<std::size_t>(log.size(), 300));
    }
    // `stray`: some segments have come back from the kernel.
    void expect_well(std::function<int()> peer, Process& victim, bool library, bool stray = true) {
        const Exit told = hosts.run(Host::a, std::move(peer)).wait(milliseconds(60000) * patience());
        victim.kill(SIGTERM);
        const Exit end = victim.wait(milliseconds(20000) * patience());
        EXPECT_EQ(told.code, 0) << (library ? "library: " : "kernel: ") << told.out << told.err
                                << briefly(end.err);
        EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << briefly(end.err);
        // A program on an skb does not see the tag, so it takes the frame.
        if (library && stray && GetParam().way != Way::priority_tag) {
            EXPECT_NE(end.err.find(" rx_strays "), end.err.npos) << briefly(end.err);
        }
        ended = end.out;
    }
    // The program serves this peer, on the kernel and on the library. At its end it has no connection.
    template <class Peer>
    void expect_served(Peer peer, bool stray = true) {
        for (const bool library : {false, true}) {
            Process victim = program(library, {"serve", std::to_string(kPort)});
            expect_well([=, c = GetParam()] { return peer(c, port_of(library)); }, victim, library, stray);
            EXPECT_NE(ended.find("ended with 0 connections"), ended.npos) << ended;
        }
    }
    // The kernel takes segments by any interface.
    void SetUp() override {
        hosts.sysctl(Host::b, {"net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.veth1.rp_filter=0",
                               "net.ipv4.conf.veth2.rp_filter=0"});
    }
    TwoHosts hosts{Wire{.links = 2}};
    std::string ended;
};

TEST_P(StraySegments, ReachAServer) {
    expect_served([](Case c, std::uint16_t port) { return as_client(c.way, c.stamps, port); });
}

TEST_P(StraySegments, ReachAClient) {
    for (const bool library : {false, true}) {
        Process victim = program(library, {"once", "198.18.1.60", std::to_string(kPort)});
        expect_well([c = GetParam()] { return as_server(c.way, c.stamps); }, victim, library);
    }
}

TEST_P(StraySegments, ResetAServer) {
    expect_served([](Case c, std::uint16_t port) { return as_client_that_resets(c.way, port); });
}

// A SYN by such a way is the kernel's to answer, so the connection is the kernel's. That one answers a
// recorded route by options of its own, which this peer does not read.
class StraySyns : public StraySegments {};

TEST_P(StraySyns, ReachAServer) {
    expect_served([](Case c, std::uint16_t port) { return as_client(c.way, c.stamps, port, c.way); }, false);
}

class DamagedStrays : public StraySegments {};

TEST_P(DamagedStrays, AreNothing) {
    expect_served([](Case c, std::uint16_t port) { return as_client_that_errs(c.way, port); });
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
    return std::string(attacker::name_of(info.param.way)) + (info.param.stamps ? "_stamps" : "");
}

INSTANTIATE_TEST_SUITE_P(Ways, StraySegments,
                         testing::Values(Case{Way::nops, true}, Case{Way::nops, false},
                                         Case{Way::record_route, true}, Case{Way::router_alert, false},
                                         Case{Way::fragments, false}, Case{Way::fragments_reversed, true},
                                         Case{Way::eighths, true}, Case{Way::nop_fragments, true},
                                         Case{Way::priority_tag, true}, Case{Way::other_interface, true}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Ways, StraySyns,
                         testing::Values(Case{Way::nops, true}, Case{Way::router_alert, false},
                                         Case{Way::fragments, false}, Case{Way::nop_fragments, true},
                                         Case{Way::priority_tag, true}, Case{Way::other_interface, true}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Ways, DamagedStrays,
                         testing::Values(Case{Way::nops, true}, Case{Way::fragments, true},
                                         Case{Way::priority_tag, true}, Case{Way::other_interface, true}),
                         case_name);

// ---- a namespace where no more programs may look for listeners ----

// Programs that decide nothing, in the network namespace of this thread.
std::vector<Fd> fill_namespace() {
    const bpf_insn pass[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = SK_PASS},
                             {.code = BPF_JMP | BPF_EXIT}};
    const Fd here(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    const Fd program = load_program(BPF_PROG_TYPE_SK_LOOKUP, pass, "", BPF_SK_LOOKUP);
    std::vector<Fd> links;
    do {
        links.push_back(link_program(program, static_cast<std::uint32_t>(here.get()), BPF_SK_LOOKUP));
    } while (links.back());
    links.pop_back();
    return links;
}

TEST(FullNamespace, CostsNothingButTheStrays) {
    TwoHosts hosts;
    std::vector<Fd> links;
    {
        const On there(hosts, Host::b);
        links = fill_namespace();
    }
    ASSERT_GT(links.size(), 10u);
    for (const bool full : {true, false}) {
        if (!full) links.clear();
        Process victim = hosts.run(Host::b, {app("tcp_victim"), "serve", std::to_string(kPort)},
                                   with_library({"VMA_TRACELEVEL=info"}));
        ASSERT_TRUE(victim.wait_for_out("ready", milliseconds(10000) * patience())) << victim.err();
        const Exit client = hosts
                                .run(Host::a, {app("tcp_attacker"), "honest", TwoHosts::address(Host::b),
                                               std::to_string(kPort), "20", "10000"})
                                .wait(milliseconds(30000) * patience());
        EXPECT_TRUE(client.ok()) << client.out << client.err;
        EXPECT_TRUE(hosts.wait_offloaded(Host::b, true));
        victim.kill(SIGTERM);
        const Exit end = victim.wait(milliseconds(20000) * patience());
        EXPECT_TRUE(end.ok()) << end.err;
        EXPECT_EQ(end.err.find("they cannot be taken back") != end.err.npos, full) << end.err;
    }
}

// ---- a receive queue that is not the ring's ----

// How many receive and transmit queues veth1 uses (ethtool -L).
int set_queues(unsigned count) {
    ethtool_channels channels{};
    channels.cmd = ETHTOOL_GCHANNELS;
    ifreq request{};
    strcpy(request.ifr_name, "veth1");
    request.ifr_data = reinterpret_cast<char*>(&channels);
    const Fd fd(socket(AF_INET, SOCK_DGRAM, 0));
    if (ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return 1;
    channels.cmd = ETHTOOL_SCHANNELS;
    channels.rx_count = channels.tx_count = count;
    return ioctl(fd.get(), SIOCETHTOOL, &request) != 0;
}

struct Queues {
    const char* name;
    int made;
    unsigned before, after;
    const char* mode;
    bool strays;  // some arrive by a queue without a socket
};
void PrintTo(const Queues& q, std::ostream* out) { *out << q.name; }

class FurtherQueues : public testing::TestWithParam<Queues> {
  protected:
    int use(Host host, unsigned count) {
        return hosts.run(host, [=] { return set_queues(count); }).wait().code;
    }
    TwoHosts hosts{Wire{.queues = GetParam().made}};
};

// Connections that the program opens, before and after the change: the queues share the answers.
TEST_P(FurtherQueues, LoseNoConnection) {
    const Queues& q = GetParam();
    for (const Host host : {Host::a, Host::b}) ASSERT_EQ(use(host, q.before), 0);
    Process server = hosts.run(Host::a, {app("tcp_victim"), "serve", std::to_string(kPort)});
    ASSERT_TRUE(server.wait_for_out("ready", milliseconds(10000) * patience())) << server.err();
    Process client = hosts.run(
        Host::b,
        {app("tcp_attacker"), "honest", TwoHosts::address(Host::a), std::to_string(kPort), "150", "60000"},
        with_library({std::string("VMA_XDP_MODE=") + q.mode, "VMA_TRACELEVEL=debug"}));
    EXPECT_TRUE(hosts.wait_offloaded(Host::b, true));
    if (q.after != q.before) {
        for (const Host host : {Host::b, Host::a}) ASSERT_EQ(use(host, q.after), 0);
    }
    const Exit end = client.wait(milliseconds(60000) * patience());
    EXPECT_TRUE(end.ok()) << end.code << (end.timed_out ? " timed out\n" : "\n") << end.out;
    if (q.strays) {
        EXPECT_NE(end.err.find(" rx_strays "), end.err.npos) << end.err;
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, FurtherQueues,
                         testing::Values(Queues{"native_1_to_4", 4, 1, 4, "drv", true},
                                         Queues{"generic_1_to_4", 4, 1, 4, "skb", false},
                                         Queues{"native_96", 96, 96, 96, "drv", true},
                                         Queues{"generic_96", 96, 96, 96, "skb", false}),
                         [](const auto& info) { return std::string(info.param.name); });

// Of two more rounds of live_connections the second has begun after this call.
bool two_rounds(Process& client) {
    const std::string said = client.out();
    const auto last = said.rfind("round ");
    const int round = last == said.npos ? 0 : atoi(said.c_str() + last + 6);
    return client.wait_for_out("round " + std::to_string(round + 2) + "\n", milliseconds(60000) * patience());
}

// A hundred connections that stay, opened by the library or accepted by it, while queues come and go.
struct LiveQueues {
    const char* mode;
    bool opens;  // the program with the library is the client
};
void PrintTo(const LiveQueues& q, std::ostream* out) { *out << q.mode << (q.opens ? " client" : " server"); }

class LiveConnections : public testing::TestWithParam<LiveQueues> {};

TEST_P(LiveConnections, OutliveQueues) {
    constexpr unsigned kCounts[] = {1, 2, 64, 65, 96, 128, 65, 4, 1};
    const auto [mode, opens] = GetParam();
    TwoHosts hosts{Wire{.queues = 128}};
    // An interface with a native program has at least the receive queues that its peer can send to.
    const Host ours = opens ? Host::b : Host::a, theirs = opens ? Host::a : Host::b;
    unsigned before = 128;
    auto use = [&](unsigned count) {
        const bool more = count > before;
        // The kernel takes no queue away that an XSK is bound to.
        for (const Host host : {more ? ours : theirs, more ? theirs : ours})
            if (const int code = hosts.run(host, [=] { return set_queues(count); }).wait().code; code != 0) {
                ASSERT_TRUE(!more && host == ours && mode != std::string("auto")) << count;
            }
        before = count;
    };
    ASSERT_NO_FATAL_FAILURE(use(kCounts[0]));
    const RunOptions library = with_library({std::string("VMA_XDP_MODE=") + mode}), kernel;
    Process server =
        hosts.run(Host::a, {app("tcp_victim"), "serve", std::to_string(kPort)}, opens ? kernel : library);
    ASSERT_TRUE(server.wait_for_out("ready", milliseconds(10000) * patience())) << server.err();
    Process client = hosts.run(
        Host::b, {app("live_connections"), TwoHosts::address(Host::a), std::to_string(kPort), "100"},
        opens ? library : kernel);
    EXPECT_TRUE(hosts.wait_offloaded(ours, true));
    for (const unsigned count : kCounts) {
        ASSERT_NO_FATAL_FAILURE(use(count));
        ASSERT_TRUE(two_rounds(client)) << count << " queues\n"
                                        << client.out() << client.err() << server.err();
    }
    client.kill(SIGTERM);
    EXPECT_TRUE(client.wait().ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, LiveConnections,
                         testing::Values(LiveQueues{"drv", true}, LiveQueues{"drv", false},
                                         LiveQueues{"skb", true}, LiveQueues{"skb", false},
                                         LiveQueues{"auto", true}, LiveQueues{"auto", false}),
                         [](const auto& info) {
                             return std::string(info.param.mode) + (info.param.opens ? "_client" : "_server");
                         });

// The ring takes the frames of queues that come later, so the kernel gets no segment any more.
struct Followed {
    const char* name;
    const char* mode;
    const char* rings;  // VMA_RING_ALLOCATION_LOGIC_RX
};
void PrintTo(const Followed& f, std::ostream* out) { *out << f.name; }

class FollowedQueues : public testing::TestWithParam<Followed> {};

TEST_P(FollowedQueues, LeaveTheKernelNothing) {
    const Followed& f = GetParam();
    TwoHosts hosts{Wire{.queues = 4}};
    auto use = [&](unsigned count) {
        for (const Host host : {Host::b, Host::a})
            ASSERT_EQ(hosts.run(host, [=] { return set_queues(count); }).wait().code, 0) << count;
    };
    auto segments = [&] {
        return hosts.run(Host::b, {"sh", "-c", "grep Tcp: /proc/net/snmp | tail -1 | cut -d' ' -f11"})
            .wait()
            .out;
    };
    ASSERT_NO_FATAL_FAILURE(use(1));
    Process server = hosts.run(Host::a, {app("tcp_victim"), "serve", std::to_string(kPort)});
    ASSERT_TRUE(server.wait_for_out("ready", milliseconds(10000) * patience())) << server.err();
    Process client =
        hosts.run(Host::b, {app("live_connections"), TwoHosts::address(Host::a), std::to_string(kPort), "40"},
                  with_library({std::string("VMA_XDP_MODE=") + f.mode, "VMA_TRACELEVEL=info",
                                std::string("VMA_RING_ALLOCATION_LOGIC_RX=") + f.rings,
                                std::string("VMA_RING_ALLOCATION_LOGIC_TX=") + f.rings,
                                "VMA_RING_LIMIT_PER_INTERFACE=4"}));
    ASSERT_TRUE(two_rounds(client)) << client.out() << client.err();
    ASSERT_NO_FATAL_FAILURE(use(4));
    // veth runs a native program on new queues only when it is up anew.
    if (f.mode == std::string("drv")) hosts.ip_batch(Host::b, {"link set veth1 down", "link set veth1 up"});
    EXPECT_TRUE(client.wait_for_err(" 4 of 4 queues", milliseconds(10000) * patience())) << client.err();
    std::this_thread::sleep_for(milliseconds(100));  // the other rings follow the first one at once
    ASSERT_TRUE(two_rounds(client)) << client.out() << client.err();
    const std::string before = segments();
    ASSERT_TRUE(two_rounds(client)) << client.out() << client.err();
    EXPECT_EQ(segments(), before) << client.err();
    client.kill(SIGTERM);
    EXPECT_TRUE(client.wait().ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, FollowedQueues,
                         testing::Values(Followed{"native", "drv", "0"}, Followed{"generic", "skb", "0"},
                                         Followed{"native_rings", "drv", "10"}),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- the silent listener and its end ----

class SilentListener : public testing::Test {
  protected:
    // Port of each listening socket on 127.86.77.66.
    std::vector<int> ports() {
        std::vector<int> found;
        const Exit listed = hosts.run(Host::b, {"cat", "/proc/net/tcp"}).wait();
        for (std::size_t at = 0; (at = listed.out.find("424D567F:", at)) != listed.out.npos; at += 9)
            found.push_back(std::stoi(listed.out.substr(at + 9, 4), nullptr, 16));
        return found;
    }
    Process server(int port) {
        Process made = hosts.run(Host::b, {app("tcp_victim"), "serve", std::to_string(port)}, with_library());
        EXPECT_TRUE(made.wait_for_out("ready", milliseconds(10000) * patience())) << made.err();
        return made;
    }
    // What connect() says, and whether a connection of a peer works.
    int dial(int port) {
        return hosts
            .run(Host::b,
                 [port] {
                     const Fd fd(socket(AF_INET, SOCK_STREAM, 0));
                     sockaddr_in to{};
                     to.sin_family = AF_INET;
                     to.sin_port = htons(static_cast<in_port_t>(port));
                     to.sin_addr.s_addr = inet_addr("127.86.77.66");
                     return connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
                 })
            .wait(milliseconds(5000))
            .code;
    }
    bool serves(int port) {
        return hosts
            .run(Host::a, {app("tcp_attacker"), "honest", TwoHosts::address(Host::b), std::to_string(port),
                           "3", "10000"})
            .wait(milliseconds(20000) * patience())
            .ok();
    }
    TwoHosts hosts;
};

TEST_F(SilentListener, RefusesWhoConnects) {
    Process victim = server(kPort);
    const std::vector<int> listed = ports();
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(dial(listed[0]), ECONNREFUSED);
    EXPECT_TRUE(serves(kPort));
}

TEST_F(SilentListener, GoesWithAKilledProcess) {
    for (int i = 0; i < 3; i++) {
        Process victim = server(kPort);
        EXPECT_TRUE(serves(kPort));
        EXPECT_EQ(ports().size(), 1u);
        victim.kill(SIGKILL);
        victim.wait();
        EXPECT_TRUE(ports().empty());
    }
    // On the kernel alone the port works, too.
    Process victim = hosts.run(Host::b, {app("tcp_victim"), "serve", std::to_string(kPort)});
    ASSERT_TRUE(victim.wait_for_out("ready", milliseconds(10000) * patience()));
    EXPECT_TRUE(serves(kPort));
}

}  // namespace
