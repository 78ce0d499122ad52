// SPDX-License-Identifier: BSD-2-Clause
// Programs that hand their sockets to others: to children they fork, to programs they start, to stdio, to
// io_uring. Each is judged by what arrives, and by the log, which must tell that the library had the socket
// before.
#include <signal.h>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

class ProcessPrograms : public HostsTest {
  protected:
    const std::string address = TwoHosts::address(Host::b);

    RunOptions with_library(std::vector<std::string> env = {}) const {
        env.insert(env.end(), {"VMA_TRACELEVEL=debug", "VMA_LOG_FILE=" + scratch->path("log-%d")});
        return {.preload = true, .env = std::move(env)};
    }
    Process python(Host host, const std::string& script, RunOptions options = {}) const {
        return hosts->run(host, {"python3", "-c", "import socket, subprocess, sys, time\n" + script},
                          std::move(options));
    }
    // Its output, after its end.
    static std::string out_of(Process process) {
        Exit end = process.wait();
        EXPECT_TRUE(end.ok()) << end.code << "\n" << end.out << end.err;
        return end.out;
    }
    void expect_log(const std::string& text) const {
        const std::string log = scratch->read_all("log-");
        EXPECT_NE(log.find(text), log.npos) << log;
    }
    // Answers each line in capitals, to one connection; "quit" ends it.
    std::string answering() const {
        return "s = socket.create_server(('" + address +
               "', 7000)); c, _ = s.accept(); f = c.makefile('rw')\n"
               "for line in f:\n"
               "    if line == 'quit\\n': break\n"
               "    f.write(line.upper()); f.flush()\n";
    }
};

TEST_F(ProcessPrograms, BashWritesToAConnection) {
    Server server(python(Host::b, answering()));
    ASSERT_TRUE(server.wait_listening(7000)) << server.process().err();
    const std::string script =
        "exec 3<>/dev/tcp/" + address +
        "/7000; echo one >&3; read -r line <&3; echo \"$line\"; printf '%s\\n' two three >&3; "
        "head -c 10 <&3; date +last >&3; read -r -u 3 line; echo \"$line\"; echo quit >&3; cat <&3";
    EXPECT_EQ(out_of(hosts->run(Host::a, {"bash", "-c", script}, with_library())), "ONE\nTWO\nTHREE\nLAST\n");
    EXPECT_TRUE(server.process().wait().ok());
    expect_log("a TCP connection is moved to the kernel");
}

// subprocess calls vfork.
TEST_F(ProcessPrograms, PythonGivesAConnectionToAProgram) {
    Server server(
        python(Host::b,
               "s = socket.create_server(('" + address +
                   "', 7000))\n"
                   "for i in range(3):\n"
                   "    c, _ = s.accept()\n"
                   "    print(subprocess.Popen(['tr', 'a-z', 'A-Z'], stdin=c, stdout=c).wait(), flush=True)\n"
                   "    c.sendall(b'and the parent'); c.close()\n",
               with_library()));
    ASSERT_TRUE(server.wait_listening(7000)) << server.process().err();
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(out_of(python(Host::a, "c = socket.create_connection(('" + address +
                                             "', 7000)); c.sendall(b'text'); c.shutdown(socket.SHUT_WR)\n"
                                             "print(c.makefile().read())\n")),
                  "TEXTand the parent\n");
    Exit end = server.process().wait();
    EXPECT_EQ(end.out, "0\n0\n0\n") << end.err;
    expect_log("a TCP connection is moved to the kernel");
}

// ---- socat, which has a child for each client or datagram ----

class Socat : public ProcessPrograms, public ::testing::WithParamInterface<const char*> {};

TEST_P(Socat, AnswersDatagramsInChildren) {
    need({"socat", "python3"});
    const std::string listen = std::string(GetParam()) + ":7001,bind=" + address + ",fork,reuseaddr";
    Server server(hosts->run(Host::b, {"socat", "-T", "5", listen, "PIPE"}, with_library()));
    // The first datagram is repeated until the server is there.
    const std::string client = R"(
def client():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((')" +
                               address + R"(', 7001)); return s
for attempt in range(100):
    s = client(); s.settimeout(0.1)
    try: s.send(b'first'); s.recv(100); break
    except TimeoutError: pass
    except ConnectionRefusedError: time.sleep(0.1)
answered = 0
# socat has a moment in which neither the child has the new client nor the parent listens again: what comes
# then is lost or refused, with the kernel, too. So a client repeats itself after a moment; answers of before
# are passed over.
for i in range(4):
    s = client(); s.settimeout(1)
    for j in range(3):
        text = b'%d %d' % (i, j)
        for attempt in range(10):
            try:
                s.send(text)
                while s.recv(100) != text: pass
                answered += 1
                break
            except TimeoutError: pass
            except ConnectionRefusedError: time.sleep(0.1)
print(answered)
)";
    EXPECT_EQ(out_of(python(Host::a, client)), "12\n") << server.process().err();
    server.process().kill(SIGTERM);
    server.process().wait();
    expect_log("a UDP socket is left to the kernel");
}

INSTANTIATE_TEST_SUITE_P(, Socat, ::testing::Values("UDP4-LISTEN", "UDP4-RECVFROM"), [](const auto& info) {
    return std::string(info.param) == "UDP4-LISTEN" ? "Listen" : "Recvfrom";
});

// ---- io_uring ----

// libuv uses it for epoll_ctl() where it may.
TEST_F(ProcessPrograms, NodeDoesWithoutIoUring) {
    need({"node"});
    const std::string script = VMA_SOURCE_DIR "/tests/programs/scripts/node_http.js";
    Server server(hosts->run(Host::b, {"node", script, "server", address, "8000"},
                             with_library({"UV_USE_IO_URING=1"})));
    ASSERT_TRUE(server.wait_listening(8000)) << server.process().err();
    EXPECT_EQ(out_of(hosts->run(Host::a, {"node", script, "client", address, "8000", "100"},
                                with_library({"UV_USE_IO_URING=1"}))),
              "verified 100, failed 0\n");
    EXPECT_TRUE(server.end(SIGTERM).ok());
    EXPECT_TRUE(tcp_was_offloaded(scratch->read_all("log-")));
}

}  // namespace
