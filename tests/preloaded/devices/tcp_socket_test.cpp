// SPDX-License-Identifier: BSD-2-Clause
// TCP sockets on the library, client and server, against a peer on the kernel and on the library: whatever a
// call answers there, it answers here.
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

class TcpSockets : public testing::Test {
  protected:
    // The client's transcript; server on host b.
    std::string talk(RunOptions client, RunOptions server) {
        // An address that nobody has is asked for anew: the failure of an earlier question would come too
        // early.
        hosts.ip(Host::a, {"neigh", "flush", "dev", TwoHosts::interface(), "nud", "all"});
        Process listening = hosts.run(Host::b, {app("tcp_socket"), "server"}, std::move(server));
        EXPECT_TRUE(listening.wait_for_out("ready")) << listening.err();
        Exit done = hosts.run(Host::a, {app("tcp_socket"), "client", "198.18.1.2", "198.18.1.1"}, client)
                        .wait(milliseconds(30000) * patience());
        EXPECT_TRUE(done.ok()) << done.code << " " << done.timed_out << "\n" << done.out << done.err;
        EXPECT_TRUE(listening.running()) << listening.err();
        if (client.preload) {
            EXPECT_NE(done.err.find("are offloaded"), std::string::npos) << done.err;
        }
        return done.out;
    }
    TwoHosts hosts;
};

TEST_F(TcpSockets, AnswerAsTheKernels) {
    const std::string kernel = talk({}, {});
    EXPECT_NE(kernel.find("here"), std::string::npos) << kernel;
    EXPECT_EQ(talk(with_library(), {}), kernel) << "client on the library";
    EXPECT_EQ(talk({}, with_library()), kernel) << "server on the library";
    EXPECT_EQ(talk(with_library(), with_library()), kernel) << "both on the library";
}

// A connection of two agents, host a's with the library.
class TcpConnection : public testing::Test {
  protected:
    void talk(int length, int count) {
        b.post("answer c " + std::to_string(length) + " " + std::to_string(count));
        EXPECT_EQ(
            a.ask("talk c " + std::to_string(length) + " " + std::to_string(count), milliseconds(60000)),
            "talked " + std::to_string(count));
        EXPECT_EQ(b.answer(), "answered " + std::to_string(count));
    }
    void connect(const std::string& to) {
        EXPECT_EQ(b.ask("listen l 0.0.0.0 5001"), "ok 5001");
        EXPECT_EQ(a.ask("dial c " + to + " 5001"), "ok");
        EXPECT_EQ(b.ask("accept l c 5000"), "ok");
    }
    // Segments that a's kernel carries of so many messages and their answers.
    long kernel_segments(int length, int count) {
        auto carried = [&] {
            const std::string counters = a.ask("tcp");
            return Agent::value(counters, "in") + Agent::value(counters, "out");
        };
        const long before = carried();
        talk(length, count);
        return carried() - before;
    }
    void TearDown() override {
        if (HasFailure()) std::cout << "log of a:\n" << a.process().err();
    }
    TwoHosts hosts;
    Agent a{hosts, Host::a, with_library()}, b{hosts, Host::b};
};

TEST_F(TcpConnection, SurvivesThatTheLinkGoesDownAndUp) {
    connect("198.18.1.2");
    talk(1000, 20);
    for (Host host : {Host::a, Host::b}) {
        hosts.ip(host, {"link", "set", "dev", "veth1", "down"});
        b.post("answer c 1000 5");
        a.post("talk c 1000 5");
        EXPECT_TRUE(a.answer(milliseconds(100)).starts_with("no answer")) << "the link is down";
        hosts.ip(host, {"link", "set", "dev", "veth1", "up"});
        EXPECT_EQ(a.answer(milliseconds(30000)), "talked 5");
        EXPECT_EQ(b.answer(milliseconds(30000)), "answered 5");
    }
    EXPECT_LE(kernel_segments(1000, 20), 2) << "not offloaded any more";
}

// A router behind which the link is narrower says so in the midst of a connection: ICMP "fragmentation
// needed".
TEST_F(TcpConnection, LearnsOfANarrowPath) {
    // b goes on in a namespace of its own behind a router: the namespace that was b's.
    const std::string far = hosts.netns(Host::b) + "f", route = "198.18.77.0/24";
    struct Namespace {
        std::string name;
        ~Namespace() { tool({"ip", "netns", "del", name}); }
    } const space{far};
    tool({"ip", "netns", "add", far});
    hosts.ip_batch(Host::b, {"link add near type veth peer name far netns " + far,
                             "address add 198.18.77.1/24 dev near", "link set near mtu 1500 up"});
    hosts.sysctl(Host::b, {"net.ipv4.ip_forward=1"});
    tool({"ip", "-n", far, "address", "add", "198.18.77.2/24", "dev", "far"});
    tool({"ip", "-n", far, "link", "set", "far", "up"});
    tool({"ip", "-n", far, "route", "add", "default", "via", "198.18.77.1"});
    hosts.ip(Host::a, {"route", "add", route, "via", "198.18.1.2"});
    const std::string echo = R"(
import socket
l = socket.create_server(('198.18.77.2', 5001))
print('up', flush=True)
c = l.accept()[0]
while True:
    d = c.recv(100000)
    if not d: break
    c.sendall(d)
)";
    Process server = Process::run({"python3", "-c", echo}, {.netns = far});
    ASSERT_TRUE(server.wait_for_out("up")) << server.err();
    EXPECT_EQ(a.ask("dial c 198.18.77.2 5001"), "ok");
    EXPECT_EQ(a.ask("talk c 20000 5"), "talked 5");
    hosts.ip(Host::b,
             {"route", "replace", "198.18.77.2/32", "dev", "near", "mtu", "1000"});  // there, not back
    EXPECT_EQ(a.ask("talk c 20000 20", milliseconds(30000)), "talked 20");
    const Exit said =
        hosts.run(Host::b, {"sh", "-c", "nstat -asz IcmpOutDestUnreachs | awk '/^Icmp/ {print $2}'"}).wait();
    EXPECT_GT(atol(said.out.c_str()), 0) << "the router has not said so: " << said.out << said.err;
    const std::string counters = a.ask("tcp");
    EXPECT_LE(Agent::value(counters, "in") + Agent::value(counters, "out"), 2) << "not offloaded";
    EXPECT_EQ(a.ask("close c"), "ok");
}

}  // namespace
