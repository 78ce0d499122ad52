// SPDX-License-Identifier: BSD-2-Clause
// TCP connections of a process that forks, executes, passes descriptors on, or ends: what both sides see is
// what they see on the kernel. The program (tests/apps/tcp_processes.cpp) runs without the library first, for
// comparison, and then with it; its peer is always on the kernel.
#include <fcntl.h>
#include <unistd.h>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

struct Case {
    const char* name;
    bool offloads = true;  // false: connections are accepted by children, whose sockets are the kernel's
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Seen {
    std::string server, peer;
    int server_code = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
};
void PrintTo(const Seen& s, std::ostream* out) {
    *out << "server (" << s.server_code << "):\n" << s.server << "peer:\n" << s.peer;
}

class TcpProcess : public HostsTest, public ::testing::WithParamInterface<Case> {
  protected:
    Seen run(bool preload) {
        const std::string name = GetParam().name, address = TwoHosts::address(Host::b);
        int ends[2], more[2];
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(more, O_CLOEXEC), 0);
        Fd input(ends[0]), end(ends[1]), peers_input(more[0]), go_on(more[1]);
        RunOptions options{.preload = preload, .fds = {{input.get(), 0}}};
        if (preload) options.env = {"VMA_TRACELEVEL=debug", "VMA_LOG_FILE=" + scratch->path("log-%d")};
        Server server(hosts->run(Host::b, {app("tcp_processes"), "serve", name, address, "7000"}, options));
        EXPECT_TRUE(server.wait_listening(7000)) << server.process().out();
        Process peer = hosts->run(Host::a, {app("tcp_processes"), "peer", name, address, "7000"},
                                  {.fds = {{peers_input.get(), 0}}});
        if (name == "restart") {
            EXPECT_TRUE(server.process().wait_for_out("listens again\n"));
            go_on.reset();
        }
        if (name == "many-exit") {
            EXPECT_TRUE(peer.wait_for_out("connected\n"));
            end.reset();
        }
        Seen seen;
        Exit peer_end = peer.wait();
        EXPECT_FALSE(peer_end.timed_out)
            << peer_end.out << server.process().out() << scratch->read_all("log-");
        end.reset();
        Exit server_end = server.process().wait();
        EXPECT_FALSE(server_end.timed_out) << server_end.out << scratch->read_all("log-");
        seen.peer = peer_end.out;
        seen.server = server_end.out;
        seen.server_code = server_end.code;
        return seen;
    }
};

TEST_P(TcpProcess, IsAsOnTheKernel) {
    const Seen kernel = run(false);
    EXPECT_FALSE(kernel.peer.empty());
    const Seen library = run(true);
    EXPECT_EQ(library, kernel);
    if (GetParam().offloads) {
        // A program that is replaced, or ends inside of libc, logs no counters.
        const std::string log = scratch->read_all("log-");
        EXPECT_TRUE(tcp_was_offloaded(log) || log.find("a TCP connection is moved to the kernel") != log.npos)
            << log;
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, TcpProcess,
                         ::testing::Values(Case{"fork-each"}, Case{"workers", false}, Case{"idle-child"},
                                           Case{"child-reads-rest"}, Case{"grandchild"},
                                           Case{"parent-closes"}, Case{"parent-exits"}, Case{"pass"},
                                           Case{"exec"}, Case{"fork-exec"}, Case{"daemon"},
                                           Case{"exit-unsent"}, Case{"_exit-unsent"}, Case{"close-exit"},
                                           Case{"shutdown-exit"}, Case{"restart"}, Case{"exit-unread"},
                                           Case{"exit-linger0"}, Case{"exit-idle"}, Case{"many-exit"}),
                         [](const auto& info) {
                             std::string name = info.param.name;
                             for (char& c : name)
                                 if (c == '-') c = '_';
                             return name;
                         });

// A server ends while its peers close: their FINs come between the moment in which a connection is described
// for the kernel and the one in which its rule goes, and after that. None is lost. The peers' kernel waits
// long before it sends again, so an acknowledgement that a busy machine delays is none that is missing.
class EndOfAProcess : public HostsTest {};

TEST_F(EndOfAProcess, WhatArrivesMeanwhileIsNotLost) {
    const std::string address = TwoHosts::address(Host::a);
    ASSERT_TRUE(hosts
                    ->run(Host::b,
                          {"ip", "route", "replace", address, "dev", TwoHosts::interface(), "rto_min", "30s"})
                    .wait()
                    .ok());
    const std::string common = "import os, socket, time\nN = 150\n";
    const std::string server = common +
                               "l = socket.socket()\n"
                               "l.bind(('" +
                               address +
                               "', 7000))\n"
                               "l.listen(N)\n"
                               "c = [l.accept()[0] for i in range(N)]\n"
                               "for s in c: s.send(b'x')\n"
                               "c[0].recv(1)\n"
                               "os._exit(0)\n";
    // FIN_WAIT1, LAST_ACK, CLOSING: a FIN is not acknowledged.
    const std::string client =
        common +
        "def open_ends():\n"
        "    return sum(l.split()[3] in ('04', '09', '0B') for l in list(open('/proc/net/tcp'))[1:])\n"
        "c = [socket.create_connection(('" +
        address +
        "', 7000)) for i in range(N)]\n"
        "for s in c: s.recv(1)\n"
        "c[0].send(b'g')\n"
        "for s in c:\n"
        "    s.close()\n"
        "    time.sleep(0.0002)\n"
        "until = time.time() + 15\n"
        "while open_ends() and time.time() < until: time.sleep(0.05)\n"
        "print('not acknowledged:', open_ends())\n";
    Server s(hosts->run(Host::a, {"python3", "-c", server}, {.preload = true}));
    ASSERT_TRUE(s.wait_listening(7000)) << s.process().err();
    const Exit peer = hosts->run(Host::b, {"python3", "-c", client}).wait();
    EXPECT_TRUE(s.process().wait().ok());
    EXPECT_EQ(peer.out, "not acknowledged: 0\n") << peer.err;
}

}  // namespace
