// SPDX-License-Identifier: BSD-2-Clause
// TCP connections of a process that forks, executes, passes descriptors on, or ends: what both sides see is what they
// see on the kernel. The program (tests/apps/tcp_processes.cpp) runs without the library first, for comparison, and then
// with it; its peer is always on the kernel.
#include <fcntl.h>
#include <unistd.h>

#include "support/programs.h"

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
        int ends[2];
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        Fd input(ends[0]), end(ends[1]);
        RunOptions options{.preload = preload, .fds = {{input.get(), 0}}};
        if (preload) options.env = {"VMA_TRACELEVEL=debug", "VMA_LOG_FILE=" + scratch->path("log-%d")};
        Server server(hosts->run(Host::b, {app("tcp_processes"), "serve", name, address, "7000"}, options));
        EXPECT_TRUE(server.wait_listening(7000)) << server.process().out();
        Process peer = hosts->run(Host::a, {app("tcp_processes"), "peer", name, address, "7000"});
        if (name == "many-exit") {
            EXPECT_TRUE(peer.wait_for_out("connected\n"));
            end.reset();
        }
        Seen seen;
        Exit peer_end = peer.wait();
        EXPECT_FALSE(peer_end.timed_out) << peer_end.out << server.process().out() << scratch->read_all("log-");
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
        EXPECT_TRUE(tcp_was_offloaded(log) || log.find("a TCP connection is moved to the kernel") != log.npos) << log;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TcpProcess,
    ::testing::Values(Case{"fork-each"}, Case{"workers", false}, Case{"idle-child"}, Case{"child-reads-rest"},
                      Case{"grandchild"}, Case{"parent-closes"}, Case{"parent-exits"}, Case{"pass"}, Case{"exec"},
                      Case{"fork-exec"}, Case{"daemon"}, Case{"exit-unsent"}, Case{"_exit-unsent"}, Case{"close-exit"},
                      Case{"shutdown-exit"}, Case{"restart"}, Case{"exit-unread"}, Case{"exit-linger0"}, Case{"exit-idle"},
                      Case{"many-exit"}),
    [](const auto& info) {
        std::string name = info.param.name;
        for (char& c : name)
            if (c == '-') c = '_';
        return name;
    });

}  // namespace
