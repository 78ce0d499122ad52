// SPDX-License-Identifier: BSD-2-Clause
// libvma.conf by what it does: for each form of a rule and each role, which way the packets went. The
// kernel's own counters in the namespace tell, and the library's log names the rule that decided.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;
using testing::HasSubstr;
using testing::Not;

constexpr int kCount = 30;  // datagrams or messages each way in a conversation

enum class Way { library, kernel };
void PrintTo(Way way, std::ostream* out) { *out << (way == Way::library ? "library" : "kernel"); }

// Which way a conversation went at host a.
struct Ways {
    Way in, out;
    bool operator==(const Ways&) const = default;
};
void PrintTo(const Ways& ways, std::ostream* out) {
    *out << "in by ";
    PrintTo(ways.in, out);
    *out << ", out by ";
    PrintTo(ways.out, out);
}
constexpr Ways kLibrary{Way::library, Way::library}, kKernel{Way::kernel, Way::kernel};
constexpr Ways kReceiveOnly{Way::library, Way::kernel}, kSendOnly{Way::kernel, Way::library};

class Conf : public testing::Test {
  protected:
    // Host a has the library and these rules, b is a kernel. The hosts know each other's station addresses
    // beforehand, so that no datagram goes through the kernel to find them out.
    void start(const std::string& rules, std::vector<std::string> env = {}) {
        a.reset();
        b.reset();
        hosts = std::make_unique<TwoHosts>(Wire{.second_address = true});
        introduce(Host::a, Host::b);
        introduce(Host::b, Host::a);
        scratch = std::make_unique<Scratch>();
        scratch->write("libvma.conf", rules);
        env.push_back("VMA_CONFIG_FILE=" + scratch->path("libvma.conf"));
        env.push_back("VMA_TRACELEVEL=debug");
        a = std::make_unique<Agent>(*hosts, Host::a, with_library(env));
        b = std::make_unique<Agent>(*hosts, Host::b);
    }
    void introduce(Host host, Host other) const {
        const std::string text = hosts->ip(other, {"link", "show", "dev", TwoHosts::interface()});
        const auto at = text.find("link/ether ");
        ASSERT_NE(at, text.npos) << text;
        for (const std::string& address : {TwoHosts::address(other), TwoHosts::second_address(other)})
            hosts->ip(host, {"neigh", "replace", address, "lladdr", text.substr(at + 11, 17), "dev",
                             TwoHosts::interface(), "nud", "permanent"});
    }
    void TearDown() override {
        if (HasFailure() && a) std::cout << "log of a:\n" << log();
    }
    // Without the process and thread numbers.
    std::string log() {
        std::string text = a->process().err();
        for (auto at = text.find(" [pid "); at != text.npos; at = text.find(" [pid ", at))
            text.erase(at, text.find(']', at) + 1 - at);
        return text;
    }
    // The line of libvma.conf that was found to decide, or "no rule", for a question as the log has it.
    std::string rule_for(const std::string& question) {
        const std::string text = log();
        const auto at = text.rfind(" " + question + ": ");
        const auto from = text.find('(', at), to = text.find_first_of(")\n", from);
        return at == text.npos ? "never asked" : text.substr(from + 1, to - from - 1);
    }

    struct Counters {
        long in, out;
    };
    Counters kernel(const char* protocol) {
        const std::string text = a->ask(protocol);
        return {Agent::value(text, "in"), Agent::value(text, "out")};
    }
    // The first datagram of a socket that is not bound is the kernel's, and perhaps the answer to it.
    static Way way(long packets) {
        EXPECT_TRUE(packets <= 2 || packets >= kCount)
            << packets << " packets of " << kCount << " by the kernel";
        return packets <= 2 ? Way::library : Way::kernel;
    }
    Ways since(const char* protocol, Counters before) {
        const Counters now = kernel(protocol);
        return {way(now.in - before.in), way(now.out - before.out)};
    }

    // a's socket talks to b's port, each datagram is answered.
    Ways datagrams(const std::string& id, int port, const std::string& to = "198.18.1.2") {
        EXPECT_EQ(b->ask("open peer " + to + " " + std::to_string(port)), "ok " + std::to_string(port));
        const Counters before = kernel("udp");
        b->post("echo peer " + std::to_string(kCount) + " 3000");
        const std::string to_port = to + " " + std::to_string(port);
        EXPECT_EQ(a->ask("ping " + id + " " + to_port + " 700 " + std::to_string(kCount) + " 3000"),
                  "answered " + std::to_string(kCount));
        EXPECT_EQ(b->answer(), "echoed " + std::to_string(kCount));
        const Ways ways = since("udp", before);
        b->ask("close peer");
        return ways;
    }
    // Which way a new socket's datagrams go, bound to `own` (0: to nothing) and sent to `port` of b.
    Ways from_port(int own, int port) {
        if (own == 0)
            EXPECT_EQ(a->ask("unbound u"), "ok");
        else
            open_socket(*a, Host::a, own, 1, "u");
        const Ways ways = datagrams("u", port);
        a->ask("close u");
        return ways;
    }
    Way sent_to(int port, const std::string& to = "198.18.1.2") {
        open_socket(*a, Host::a, 7001, 1, "u");
        const Ways ways = datagrams("u", port, to);
        EXPECT_EQ(ways.in, Way::library);
        a->ask("close u");
        return ways.out;
    }
    // Which way datagrams to this address and port of a come in, whose socket is bound to `bound`.
    Way received_at(int port, const std::string& address = "198.18.1.1",
                    const std::string& bound = "0.0.0.0") {
        const std::string text = std::to_string(port);
        EXPECT_EQ(a->ask("open u " + bound + " " + text), "ok " + text);
        EXPECT_EQ(b->ask("open peer 198.18.1.2 7003"), "ok 7003");
        const Counters before = kernel("udp");
        a->post("drain u 1000 " + std::to_string(kCount));
        EXPECT_EQ(b->ask("send peer " + address + " " + text + " 700 " + std::to_string(kCount) + " 0 200"),
                  "sent " + std::to_string(kCount));
        const std::string got = a->answer();
        EXPECT_EQ(Agent::value(got, "distinct"), kCount) << got;
        EXPECT_EQ(Agent::value(got, "bad"), 0) << got;
        const Way in = way(kernel("udp").in - before.in);
        a->ask("close u");
        b->ask("close peer");
        return in;
    }
    // Connected with connect().
    Ways connected_to(int port, const std::string& own = "") {
        EXPECT_EQ(a->ask(own.empty() ? "unbound u" : "open u " + own).substr(0, 2), "ok");
        EXPECT_EQ(a->ask("connect u 198.18.1.2 " + std::to_string(port)), "ok");
        const Ways ways = datagrams("u", port);
        a->ask("close u");
        return ways;
    }

    static Way both(Ways ways) {
        EXPECT_EQ(ways.in, ways.out);
        return ways.in;
    }
    void expect_stream(Agent& from, const std::string& from_id, Agent& to, const std::string& to_id) {
        const std::string messages = " 3000 " + std::to_string(kCount);
        to.post("answer " + to_id + messages);
        EXPECT_EQ(from.ask("talk " + from_id + messages), "talked " + std::to_string(kCount));
        EXPECT_EQ(to.answer(), "answered " + std::to_string(kCount));
    }
    // A connection of a's to b. `own`: "ADDRESS PORT" that it is bound to.
    Way dialled(int port, const std::string& own = "") {
        const std::string text = std::to_string(port);
        EXPECT_EQ(b->ask("listen l 198.18.1.2 " + text), "ok " + text);
        const Counters before = kernel("tcp");
        EXPECT_EQ(a->ask("dial c 198.18.1.2 " + text + " " + own), "ok");
        EXPECT_EQ(b->ask("accept l c 3000"), "ok");
        expect_stream(*a, "c", *b, "c");
        const Way went = both(since("tcp", before));
        a->ask("close c");
        b->ask("close c");
        b->ask("close l");
        return went;
    }
    // A connection of b's to an address of a, where a listens on `bound`.
    Way served_at(int port, const std::string& address = "198.18.1.1", const std::string& bound = "0.0.0.0") {
        const std::string text = std::to_string(port);
        EXPECT_EQ(a->ask("listen l " + bound + " " + text), "ok " + text);
        const Counters before = kernel("tcp");
        EXPECT_EQ(b->ask("dial c " + address + " " + text), "ok");
        EXPECT_EQ(a->ask("accept l c 3000"), "ok");
        expect_stream(*b, "c", *a, "c");
        const Way went = both(since("tcp", before));
        b->ask("close c");
        a->ask("close c");
        a->ask("close l");
        return went;
    }

    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Scratch> scratch;
    std::unique_ptr<Agent> a, b;
};

TEST_F(Conf, NoRuleMeansOffload) {
    start("# nothing\n");
    EXPECT_EQ(from_port(6000, 6000), kLibrary);
    EXPECT_EQ(from_port(0, 6000), kLibrary);
    EXPECT_EQ(connected_to(6000), kLibrary);
    EXPECT_EQ(received_at(5000), Way::library);
    EXPECT_EQ(dialled(6000), Way::library);
    EXPECT_EQ(served_at(5000), Way::library);
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6000"), "no rule");
    EXPECT_EQ(rule_for("udp_receiver 198.18.1.1:6000"), "no rule");
    EXPECT_EQ(rule_for("tcp_server 198.18.1.1:5000"), "no rule");
    EXPECT_THAT(log(), Not(HasSubstr("left to the kernel: ")));
}

// Every form an address and ports can have, and that the first rule wins, in the role that asks for one
// address and sends.
TEST_F(Conf, UdpSender) {
    start(
        "use os udp_sender 198.18.1.2:6001      # an address and a port\n"
        "use os udp_sender 198.18.1.77/24:6002  # a net, by any of its addresses\n"
        "use os udp_sender *:6003\n"
        "\tuse  os  udp_sender  * : 6004 - 6006\n"
        "use vma udp_sender 198.18.1.2:6007     # the first one wins\n"
        "use os udp_sender *:6007-6008\n"
        "use os udp_sender 198.18.1.102:*       # all ports of an address\n"
        "use os udp_sender 198.18.2.0/24:6009   # another net\n"
        "use os udp_sender 198.18.1.2:60010     # the port begins like another one\n"
        "use * udp_sender *:6011                # VMA serves it\n");
    const std::pair<int, Way> expected[] = {
        {6000, Way::library}, {6001, Way::kernel},  {6002, Way::kernel},  {6003, Way::kernel},
        {6004, Way::kernel},  {6005, Way::kernel},  {6006, Way::kernel},  {6007, Way::library},
        {6008, Way::kernel},  {6009, Way::library}, {6010, Way::library}, {6011, Way::library},
    };
    for (const auto& [port, way] : expected) EXPECT_EQ(sent_to(port), way) << port;
    EXPECT_EQ(sent_to(6000, "198.18.1.102"), Way::kernel);
    EXPECT_EQ(sent_to(6007, "198.18.1.102"), Way::kernel);
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6000"), "no rule");
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6002"), "libvma.conf:2: use os udp_sender 198.18.1.77/24:6002");
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6005"), "libvma.conf:4: use os udp_sender *:6004-6006");
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6007"), "libvma.conf:5: use vma udp_sender 198.18.1.2:6007");
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6008"), "libvma.conf:6: use os udp_sender *:6007-6008");
    EXPECT_EQ(rule_for("udp_sender 198.18.1.2:6011"), "libvma.conf:10: use * udp_sender *:6011");
    EXPECT_THAT(log(), HasSubstr("VMA INFO: left to the kernel: libvma.conf:3: use os udp_sender *:6003\n"));
}

// One socket, several destinations: each is decided by itself.
TEST_F(Conf, UdpSenderIsAskedForEachDestination) {
    start("use os udp_sender *:6001\n");
    open_socket(*a, Host::a, 5000);
    for (int round = 0; round < 2; round++) {
        EXPECT_EQ(datagrams("s", 6001), kReceiveOnly);
        EXPECT_EQ(datagrams("s", 6002), kLibrary);
    }
}

TEST_F(Conf, UdpReceiver) {
    start(
        "use os udp_receiver 198.18.1.1:5001\n"
        "use os udp_receiver 198.18.0.0/16:5002\n"
        "use os udp_receiver *:5003-5004\n"
        "use os udp_receiver 198.18.1.101:*\n"
        "use vma udp_receiver *:5005\n"
        "use os udp_receiver *:5005-5006\n"
        "use * udp_receiver *:5007  # the kernel, for addresses that are no group\n");
    const std::pair<int, Way> expected[] = {
        {5000, Way::library}, {5001, Way::kernel},  {5002, Way::kernel}, {5003, Way::kernel},
        {5004, Way::kernel},  {5005, Way::library}, {5006, Way::kernel}, {5007, Way::kernel},
    };
    for (const auto& [port, way] : expected) {
        EXPECT_EQ(received_at(port, "198.18.1.1", "198.18.1.1"), way) << port;
        EXPECT_EQ(received_at(port), way) << port << ", bound to any address";
    }
    // Bound to any address, it is asked for each address of the host.
    EXPECT_EQ(received_at(5000, "198.18.1.101"), Way::kernel);
    EXPECT_EQ(received_at(5001, "198.18.1.101"), Way::kernel);
    EXPECT_EQ(rule_for("udp_receiver 198.18.1.1:5002"),
              "libvma.conf:2: use os udp_receiver 198.18.0.0/16:5002");
    EXPECT_EQ(rule_for("udp_receiver 198.18.1.101:5000"),
              "libvma.conf:4: use os udp_receiver 198.18.1.101:*");
    EXPECT_EQ(rule_for("udp_receiver 198.18.1.1:5005"), "libvma.conf:5: use vma udp_receiver *:5005");
}

// A socket half of which is the kernel's: what it says and hears is right all the same.
TEST_F(Conf, MixedSockets) {
    start("use os udp_receiver *:5001\nuse os udp_sender *:6001\n");
    EXPECT_EQ(from_port(5000, 6000), kLibrary);
    EXPECT_EQ(from_port(5001, 6000), kSendOnly);
    EXPECT_EQ(from_port(5000, 6001), kReceiveOnly);
    EXPECT_EQ(from_port(5001, 6001), kKernel);
    EXPECT_EQ(from_port(0, 6001), kReceiveOnly);
    EXPECT_EQ(connected_to(6001), kReceiveOnly);
    EXPECT_EQ(connected_to(6000, "198.18.1.1 5001"), kSendOnly);
    // Both directions at once, on the same socket.
    for (const char* port : {"5000 6001", "5001 6000"}) {
        const std::string own(port, 4), other(port + 5);
        EXPECT_EQ(a->ask("open m 198.18.1.1 " + own), "ok " + own);
        EXPECT_EQ(b->ask("open m 198.18.1.2 " + other), "ok " + other);
        a->ask("set m rcvbuf 4000000");
        b->ask("set m rcvbuf 4000000");
        for (auto [agent, to] : {std::pair{a.get(), "198.18.1.2 " + other}, {b.get(), "198.18.1.1 " + own}})
            agent->post("send m " + to + " 1400 1000 0 20");
        for (Agent* agent : {a.get(), b.get()}) EXPECT_EQ(agent->answer(), "sent 1000");
        for (Agent* agent : {a.get(), b.get()}) {
            const std::string got = agent->ask("drain m 500");
            EXPECT_EQ(Agent::value(got, "count"), 1000) << got;
            EXPECT_EQ(Agent::value(got, "distinct"), 1000) << got;
            EXPECT_EQ(Agent::value(got, "disordered"), 0) << got;
            EXPECT_EQ(Agent::value(got, "bad"), 0) << got;
        }
    }
}

TEST_F(Conf, UdpConnect) {
    start(
        "use vma udp_sender *:*\n"
        "use vma udp_receiver *:*\n"
        "use os udp_connect 198.18.1.2:6001\n"
        "use os udp_connect *:*:198.18.1.101:*          # two-sided\n"
        "use os udp_connect *:6002:198.18.1.0/24:5000-5001\n"
        "use vma udp_connect *:6003\n"
        "use os udp_connect *:6003-6004\n"
        "use * udp_connect *:6005  # the kernel\n");
    const std::pair<int, Ways> expected[] = {{6000, kLibrary}, {6001, kKernel}, {6002, kLibrary},
                                             {6003, kLibrary}, {6004, kKernel}, {6005, kKernel}};
    for (const auto& [port, ways] : expected) EXPECT_EQ(connected_to(port), ways) << port;
    EXPECT_EQ(connected_to(6000, "198.18.1.101 5000"), kKernel);
    EXPECT_EQ(connected_to(6002, "198.18.1.1 5001"), kKernel);
    EXPECT_EQ(connected_to(6002, "198.18.1.1 5002"), kLibrary);
    EXPECT_EQ(rule_for("udp_connect 198.18.1.2:6002:198.18.1.1:5001"),
              "libvma.conf:5: use os udp_connect *:6002:198.18.1.0/24:5000-5001");
    EXPECT_EQ(from_port(5000, 6001), kLibrary) << "without connect() the role is not asked";
}

// "os" for a connected socket is for the socket, whatever it did before and does afterwards.
TEST_F(Conf, UdpConnectMakesTheWholeSocketTheKernels) {
    start("use os udp_connect *:6001\n");
    EXPECT_EQ(a->ask("open s 0.0.0.0 5000"), "ok 5000");
    EXPECT_EQ(datagrams("s", 6000), kLibrary);
    // What has come in before is not lost.
    EXPECT_EQ(b->ask("open early 198.18.1.2 6001"), "ok 6001");
    EXPECT_EQ(b->ask("send early 198.18.1.1 5000 500 5"), "sent 5");
    EXPECT_EQ(a->ask("sleep 50"), "ok");
    EXPECT_EQ(a->ask("connect s 198.18.1.2 6001"), "ok");
    EXPECT_EQ(Agent::value(a->ask("drain s 300"), "distinct"), 5);
    b->ask("close early");
    EXPECT_EQ(datagrams("s", 6001), kKernel);
    EXPECT_EQ(a->ask("connect s 198.18.1.2 6000"), "ok");
    EXPECT_EQ(datagrams("s", 6000), kKernel);
    EXPECT_EQ(from_port(5002, 6001), kLibrary) << "another socket";
}

TEST_F(Conf, TcpClient) {
    start(
        "use os tcp_client 198.18.1.2:6001\n"
        "use os tcp_client 198.18.1.0/24:6002:*:*\n"
        "use os tcp_client *:6003-6004\n"
        "use os tcp_client *:*:198.18.1.101:*\n"
        "use os tcp_client *:6005:198.18.1.1/32:4000-4100\n"
        "use vma tcp_client *:6006\n"
        "use os tcp_client *:6006-6007\n"
        "use * tcp_client *:6008  # the kernel\n"
        "use os tcp_client 203.0.113.0/24:*\n");
    const std::pair<int, Way> expected[] = {
        {6000, Way::library}, {6001, Way::kernel}, {6002, Way::kernel},
        {6003, Way::kernel},  {6004, Way::kernel}, {6005, Way::library},
        {6006, Way::library}, {6007, Way::kernel}, {6008, Way::kernel},
    };
    for (const auto& [port, way] : expected) EXPECT_EQ(dialled(port), way) << port;
    EXPECT_EQ(dialled(6000, "198.18.1.101 0"), Way::kernel);
    EXPECT_EQ(dialled(6005, "198.18.1.1 4050"), Way::kernel);
    EXPECT_EQ(dialled(6005, "198.18.1.1 4101"), Way::library);
    EXPECT_EQ(rule_for("tcp_client 198.18.1.2:6005:198.18.1.1:4050"),
              "libvma.conf:5: use os tcp_client *:6005:198.18.1.1/32:4000-4100");
    EXPECT_EQ(rule_for("tcp_client 198.18.1.2:6002:198.18.1.1:0"),
              "libvma.conf:2: use os tcp_client 198.18.1.0/24:6002:*:*");
    EXPECT_EQ(served_at(6001), Way::library) << "another role";
}

// Accepted sockets follow the listener.
TEST_F(Conf, TcpServer) {
    start(
        "use os tcp_server 198.18.1.1:5001\n"
        "use os tcp_server 198.18.0.0/15:5002\n"
        "use os tcp_server *:5003-5004\n"
        "use os tcp_server 198.18.1.101:*\n"
        "use vma tcp_server *:5005\n"
        "use os tcp_server *:5005-5006\n"
        "use * tcp_server *:5007  # VMA serves it\n");
    const std::pair<int, Way> expected[] = {
        {5000, Way::library}, {5001, Way::kernel},  {5002, Way::kernel}, {5003, Way::kernel},
        {5004, Way::kernel},  {5005, Way::library}, {5006, Way::kernel}, {5007, Way::library},
    };
    for (const auto& [port, way] : expected) {
        EXPECT_EQ(served_at(port, "198.18.1.1", "198.18.1.1"), way) << port;
        EXPECT_EQ(served_at(port), way) << port << ", bound to any address";
    }
    EXPECT_EQ(served_at(5000, "198.18.1.101"), Way::kernel);
    EXPECT_EQ(rule_for("tcp_server 198.18.1.101:5000"), "libvma.conf:4: use os tcp_server 198.18.1.101:*");
    EXPECT_EQ(dialled(5001), Way::library) << "another role";
}

// When everything is the kernel's the socket is not looked at at all.
TEST_F(Conf, AllUdpToTheKernel) {
    start("use os udp_receiver *:*\nuse os udp_sender *:*\n");
    EXPECT_EQ(from_port(5000, 6000), kKernel);
    EXPECT_EQ(from_port(0, 6000), kKernel);
    EXPECT_EQ(connected_to(6000), kKernel);
    EXPECT_THAT(log(),
                HasSubstr("UDP sockets are served by the kernel: libvma.conf:1: use os udp_receiver *:*"));
    EXPECT_EQ(dialled(6000), Way::library);
    EXPECT_EQ(served_at(5000), Way::library);
}

TEST_F(Conf, AllTcpToTheKernel) {
    start("use os tcp_server *:*\nuse os tcp_client *:*\n");
    EXPECT_EQ(dialled(6000), Way::kernel);
    EXPECT_EQ(served_at(5000), Way::kernel);
    EXPECT_THAT(log(),
                HasSubstr("TCP sockets are served by the kernel: libvma.conf:1: use os tcp_server *:*"));
    EXPECT_EQ(from_port(5000, 6000), kLibrary);
}

TEST_F(Conf, AllListenersToTheKernel) {
    start("use os tcp_server *:*\n");
    EXPECT_EQ(served_at(5000), Way::kernel);
    EXPECT_EQ(dialled(6000), Way::library);
}

// The name of the program is app_agent. The first block that fits decides alone.
TEST_F(Conf, ApplicationByName) {
    start(
        "application-id agent *\n"
        "use os udp_sender *:6000\n"
        "application-id app_* other\n"
        "use os udp_sender *:6000\n"
        "application-id ?pp_*nt *\n"
        "use os udp_sender *:6001\n"
        "application-id * *\n"
        "use os udp_sender *:*\n"
        "use os tcp_client *:*\n"
        "application-id ?pp_*nt *   # continued\n"
        "use os udp_sender *:6002\n");
    EXPECT_EQ(sent_to(6000), Way::library);
    EXPECT_EQ(sent_to(6001), Way::kernel);
    EXPECT_EQ(sent_to(6002), Way::kernel);
    EXPECT_EQ(dialled(6000), Way::library);
    EXPECT_THAT(log(), Not(HasSubstr("VMA WARNING: " + scratch->path("libvma.conf"))));
}

TEST_F(Conf, ApplicationById) {
    const std::string rules =
        "application-id * feed\n"
        "use os udp_sender *:6001\n"
        "application-id app_agent orders\n"
        "use os udp_sender *:6002\n"
        "application-id app_agent *\n"
        "use os udp_sender *:6003\n";
    struct Case {
        const char* id;
        int kernel_port;
    };
    for (const Case& c : {Case{"feed", 6001}, Case{"orders", 6002}, Case{"", 6003}, Case{"unknown", 6003}}) {
        SCOPED_TRACE(c.id);
        std::vector<std::string> env;
        if (*c.id != '\0') env.push_back(std::string("VMA_APPLICATION_ID=") + c.id);
        start(rules, env);
        for (int port : {6001, 6002, 6003})
            EXPECT_EQ(sent_to(port), port == c.kernel_port ? Way::kernel : Way::library) << port;
        const std::string warning = "VMA WARNING: " + scratch->path("libvma.conf") +
                                    ": no application-id has the id \"unknown\" of VMA_APPLICATION_ID\n";
        const std::string text = log();
        const auto at = text.find(warning);
        EXPECT_EQ(at != text.npos, c.id == std::string("unknown"));
        if (at == text.npos) continue;
        EXPECT_EQ(text.find("no application-id", at + warning.size()), text.npos) << "once";
    }
}

// A faulty line costs itself, and says where.
TEST_F(Conf, FaultyLines) {
    start(
        "use os udp_sender *:6001\n"
        "use os udp_sender *:65536\r\n"
        "use os udp_sender 198.18.1.2/33:6002\n"
        "use os udp_sender [2001:db8::1]:6002\n"
        "use os udp_sender 198.18.1.2:6001\n"
        "use os udp_sender *:6003");
    EXPECT_EQ(sent_to(6001), Way::kernel);
    EXPECT_EQ(sent_to(6002), Way::library);
    EXPECT_EQ(sent_to(6003), Way::kernel);
    const std::string file = "VMA WARNING: " + scratch->path("libvma.conf") + ": ";
    EXPECT_THAT(log(), HasSubstr(file + "line 2, column 21: a port (1 to 65535) expected, not \"65536\"\n"));
    EXPECT_THAT(log(),
                HasSubstr(file + "line 3, column 30: a prefix length (0 to 32) expected, not \"33\"\n"));
    EXPECT_THAT(
        log(),
        HasSubstr(file + "line 5, column 1: this rule never decides: the one of line 1 comes first and fits "
                         "all that this one fits\n"));
    std::size_t warnings = 0;
    const std::string text = log();
    for (auto at = text.find(file); at != text.npos; at = text.find(file, at + 1)) warnings++;
    EXPECT_EQ(warnings, 3u);
}

// The file that is installed: everything is offloaded but name lookups.
TEST_F(Conf, InstalledFile) {
    std::ifstream in(VMA_SOURCE_DIR "/config/libvma.conf");
    start(std::string(std::istreambuf_iterator<char>(in), {}));
    EXPECT_EQ(connected_to(53), kKernel);
    EXPECT_EQ(connected_to(54), kLibrary);
    EXPECT_EQ(from_port(0, 53), kLibrary);
    EXPECT_EQ(received_at(53), Way::library);
    EXPECT_EQ(dialled(53), Way::library);
    EXPECT_THAT(log(), Not(HasSubstr("VMA WARNING: " + scratch->path("libvma.conf"))));
}

}  // namespace
