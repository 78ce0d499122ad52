// SPDX-License-Identifier: BSD-2-Clause
// Coming and going: what a program on the library leaves behind however it ends, and what it does when it
// cannot have the interface. "Cannot" always means: one line in the log, and the program works through the
// kernel.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "support/plain_test.h"

namespace {

using namespace testing_support;

class Lifecycle : public testing::Test {
  protected:
    void SetUp() override { ASSERT_NO_THROW(make()); }
    void make() {
        try {
            hosts = std::make_unique<TwoHosts>();
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
    // The library said in one line why it does not offload.
    static void expect_reason(Agent& agent) {
        EXPECT_TRUE(agent.process().wait_for_err("VMA", milliseconds(1000))) << "no log line";
        std::cout << agent.process().err();
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
        if (signal == SIGSEGV && *VMA_SANITIZERS != '\0')
            EXPECT_TRUE(end.signal == signal || end.code != 0);
        else
            EXPECT_EQ(end.signal, signal);
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
}

// Two programs, one netdev: the second one is served by the kernel, or by sharing; both must work.
TEST_F(Lifecycle, SecondProgramOnTheSameInterface) {
    auto first = program();
    talks_offloaded(*first);
    auto second = program(true, {}, 5001);
    talks(*second);
    expect_reason(*second);
    talks_offloaded(*first);
    EXPECT_TRUE(second->finish().ok());
    talks_offloaded(*first);
    EXPECT_TRUE(first->finish().ok());
    auto third = program();
    talks_offloaded(*third);
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
        expect_reason(*agent);
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
        if (!hosts->offloaded(Host::a)) expect_reason(*agent);
        EXPECT_TRUE(agent->finish().ok());
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
}

TEST_F(Lifecycle, LittleLockedMemory) {
    auto agent = program(true, {"prlimit", "--memlock=65536:65536"});
    talks(*agent);
    EXPECT_TRUE(agent->finish().ok());
}

TEST_F(Lifecycle, FewDescriptors) {
    auto agent = program(true, {"prlimit", "--nofile=128:128"});
    talks(*agent);
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
    const long slack = *VMA_SANITIZERS != '\0' ? 256 * 1024 : 1024;
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
