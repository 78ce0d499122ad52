// SPDX-License-Identifier: BSD-2-Clause
// Coming and going over AF_XDP: threads that only AF_XDP needs, an interface that another process holds or
// that carries another XDP program, and what permissions suffice.
#include <linux/bpf.h>
#include <net/if.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "lifecycle_fixture.h"
#include "tests/support/hosts/on_host.h"

namespace {

using namespace testing_support;

TEST_F(Lifecycle, MainLeavesByPthreadExit) {
    Process process = hosts->run(Host::a, {app("preload_leader"), "198.18.1.2", "6000"}, with_library());
    Exit end = process.wait(milliseconds(10000));
    EXPECT_FALSE(end.timed_out) << "the process does not end";
    EXPECT_EQ(end.code, 0) << end.err;
    // Datagrams are a burst when they follow within 2 us. A sanitized library is too slow for it on some
    // machines, and then there is no such thread.
    if (sanitized())
        EXPECT_EQ(end.out.substr(0, 8), "flusher ") << end.out;
    else
        EXPECT_EQ(end.out, "flusher 1\n");
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

// The program that was there second takes the interface over when the first one ends, and its socket goes
// with it.
TEST_F(Lifecycle, SecondProgramTakesOverWhenTheFirstEnds) {
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

// A child knows that its parent has the interface: its first socket costs no attempt to get it.
TEST_F(Lifecycle, ForkedChildDoesNotTry) {
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
    const std::string three = "-all,+net_admin,+net_raw,+bpf";
    auto agent = program(true, {"prlimit", "--memlock=8388608:8388608", "setpriv", "--reuid=65534",
                                "--regid=65534", "--clear-groups", "--bounding-set=" + three,
                                "--inh-caps=" + three, "--ambient-caps=" + three});
    talks_offloaded(*agent);
    EXPECT_TRUE(hosts->offloaded(Host::a)) << agent->process().err();
    EXPECT_EQ(agent->process().err().find("locked memory is limited"), std::string::npos)
        << agent->process().err();
    EXPECT_TRUE(agent->finish().ok());
}

TEST_F(Lifecycle, ForeignXdpProgramStays) {
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
    // A process of another interface is not the one that holds this one.
    Agent elsewhere(*hosts, Host::b, with_library({"VMA_XDP_MODE=skb"}));
    open_socket(elsewhere, Host::b, 6001);
    for (const char* mode : {"xdpgeneric", "xdpdrv"}) {
        SCOPED_TRACE(mode);
        hosts->ip(Host::a, {"link", "set", "dev", "veth1", mode, "obj", object, "sec", "xdp"});
        auto agent = program(true, {"env", "VMA_XDP_MODE=skb"});
        talks(*agent);
        expect_reason(*agent, "the kernel: a foreign XDP program is attached to veth1");
        EXPECT_TRUE(agent->finish().ok());
        // What it passes reaches a tcx program.
        agent = program();
        talks_offloaded(*agent);
        EXPECT_TRUE(agent->finish().ok());
        EXPECT_TRUE(hosts->offloaded(Host::a)) << "the foreign program is gone";
        hosts->ip(Host::a, {"link", "set", "dev", "veth1", mode, "off"});
        EXPECT_TRUE(hosts->wait_offloaded(Host::a, false));
    }
    std::filesystem::remove_all(dir);
    auto agent = program();
    talks_offloaded(*agent);
}

// What the log and vma_stats say of a device.
struct Means {
    const char* mode;
    const char* details;
};
void PrintTo(const Means& m, std::ostream* out) { *out << m.mode; }
class Details : public Lifecycle, public testing::WithParamInterface<Means> {
  protected:
    // The log of a program whose socket has this address of host a.
    std::string log_of(const std::string& address) {
        return hosts
            ->run(Host::a,
                  {"python3", "-c",
                   "import socket\n"
                   "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                   "s.bind(('" +
                       address + "', 5000))\n"},
                  with_library({std::string("VMA_XDP_MODE=") + GetParam().mode}))
            .wait()
            .err;
    }
};

TEST_P(Details, AreInTheLog) {
    const std::string log = log_of(TwoHosts::address(Host::a));
    EXPECT_NE(log.find(GetParam().details), log.npos) << log;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, Details,
    testing::Values(Means{"drv", "(drv): driver veth, native XDP, checksums by the kernel, 1 of 1 queues, "},
                    Means{"skb", "(skb): driver veth, generic XDP, checksums by the kernel, 1 of 1 queues, "},
                    Means{"tc", "(tc): driver veth, tcx, checksums by the kernel, all queues, "}),
    [](const auto& info) { return std::string(info.param.mode); });

// A bridge has no native XDP, and says so itself.
class Bridge : public Details {};
TEST_P(Bridge, SaysWhyItHasNoNativeXdp) {
    hosts->ip(Host::a, {"link", "add", "br0", "type", "bridge"});
    hosts->ip(Host::a, {"link", "add", "port0", "type", "veth", "peer", "name", "port1"});
    hosts->ip(Host::a, {"link", "set", "port0", "master", "br0"});
    for (const char* link : {"port0", "port1", "br0"}) hosts->ip(Host::a, {"link", "set", link, "up"});
    hosts->ip(Host::a, {"addr", "add", "198.18.9.1/24", "dev", "br0"});
    const std::string log = log_of("198.18.9.1");
    const std::string words =
        "cannot attach a program to br0 (drv mode): Underlying driver does not support XDP in native mode";
    EXPECT_NE(log.find("to send; " + words), log.npos) << log;
}
INSTANTIATE_TEST_SUITE_P(Automatic, Bridge, testing::Values(Means{"auto", ""}));

// A tcx program with the library's name that takes every frame, as that of a process that is ending. A link
// with it on host a, or nothing where the kernel has no tcx.
Fd predecessor(const TwoHosts& hosts) {
    const bpf_insn insns[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 2 /* TCX_DROP */},
                              {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    const On there(hosts, Host::a);
    return tcx_program("veth1", Tcx::ingress, insns, "vma_steer");
}

// The program of a process that is ending would swallow its successor's datagrams: so the successor waits.
TEST_F(Lifecycle, WaitsForThePredecessorsTcxProgram) {
    Fd before = predecessor(*hosts);
    ASSERT_TRUE(before) << "this kernel has no tcx";
    std::thread ends([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        before.reset();
    });
    auto agent = program();
    talks_offloaded(*agent);
    ends.join();
}

// As if the host had stopped the processor that copies a frame: datagrams come by the kernel meanwhile.
TEST_F(Lifecycle, DatagramsComeByTheKernelWhileTheTcxProgramIsLocked) {
    auto agent = program();
    talks_offloaded(*agent);
    const auto set_lock = [&](std::uint32_t value) {
        const On there(*hosts, Host::a);
        ASSERT_TRUE(set_tcx_value("veth1", "busy", value)) << "no tcx program";
    };
    const long before = kernel_datagrams(*agent);
    set_lock(1);
    talks(*agent);
    EXPECT_GE(kernel_datagrams(*agent) - before, 20);
    set_lock(0);
    talks_offloaded(*agent);
}

}  // namespace
