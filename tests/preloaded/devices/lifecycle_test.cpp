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
#include <string>
#include <utility>
#include <vector>

#include "tests/preloaded/lifecycle_fixture.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

TEST_F(Lifecycle, CleanExitLeavesNothing) {
    auto agent = program();
    talks_offloaded(*agent);
    EXPECT_TRUE(hosts->offloaded(Host::a));
    EXPECT_TRUE(agent->finish().ok());
    EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    auto plain = program(false);
    talks(*plain);
}

// Two threads make a process's first sockets at once; one that forks meanwhile has a child whose sockets
// work, too. Over AF_XDP the device is the parent's. Each child has a simulated adapter of its own, and its
// start and its end cost some 60 ms of processor time: so there are fewer children.
TEST_F(Lifecycle, FirstSocketOfManyThreads) {
    const std::string children = simulated() ? "5" : "20";
    for (const char* mode : {"VMA_THREAD_MODE=0", "VMA_THREAD_MODE=1"})
        for (const char* what : {"two", "fork"})
            for (int i = 0; i < 5 && !(sanitized() && what == std::string_view("fork")); i++) {
                RunOptions options = with_library();
                options.env.push_back(mode);
                std::vector<std::string> line{app("preload_first"), what};
                if (line.back() == "fork") line.push_back(children);
                Exit end = hosts->run(Host::a, std::move(line), options).wait(milliseconds(60000));
                ASSERT_FALSE(end.timed_out) << mode << what << i;
                ASSERT_TRUE(end.ok())
                    << mode << what << i << ": " << end.code << " " << end.signal << end.err;
            }
    if (sanitized())
        GTEST_SKIP() << "GCC 12's AddressSanitizer does not guard its allocator against fork: the child may "
                        "wait for ever";
}

// Of programs that start at once one gets the interface, although it may have several tcx programs. The
// others know at once whose it is.
TEST_F(Lifecycle, OneOfManyHoldsTheInterface) {
    if (simulated()) return;  // each has an adapter of its own
    constexpr int kPrograms = 6;
    for (int round = 0; round < 5; round++) {
        std::vector<std::unique_ptr<Agent>> agents;
        for (int i = 0; i < kPrograms; i++)
            agents.push_back(std::make_unique<Agent>(*hosts, Host::a, with_library()));
        for (int i = 0; i < kPrograms; i++)
            agents[static_cast<std::size_t>(i)]->post("open s 198.18.1.1 " + std::to_string(5000 + i));
        int offloaded = 0;
        for (auto& agent : agents) {
            EXPECT_TRUE(agent->answer().starts_with("ok"));
            EXPECT_TRUE(agent->process().wait_for_err("sockets on veth1 are ", milliseconds(2000)));
            if (agent->process().err().find("are offloaded by") != std::string::npos)
                offloaded++;
            else
                expect_reason(*agent, "another libvma process holds veth1");
        }
        EXPECT_EQ(offloaded, 1);
    }
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
            // A sanitizer asks the kernel whether memory is readable: pipe2, write, and two closes.
            calls += line.starts_with("pipe2(") ? -3 : 1;
    }
    EXPECT_EQ(marks, 2);
    EXPECT_GT(calls, 1);
    EXPECT_LE(calls, 200);  // 134 with those of the interpreter
    std::filesystem::remove(trace);
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
