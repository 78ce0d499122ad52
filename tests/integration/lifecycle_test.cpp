// SPDX-License-Identifier: BSD-2-Clause
// Coming and going: what a program on the library leaves behind however it ends, and what it does when it
// cannot have the interface. "Cannot" always means: one line in the log, and the program works through the
// kernel.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/device.h"
#include "support/plain_test.h"
#include "support/programs.h"

namespace {

using namespace testing_support;

class Lifecycle : public testing::Test {
  protected:
    void SetUp() override { ASSERT_NO_THROW(make()); }
    void make() {
        try {
            hosts = std::make_unique<TwoHosts>(Wire{.known_neighbours = true});
            peer = std::make_unique<Agent>(*hosts, Host::b);
            open_socket(*peer, Host::b, 6000);
        } catch (const std::exception& e) {
            FAIL() << e.what();
        }
    }
    // A new program on host a, with its socket on port 5000.
    std::unique_ptr<Agent> program(bool library = true, std::vector<std::string> launcher = {},
                                   int port = 5000) {
        RunOptions options = library ? with_library() : RunOptions{};
        auto agent = std::make_unique<Agent>(*hosts, Host::a, options, std::move(launcher));
        open_socket(*agent, Host::a, port);
        return agent;
    }
    void talks(Agent& agent) { expect_conversation(agent, *peer, "198.18.1.2", 20); }
    void talks_offloaded(Agent& agent) {
        talks(agent);
        long before = kernel_datagrams(agent);
        talks(agent);
        EXPECT_LE(kernel_datagrams(agent) - before, 2) << agent.process().err();
    }
    // The library said in one line that it leaves the interface to the kernel, and why.
    static void expect_reason(Agent& agent, const std::string& why) {
        EXPECT_TRUE(
            agent.process().wait_for_err("sockets on veth1 are served by the kernel: ", milliseconds(1000)));
        EXPECT_NE(agent.process().err().find(why), std::string::npos) << why << " is not said in\n"
                                                                      << agent.process().err();
    }
    // Of what stands in the way of AF_XDP only.
    void expect_reason_over_xdp(Agent& agent, const std::string& why) {
        if (simulated())
            talks_offloaded(agent);
        else
            expect_reason(agent, why);
    }
    static std::string hosts_trace() {
        return std::filesystem::temp_directory_path() / ("vmatest-trace-" + std::to_string(getpid()));
    }
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> peer;
};

TEST_F(Lifecycle, CleanExitLeavesNothing) {
    auto agent = program();
    talks_offloaded(*agent);
    EXPECT_TRUE(hosts->offloaded(Host::a));
    EXPECT_TRUE(agent->finish().ok());
    EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    auto plain = program(false);
    talks(*plain);
}

TEST_F(Lifecycle, MainLeavesByPthreadExit) {
    Process process = hosts->run(Host::a, {app("preload_leader"), "198.18.1.2", "6000"}, with_library());
    Exit end = process.wait(milliseconds(10000));
    EXPECT_FALSE(end.timed_out) << "the process does not end";
    EXPECT_EQ(end.code, 0) << end.err;
    // An adapter that transmits at once needs no such thread.
    EXPECT_TRUE(end.out == "flusher 1\n" || device() != Device::xdp) << end.out;
}

TEST_F(Lifecycle, NoMemory) {
    if (sanitized()) GTEST_SKIP() << "the program has an allocator of its own";
    Process server =
        hosts->run(Host::b, {"python3", "-c",
                             "import socket\ns = socket.create_server(('198.18.1.2', 6001), backlog=64)\n"
                             "print('ready', flush=True)\nwhile True: s.accept()[0].close()"});
    ASSERT_TRUE(server.wait_for_out("ready"));
    Exit end = hosts->run(Host::a, {app("preload_no_memory"), "198.18.1.2", "6001"}, with_library()).wait();
    EXPECT_TRUE(end.ok()) << end.code << " " << end.signal << end.err;
    EXPECT_EQ(end.out, "survived, something failed: 1, connected: 1\n");
    server.kill(SIGKILL);
}

// Two threads make a process's first sockets at once; one that forks meanwhile has a child whose sockets
// work, too.
TEST_F(Lifecycle, FirstSocketOfManyThreads) {
    for (const char* mode : {"VMA_THREAD_MODE=0", "VMA_THREAD_MODE=1"})
        for (const char* what : {"two", "fork"})
            for (int i = 0; i < 5 && !(sanitized() && what == std::string_view("fork")); i++) {
                RunOptions options = with_library();
                options.env.push_back(mode);
                Exit end =
                    hosts->run(Host::a, {app("preload_first"), what}, options).wait(milliseconds(60000));
                ASSERT_FALSE(end.timed_out) << mode << what << i;
                ASSERT_TRUE(end.ok())
                    << mode << what << i << ": " << end.code << " " << end.signal << end.err;
            }
    if (sanitized())
        GTEST_SKIP() << "GCC 12's AddressSanitizer does not guard its allocator against fork: the child may "
                        "wait for ever";
}

TEST_F(Lifecycle, KilledInTheMiddle) {
    for (int round = 0; round < 3; round++) {
        auto agent = program();
        talks_offloaded(*agent);
        peer->post("send s 198.18.1.1 5000 100 2000 0 100");
        agent->post("drain s 5000");
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, true));
        agent->process().kill(SIGKILL);
        EXPECT_EQ(agent->process().wait().signal, SIGKILL);
        peer->answer();
        if (round == 0) {  // the port is the kernel's again
            EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
            auto plain = program(false);
            talks(*plain);
        }  // later rounds start again at once
    }
}

TEST_F(Lifecycle, EndsBySignalsAndErrors) {
    for (int signal : {SIGTERM, SIGINT, SIGSEGV}) {
        auto agent = program();
        talks(*agent);
        agent->process().kill(signal);
        const Exit end = agent->process().wait();
        // AddressSanitizer turns a SIGSEGV into a report and an exit.
        if (signal == SIGSEGV && sanitized())
            EXPECT_TRUE(end.signal == signal || end.code != 0);
        else
            EXPECT_EQ(end.signal, signal);
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
}

// Two programs, one netdev: they share an adapter; of AF_XDP the second one is told that it is taken.
TEST_F(Lifecycle, SecondProgramOnTheSameInterface) {
    auto first = program();
    talks_offloaded(*first);
    auto second = program(true, {}, 5001);
    talks(*second);
    expect_reason_over_xdp(*second, "another libvma process holds veth1");
    talks_offloaded(*first);
    EXPECT_TRUE(second->finish().ok());
    talks_offloaded(*first);
    EXPECT_TRUE(first->finish().ok());
    auto third = program();
    talks_offloaded(*third);
}

// The program that was there second takes the interface over when the first one ends, and its socket goes
// with it.
TEST_F(Lifecycle, SecondProgramTakesOverWhenTheFirstEnds) {
    FOR_XDP_ONLY();
    auto first = program();
    talks_offloaded(*first);
    auto second = program(true, {}, 5001);
    talks(*second);
    EXPECT_EQ(second->process().err().find("are offloaded by"), std::string::npos);
    first->process().kill(SIGKILL);
    EXPECT_TRUE(second->process().wait_for_err("are offloaded by", milliseconds(10000) * patience()))
        << second->process().err();
    talks_offloaded(*second);
    EXPECT_TRUE(second->finish().ok());
}

// A predecessor that has just been killed is waited for: the very first datagrams are offloaded.
TEST_F(Lifecycle, RestartAtOnce) {
    auto agent = program();
    talks_offloaded(*agent);
    for (int round = 0; round < 10; round++) {
        agent->process().kill(SIGKILL);
        auto next = program(true, {}, 5001 + round);
        talks_offloaded(*next);
        agent = std::move(next);
    }
}

// A program that makes sockets and does not use them pays little: no thread, no look at the network, and of
// system calls those that find the handlers of 62 signals and make the statistics file.
TEST_F(Lifecycle, SocketAloneStartsLittle) {
    need({"python3", "strace"});
    const std::string trace = hosts_trace();
    Exit end = hosts
                   ->run(Host::a, {"strace", "-qq", "-e", "signal=none", "-o", trace, "-E",
                                   "LD_PRELOAD=" + preload_value(), "python3", "-c",
                                   "import os, socket\n"
                                   "def threads(): return len(os.listdir('/proc/self/task'))\n"
                                   "os.getpgid(1)\n"
                                   "udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                                   "os.getpgid(1)\n"
                                   "tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)\n"
                                   "assert threads() == 1, threads()\n"
                                   "netlink = open('/proc/self/net/netlink').read().split()\n"
                                   "assert str(os.getpid()) not in netlink, netlink\n"
                                   "udp.bind(('198.18.1.1', 5000))\n"
                                   "assert threads() > 1\n"})
                   .wait();
    EXPECT_TRUE(end.ok()) << end.err;
    std::ifstream lines(trace);
    long marks = 0, calls = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("getpgid(1)"))
            marks++;
        else if (marks == 1)
            calls++;
    }
    EXPECT_EQ(marks, 2);
    EXPECT_GT(calls, 1);
    EXPECT_LE(calls, 200);  // 134 with those of the interpreter
    std::filesystem::remove(trace);
}

// A child knows that its parent has the interface: its first socket costs no attempt to get it.
TEST_F(Lifecycle, ForkedChildDoesNotTry) {
    FOR_XDP_ONLY();
    Exit end = hosts
                   ->run(Host::a,
                         {"python3", "-c",
                          "import os, socket\n"
                          "def bound(port):\n"
                          "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                          "    s.bind(('198.18.1.1', port))\n"
                          "    return s\n"
                          "s = bound(5000)\n"
                          "if os.fork() == 0:\n"
                          "    t = bound(5001)\n"
                          "    os._exit(0)\n"
                          "assert os.wait()[1] == 0\n"},
                         with_library())
                   .wait();
    EXPECT_TRUE(end.ok()) << end.err;
    EXPECT_NE(end.err.find("are offloaded by"), std::string::npos) << end.err;
    EXPECT_NE(end.err.find("another libvma process holds veth1: process"), std::string::npos) << end.err;
}

// Exactly what the documents ask for, as another user, with the locked memory that users have.
TEST_F(Lifecycle, DocumentedCapabilitiesSuffice) {
    FOR_XDP_ONLY();
    const std::string three = "-all,+net_admin,+net_raw,+bpf";
    auto agent = program(true, {"prlimit", "--memlock=8388608:8388608", "setpriv", "--reuid=65534",
                                "--regid=65534", "--clear-groups", "--bounding-set=" + three,
                                "--inh-caps=" + three, "--ambient-caps=" + three});
    talks_offloaded(*agent);
    EXPECT_TRUE(hosts->offloaded(Host::a)) << agent->process().err();
    EXPECT_NE(agent->process().err().find("locked memory is limited"), std::string::npos)
        << agent->process().err();
    EXPECT_TRUE(agent->finish().ok());
}

TEST_F(Lifecycle, ForeignXdpProgramStays) {
    FOR_XDP_ONLY();
    // A program that passes everything, as another tool would have attached it.
    auto dir = std::filesystem::temp_directory_path() / ("vmatest-" + std::to_string(getpid()));
    std::filesystem::create_directory(dir);
    std::string object = dir / "pass.o";
    {
        Fd source(memfd_create("pass.c", 0));
        const char text[] = "__attribute__((section(\"xdp\"), used)) int pass(void *c) { return 2; }\n";
        ASSERT_EQ(write(source.get(), text, sizeof text - 1), static_cast<ssize_t>(sizeof text - 1));
        tool({"clang", "-O2", "-target", "bpf", "-x", "c", "-c",
              "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(source.get()), "-o", object});
    }
    for (const char* mode : {"xdpgeneric", "xdpdrv"}) {
        SCOPED_TRACE(mode);
        hosts->ip(Host::a, {"link", "set", "dev", "veth1", mode, "obj", object, "sec", "xdp"});
        auto agent = program();
        talks(*agent);
        expect_reason(*agent, "a foreign XDP program is attached");
        EXPECT_TRUE(agent->finish().ok());
        EXPECT_TRUE(hosts->offloaded(Host::a)) << "the foreign program is gone";
        hosts->ip(Host::a, {"link", "set", "dev", "veth1", mode, "off"});
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
    std::filesystem::remove_all(dir);
    auto agent = program();
    talks_offloaded(*agent);
}

TEST_F(Lifecycle, WithoutPermission) {
    for (std::vector<std::string> launcher :
         {std::vector<std::string>{"setpriv", "--bounding-set=-all", "--inh-caps=-all",
                                   "--ambient-caps=-all"},
          std::vector<std::string>{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"},
          std::vector<std::string>{"setpriv", "--bounding-set=-net_raw"},
          std::vector<std::string>{"setpriv", "--bounding-set=-bpf,-sys_admin"}}) {
        SCOPED_TRACE(launcher[1]);
        auto agent = program(true, launcher);
        talks(*agent);
        expect_reason(*agent, "ermi");  // "no permission to ...", "Operation not permitted"; the simulated
                                        // adapter needs it, too
        EXPECT_TRUE(agent->finish().ok());
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
}

// The limit does not bind who has CAP_IPC_LOCK.
TEST_F(Lifecycle, LittleLockedMemory) {
    auto agent = program(true, {"prlimit", "--memlock=65536:65536"});
    talks_offloaded(*agent);
    EXPECT_TRUE(agent->finish().ok());
    EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    agent = program(true, {"setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"});
    talks(*agent);
    expect_reason_over_xdp(*agent, "locked memory is limited to 64 KiB");
    EXPECT_TRUE(agent->finish().ok());
}

TEST_F(Lifecycle, FewDescriptors) {
    auto agent = program(true, {"prlimit", "--nofile=128:128"});
    talks_offloaded(*agent);
    EXPECT_TRUE(agent->finish().ok());
}

TEST_F(Lifecycle, TenThousandSockets) {
    auto agent = program();
    talks_offloaded(*agent);
    EXPECT_EQ(agent->ask("cycles 1000 5001", milliseconds(60000)), "ok");
    std::string before = agent->ask("usage");
    EXPECT_EQ(agent->ask("cycles 9000 5001", milliseconds(60000)), "ok");
    std::string after = agent->ask("usage");
    EXPECT_EQ(Agent::value(before, "fds"), Agent::value(after, "fds"));
    // AddressSanitizer keeps freed memory for a while (quarantine, 256 MiB at most).
    const long slack = sanitized() ? 256 * 1024 : 1024;
    EXPECT_LE(Agent::value(after, "rss_kb"), Agent::value(before, "rss_kb") + slack)
        << before << " then " << after;
    talks_offloaded(*agent);
}

// A program that opens no socket pays nothing and says nothing.
TEST_F(Lifecycle, ProgramWithoutSockets) {
    Exit e = hosts->run(Host::a, {"ls", "/"}, with_library()).wait();
    EXPECT_TRUE(e.ok()) << e.err;
    EXPECT_EQ(e.err, "");
    e = hosts->run(Host::a, {"sh", "-c", "echo one; (echo two | cat); exit 3"}, with_library()).wait();
    EXPECT_EQ(e.code, 3);
    EXPECT_EQ(e.out, "one\ntwo\n");
    EXPECT_EQ(e.err, "");
    EXPECT_FALSE(hosts->offloaded(Host::a));
}

}  // namespace
