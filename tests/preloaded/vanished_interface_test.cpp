// SPDX-License-Identifier: BSD-2-Clause
// The interface of a program's sockets goes and comes back, or changes, while connections are alive. Both
// ends say something meanwhile. On the kernel and on the library every byte arrives, and nothing is reset.
#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

struct Cause {
    const char* name;
    // Commands of `ip` on the program's host (>) or on the peer's (<), A and B being the namespaces.
    std::vector<std::string> begin, end;
    bool gone = false;  // the interface leaves, and is offloaded again
    const char* mode = "auto";
};
void PrintTo(const Cause& c, std::ostream* out) { *out << c.name; }

const std::vector<std::string> kAway{">link set veth1 netns A name away1"};
const std::vector<std::string> kBack{"<link set away1 netns B name veth1",
                                     ">address add 198.18.1.2/24 broadcast + dev veth1",
                                     ">link set veth1 up"};
// The listener is offloaded again at once. Its connections wait for the route.
const std::vector<std::string> kBackAlone{"<link set away1 netns B name veth1",
                                          ">address add 198.18.1.2/32 dev veth1", ">link set veth1 up"};
const std::vector<std::string> kRoute{">route add 198.18.1.0/24 dev veth1"};
const std::vector<std::string> kDeleted{">link del veth1"};
const std::vector<std::string> kMadeAgain{
    ">link add veth1 type veth peer name veth1 netns A", "<address add 198.18.1.1/24 broadcast + dev veth1",
    "<link set veth1 up", ">address add 198.18.1.2/24 broadcast + dev veth1", ">link set veth1 up"};

std::vector<std::string> both(std::vector<std::string> first, const std::vector<std::string>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

class VanishedInterface : public testing::Test, public testing::WithParamInterface<Cause> {
  protected:
    void change(const std::vector<std::string>& commands) {
        for (std::string command : commands) {
            const Host where = command[0] == '>' ? Host::b : Host::a;
            std::vector<std::string> words;
            for (std::size_t at = 1; at < command.size();) {
                const std::size_t end = std::min(command.find(' ', at), command.size());
                std::string word = command.substr(at, end - at);
                if (word == "A") word = hosts.netns(Host::a);
                if (word == "B") word = hosts.netns(Host::b);
                words.push_back(std::move(word));
                at = end + 1;
            }
            hosts.ip(where, words);
        }
    }
    // The program's end first.
    static void converse(Agent& program, Agent& peer, const std::string& own, const std::string& theirs) {
        peer.post("answer " + theirs + " 1000 3");
        EXPECT_EQ(program.ask("talk " + own + " 1000 3"), "talked 3") << program.process().err();
        EXPECT_EQ(peer.answer(), "answered 3");
    }
    static void connect(Agent& program, Agent& peer, int port, const std::string& id) {
        const std::string text = std::to_string(port);
        EXPECT_EQ(peer.ask("listen " + id + "l 198.18.1.1 " + text), "ok " + text);
        EXPECT_EQ(program.ask("dial " + id + " 198.18.1.1 " + text), "ok") << program.process().err();
        EXPECT_EQ(peer.ask("accept " + id + "l " + id + " 5000"), "ok");
    }
    TwoHosts hosts;
};

// Takes the process's programs off their interfaces, as an administrator can, and a driver that forgets its
// program does. How many there were.
int take_programs_off(pid_t pid) {
    std::set<unsigned> links;
    for (const auto& file : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fdinfo")) {
        std::ifstream in(file.path());
        std::string word, type;
        for (unsigned id = 0; in >> word;) {
            if (word == "link_type:") in >> type;
            if (word == "link_id:" && in >> id && (type == "xdp" || type == "tcx")) links.insert(id);
        }
    }
    int count = 0;
    for (const unsigned id : links) {
        bpf_attr by_id{}, detach{};
        by_id.link_id = id;
        const Fd link(static_cast<int>(syscall(SYS_bpf, BPF_LINK_GET_FD_BY_ID, &by_id, sizeof by_id)));
        detach.link_detach.link_fd = static_cast<unsigned>(link.get());
        if (syscall(SYS_bpf, BPF_LINK_DETACH, &detach, sizeof detach) == 0) count++;
    }
    return count;
}

// The kernel receives everything then, and the library its connections' segments from there. After some
// seconds it leaves the sockets to the kernel, and says why.
class LostProgram : public VanishedInterface {};

TEST_P(LostProgram, SocketsBecomeTheKernels) {
    Agent peer(hosts, Host::a);
    Agent program(hosts, Host::b, with_library({std::string("VMA_XDP_MODE=") + GetParam().mode}));
    open_socket(program, Host::b, 6000);
    open_socket(peer, Host::a, 6000);
    connect(program, peer, 7001, "c");
    EXPECT_EQ(program.ask("listen l 198.18.1.2 7000"), "ok 7000");
    converse(program, peer, "c", "c");
    expect_conversation(peer, program, "198.18.1.2", 5);
    EXPECT_TRUE(hosts.wait_offloaded(Host::b, true));
    ASSERT_EQ(take_programs_off(program.process().pid()), 1);
    const char* const reason =
        "segments of its connections reached the kernel, and none its queues; the kernel serves";
    for (int i = 0; i < 200 && program.process().err().find(reason) == std::string::npos; i++) {
        converse(program, peer, "c", "c");
        std::this_thread::sleep_for(milliseconds(50));
    }
    EXPECT_NE(program.process().err().find(reason), std::string::npos) << program.process().err();
    converse(program, peer, "c", "c");
    expect_conversation(peer, program, "198.18.1.2", 5);
    expect_conversation(program, peer, "198.18.1.1", 5);
    EXPECT_EQ(peer.ask("dial f 198.18.1.2 7000"), "ok");
    EXPECT_EQ(program.ask("accept l f 5000"), "ok");
    converse(program, peer, "f", "f");
    EXPECT_TRUE(program.finish().ok()) << program.process().err();
}
INSTANTIATE_TEST_SUITE_P(Modes, LostProgram,
                         testing::Values(Cause{.name = "auto"}, Cause{.name = "drv", .mode = "drv"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(VanishedInterface, LosesNothing) {
    const Cause& cause = GetParam();
    for (const bool library : {false, true}) {
        SCOPED_TRACE(library ? "library" : "kernel");
        Agent peer(hosts, Host::a), other(hosts, Host::a);
        Agent program(hosts, Host::b,
                      library ? with_library({std::string("VMA_XDP_MODE=") + cause.mode}) : RunOptions{});
        open_socket(program, Host::b, 6000);
        open_socket(peer, Host::a, 6000);
        EXPECT_EQ(program.ask("listen l 198.18.1.2 7000"), "ok 7000");
        EXPECT_EQ(peer.ask("dial c 198.18.1.2 7000"), "ok");
        EXPECT_EQ(program.ask("accept l c 5000"), "ok");
        connect(program, other, 7001, "d");
        converse(program, peer, "c", "c");
        converse(program, other, "d", "d");
        if (library) {
            EXPECT_TRUE(hosts.wait_offloaded(Host::b, true));
        }

        change(cause.begin);
        program.post("talk d 1000 3");
        other.post("answer d 1000 3");
        peer.post("talk c 1000 3");
        std::this_thread::sleep_for(milliseconds(350));  // longer than the peer's first timeout
        change(cause.end);
        program.post("answer c 1000 3");
        EXPECT_EQ(program.answer(), "talked 3") << program.process().err();
        EXPECT_EQ(other.answer(), "answered 3");
        EXPECT_EQ(program.answer(), "answered 3");
        EXPECT_EQ(peer.answer(), "talked 3");

        converse(program, peer, "c", "c");
        converse(program, other, "d", "d");
        expect_conversation(peer, program, "198.18.1.2", 5);
        expect_conversation(program, peer, "198.18.1.1", 5);
        connect(program, peer, 7002, "e");
        converse(program, peer, "e", "e");
        EXPECT_EQ(peer.ask("dial f 198.18.1.2 7000"), "ok");
        EXPECT_EQ(program.ask("accept l f 5000"), "ok");
        converse(program, peer, "f", "f");
        if (library) {
            EXPECT_TRUE(hosts.wait_offloaded(Host::b, true)) << program.process().err();
        }
        const std::string log = program.process().err();
        EXPECT_EQ(log.find("has failed") != log.npos, library && cause.gone) << log;
        EXPECT_TRUE(program.finish().ok()) << program.process().err();
    }
}

// A driver that begins anew loses its link for a while, also when a program of XDP comes or goes. Sockets
// that a program names meanwhile are offloaded afterwards.
TEST_F(VanishedInterface, IsDownWhenTheProgramStarts) {
    change({"<link set veth1 down"});
    Agent program(hosts, Host::b, with_library());
    open_socket(program, Host::b, 6000);
    EXPECT_EQ(program.ask("listen l 198.18.1.2 7000"), "ok 7000");
    change({"<link set veth1 up"});
    ASSERT_TRUE(program.process().wait_for_err("sockets on veth1 are offloaded"));
    Agent peer(hosts, Host::a);
    open_socket(peer, Host::a, 6000);
    // The kernel may have the datagrams that come while the ring is opened.
    long by_the_kernel = 1;
    for (int i = 0; i < 50 && by_the_kernel != 0; i++) {
        const long before = kernel_datagrams(program);
        expect_conversation(peer, program, "198.18.1.2", 20);
        by_the_kernel = kernel_datagrams(program) - before;
    }
    EXPECT_EQ(by_the_kernel, 0);
    EXPECT_EQ(peer.ask("dial c 198.18.1.2 7000"), "ok");
    EXPECT_EQ(program.ask("accept l c 5000"), "ok");
    converse(program, peer, "c", "c");
    EXPECT_TRUE(program.finish().ok()) << program.process().err();
}

INSTANTIATE_TEST_SUITE_P(
    Causes, VanishedInterface,
    testing::Values(
        Cause{"moved_and_back", kAway, kBack, true}, Cause{"moved_and_back_drv", kAway, kBack, true, "drv"},
        Cause{"moved_and_back_skb", kAway, kBack, true, "skb"},
        Cause{"moved_and_back_at_once", {}, both(kAway, kBack), true},
        Cause{"moved_and_back_route_later", both(kAway, kBackAlone), kRoute, true},
        Cause{"moved_and_back_route_later_drv", both(kAway, kBackAlone), kRoute, true, "drv"},
        Cause{"deleted_and_made_again", kDeleted, kMadeAgain, true},
        Cause{"deleted_and_made_again_drv", kDeleted, kMadeAgain, true, "drv"},
        Cause{"down_and_up", {">link set veth1 down"}, {">link set veth1 up"}},
        Cause{"down_and_up_drv", {">link set veth1 down"}, {">link set veth1 up"}, false, "drv"},
        Cause{"peer_down_and_up", {"<link set veth1 down"}, {"<link set veth1 up"}},
        Cause{"address_removed",
              {">address del 198.18.1.2/24 dev veth1"},
              {">address add 198.18.1.2/24 broadcast + dev veth1"}},
        Cause{"smaller_mtu", {">link set veth1 mtu 1000", "<link set veth1 mtu 1000"}, {}},
        Cause{"larger_mtu", {">link set veth1 mtu 9000", "<link set veth1 mtu 9000"}, {}},
        Cause{"hardware_address", {">link set veth1 address 02:00:5e:10:01:77"}, {"<neigh flush dev veth1"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
