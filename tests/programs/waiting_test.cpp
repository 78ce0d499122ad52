// SPDX-License-Identifier: BSD-2-Clause
// Many threads asleep for one interface's frames: each is woken for its own, as in the kernel, and none is
// forgotten when the one that watches the ring leaves.
#include <gtest/gtest.h>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

constexpr int kThreads = 60, kRounds = 10;

// A thread for each port from 5000 on, which sends back what comes. {udp}: the protocol; {wait}: SO_RCVTIMEO
// in microseconds, 0: none. Prints "ready", and after "end" on each port how often its threads have slept
// since the first round was over.
const char* const kThreadsProgram = R"(
import os, resource, socket, struct, sys, threading
udp, wait, threads = sys.argv[1] == 'udp', int(sys.argv[2]), int(sys.argv[3])
kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
slept = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
begin = 0
failed = []
def serve(s):
    global begin
    if wait:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, wait))
    while True:
        try:
            data, peer = s.recvfrom(100)
        except BlockingIOError:
            continue
        if data == b'begin':
            begin = slept()
        s.sendto(data, peer) if udp else s.send(data)
        if data in (b'end', b''):
            return
def guarded(s):
    try:
        serve(s)
    except BaseException as e:
        failed.append(e)
        raise
sockets = [socket.socket(socket.AF_INET, kind) for i in range(threads)]
for i, s in enumerate(sockets):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('198.18.1.1', 5000 + i))
    if not udp:
        s.listen()
print('ready', flush=True)
if not udp:
    sockets = [s.accept()[0] for s in sockets]
running = [threading.Thread(target=guarded, args=(s,)) for s in sockets]
for t in running:
    t.start()
for t in running:
    t.join()
print('slept', slept() - begin, flush=True)
assert not failed, failed
)";

// Speaks to one port after the other, and waits for each answer.
const char* const kPeerProgram = R"(
import socket, sys
udp, threads, rounds = sys.argv[1] == 'udp', int(sys.argv[2]), int(sys.argv[3])
def opened(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    s.settimeout(20)
    s.connect(('198.18.1.1', port))
    return s
sockets = [opened(5000 + i) for i in range(threads)]
def ask(s, data):
    s.send(data)
    got = s.recv(100)
    assert got == data, (got, data)
for s in sockets:
    ask(s, b'first')
ask(sockets[-1], b'begin')
for i in range(rounds):
    for s in sockets:
        ask(s, b'%d' % i)
for s in sockets:
    ask(s, b'end')
)";

class Waiting : public HostsTest {
  protected:
    void SetUp() override {
        HostsTest::SetUp();
        need({"python3"});
    }
    // How often the program's threads have slept.
    long run(bool library, const std::string& protocol, int wait_usec, int rounds) {
        RunOptions options = library ? with_library({"VMA_RX_POLL=0", "VMA_TRACELEVEL=debug"}) : RunOptions{};
        Process program = hosts->run(
            Host::a,
            {"python3", "-c", kThreadsProgram, protocol, std::to_string(wait_usec), std::to_string(kThreads)},
            options);
        EXPECT_TRUE(program.wait_for_out("ready")) << program.err();
        Exit peer = hosts
                        ->run(Host::b, {"python3", "-c", kPeerProgram, protocol, std::to_string(kThreads),
                                        std::to_string(rounds)})
                        .wait();
        EXPECT_TRUE(peer.ok()) << peer.err;
        Exit end = program.wait();
        EXPECT_TRUE(end.ok()) << end.out << end.err;
        if (library) {
            EXPECT_NE(end.err.find("are offloaded by"), std::string::npos) << end.err;
        }
        const std::size_t at = end.out.find("slept ");
        return at == std::string::npos ? -1 : atol(end.out.c_str() + at + 6);
    }
    // The kernel needs one sleep for each message. The library has one more for the thread that watches the
    // ring, and one where that one gets a message and another takes over; as many again are for the machine's
    // other work. Each thread for each frame would be 60.
    void expect_few_wakeups(const std::string& protocol) {
        const long messages = kThreads * (kRounds + 1);
        const long kernel = run(false, protocol, 0, kRounds), library = run(true, protocol, 0, kRounds);
        EXPECT_GE(kernel, messages / 2);
        EXPECT_GE(library, messages / 2);
        EXPECT_LE(library, 6 * messages) << "kernel " << kernel;
        RecordProperty("kernel", static_cast<int>(kernel));
        RecordProperty("library", static_cast<int>(library));
    }
};

TEST_F(Waiting, ManyThreadsWakeForTheirOwnDatagrams) { expect_few_wakeups("udp"); }
TEST_F(Waiting, ManyThreadsWakeForTheirOwnStreams) { expect_few_wakeups("tcp"); }

// Whoever watches the ring leaves all the time: each message finds another one, or is lost on a sleeping
// thread.
TEST_F(Waiting, WatchersComeAndGo) {
    for (const char* protocol : {"udp", "tcp"}) {
        SCOPED_TRACE(protocol);
        EXPECT_GT(run(true, protocol, 3000, kRounds), 0);
    }
}

}  // namespace
