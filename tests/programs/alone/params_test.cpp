// SPDX-License-Identifier: BSD-2-Clause
// What parameters do, each seen from outside: in socket options, in what the peer's kernel says about a
// connection (TCP_INFO), in system calls, in memory. Those of waiting are in mux_params_test.cpp, those of
// the log, the signals and the presets' values in the unit tests. And the start-up print and the warnings, as
// an operator meets them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <regex>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

constexpr const char* kPrelude = R"(
import errno, fcntl, os, select, socket, struct, sys, termios, time
HERE, THERE = '198.18.1.1', '198.18.1.2'
UDP, TCP = socket.SOCK_DGRAM, socket.SOCK_STREAM
def udp(port=5000):
    s = socket.socket(socket.AF_INET, UDP)
    s.bind((HERE, port))
    return s
def ready():
    print('ready', file=sys.stderr, flush=True)
    sys.stdin.readline()
def listen(port=5000):
    s = socket.socket(socket.AF_INET, TCP)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((HERE, port))
    s.listen(64)
    return s
def accept():
    l = listen()
    print('ready', file=sys.stderr, flush=True)
    return l.accept()[0]
def info(c):
    return c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
def word(c, n):
    return struct.unpack_from('I', info(c), 8 + 4 * n)[0]
def connect(port=5000):
    return socket.create_connection((HERE, port), 5)
# Milliseconds until the peer has acknowledged a byte; the longest of some times.
def ack_time(c, times=4):
    worst = 0
    for i in range(times):
        time.sleep(0.03)
        start = time.monotonic()
        c.send(b'x')
        while time.monotonic() < start + 3:
            if not struct.unpack('i', fcntl.ioctl(c, termios.TIOCOUTQ, b'    '))[0]: break
            time.sleep(0.001)
        worst = max(worst, time.monotonic() - start)
    return int(worst * 1000)
def vm_size():
    return int([l for l in open('/proc/self/status') if l.startswith('VmSize')][0].split()[1]) // 1024
)";

class Parameters : public HostsTest {
  protected:
    void SetUp() override {
        HostsTest::SetUp();
        need({"python3", "strace"});
    }

    // The kernel takes the program before from the interface.
    void released() const { EXPECT_TRUE(hosts->wait_offloaded(Host::a, false)); }

    struct Result {
        std::string out, peer, err;
        int status = 0;
        long number() const { return atol(out.c_str()); }
        long peer_number() const { return atol(peer.c_str()); }
    };
    // `program` on host a with the library; when it is ready, `peer` on host b without it.
    Result run(const std::string& program, std::vector<std::string> env, const std::string& peer = "",
               std::vector<std::string> launcher = {}) {
        int in[2];
        if (pipe2(in, O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
        Fd from(in[0]), to(in[1]);
        std::vector<std::string> line = std::move(launcher);
        line.insert(line.end(), {"python3", "-c", kPrelude + program});
        RunOptions options{.preload = true, .env = std::move(env), .fds = {{from.get(), 0}}};
        released();
        Process process = hosts->run(Host::a, line, options);
        Result result;
        if (!peer.empty()) {
            EXPECT_TRUE(process.wait_for_err("ready")) << process.err();
            Exit other = hosts->run(Host::b, {"python3", "-c", kPrelude + peer}).wait();
            EXPECT_TRUE(other.ok()) << other.err;
            result.peer = other.out;
        }
        EXPECT_EQ(write(to.get(), "\n", 1), 1);
        to.reset();
        Exit exit = process.wait();
        EXPECT_TRUE(exit.ok()) << exit.code << exit.out << exit.err;
        result.out = exit.out;
        result.err = exit.err;
        return result;
    }
    // How many of these system calls the program makes.
    long calls(const std::string& program, std::vector<std::string> env, const std::string& traced) {
        std::vector<std::string> line = {"strace",
                                         "-f",
                                         "-qq",
                                         "-e",
                                         "trace=" + traced,
                                         "-e",
                                         "signal=none",
                                         "-o",
                                         scratch->path("trace"),
                                         "-E",
                                         "LD_PRELOAD=" + preload_value(),
                                         "python3",
                                         "-c",
                                         kPrelude + program};
        released();
        Exit exit = hosts->run(Host::a, line, RunOptions{.env = std::move(env)}).wait();
        EXPECT_TRUE(exit.ok()) << exit.err;
        const std::string trace = scratch->read("trace");
        return std::count(trace.begin(), trace.end(), '\n');
    }
};

TEST_F(Parameters, TcpOptionsOfNewSockets) {
    struct Case {
        const char *variable, *program, *without, *with;
    };
    for (const Case& c : {
             Case{"VMA_TCP_NODELAY=1",
                  "s = socket.socket(socket.AF_INET, TCP)\nprint(s.getsockopt(6, socket.TCP_NODELAY))", "0\n",
                  "1\n"},
             Case{"VMA_SPEC=latency",
                  "s = socket.socket(socket.AF_INET, TCP)\nprint(s.getsockopt(6, socket.TCP_NODELAY))", "0\n",
                  "1\n"},
             Case{"VMA_TCP_CC_ALGO=0",
                  "s = socket.socket(socket.AF_INET, TCP)\nprint(s.getsockopt(6, 13, "
                  "16).split(b'\\0')[0].decode())",
                  nullptr, "reno\n"},
             Case{"VMA_TCP_CC_ALGO=Cubic",
                  "s = socket.socket(socket.AF_INET, TCP)\nprint(s.getsockopt(6, 13, "
                  "16).split(b'\\0')[0].decode())",
                  nullptr, "cubic\n"},
         }) {
        SCOPED_TRACE(c.variable);
        if (c.without != nullptr) {
            EXPECT_EQ(run(c.program, {}).out, c.without);
        }
        EXPECT_EQ(run(c.program, {c.variable}).out, c.with);
    }
}

// What the peer's kernel has agreed upon with us. tcpi_options: 1 time stamps, 4 window scaling.
TEST_F(Parameters, TcpHandshake) {
    const std::string server = "c = accept()\nready()\n";
    auto peer = [&](const std::string& what, std::vector<std::string> env) {
        return run(server, std::move(env), "c = connect()\nprint(" + what + ")").peer_number();
    };
    EXPECT_EQ(peer("info(c)[5] & 1", {"VMA_TCP_TIMESTAMP_OPTION=0"}), 0);
    EXPECT_EQ(peer("info(c)[5] & 1", {"VMA_TCP_TIMESTAMP_OPTION=1"}), 1);
    EXPECT_EQ(peer("info(c)[5] & 4", {}), 4);
    EXPECT_EQ(peer("info(c)[5] & 4", {"VMA_WINDOW_SCALING=-1"}), 0);
    EXPECT_EQ(peer("info(c)[6] & 15", {"VMA_WINDOW_SCALING=0"}), 0);  // tcpi_snd_wscale
    EXPECT_EQ(peer("info(c)[6] & 15", {"VMA_WINDOW_SCALING=3"}), 3);
    // tcpi_snd_mss, with time stamps.
    EXPECT_EQ(peer("word(c, 2)", {}), 1448);
    EXPECT_EQ(peer("word(c, 2)", {"VMA_MSS=500"}), 488);
    EXPECT_EQ(peer("word(c, 2)", {"VMA_MTU=1000"}), 948);
    EXPECT_EQ(peer("word(c, 2)", {"VMA_MTU=9000"}), 1448);  // the interface's is less
}

TEST_F(Parameters, MtuSendsLongDatagramsThroughTheKernel) {
    const std::string program = R"(
def kernel(): # OutDatagrams
    return int([l for l in open('/proc/net/snmp') if l.startswith('Udp:')][1].split()[4])
s = udp()
s.sendto(b'x', (THERE, 6000)) # finds the neighbour
time.sleep(0.1)
s.sendto(b'x', (THERE, 6000))
before = kernel()
for i in range(10): s.sendto(b'x' * 1200, (THERE, 6000))
print(kernel() - before)
)";
    EXPECT_EQ(run(program, {}).number(), 0);
    EXPECT_EQ(run(program, {"VMA_MTU=1000"}).number(), 10);
    EXPECT_EQ(run(program, {"VMA_MTU=1228"}).number(), 0);
}

// Soon no kick reaches the device (its sendto() fails), so that the ring fills up; the program itself uses
// sendmsg(). On a slow machine the flusher thread kicks between, and has 40 good kicks of its own: there are
// messages enough for both.
TEST_F(Parameters, FullSendQueue) {
    const std::string program = R"(
s = udp()
s.sendmsg([b'x'], [], 0, (THERE, 6000)) # finds the neighbour
time.sleep(0.1)
s.setblocking(False)
full = 0
for i in range(int(sys.argv[1])):
    try: s.sendmsg([b'x' * 100], [], 0, (THERE, 6000))
    except BlockingIOError: full += 1
print(full, flush=True)
os._exit(0)
)";
    auto full = [&](const std::string& variable, const char* messages) {
        std::vector<std::string> line = {"strace",
                                         "-f",
                                         "-qq",
                                         "-e",
                                         "trace=sendto",
                                         "-e",
                                         "inject=sendto:error=EAGAIN:when=40+",
                                         "-o",
                                         "/dev/null",
                                         "-E",
                                         "LD_PRELOAD=" + preload_value(),
                                         "python3",
                                         "-c",
                                         kPrelude + program,
                                         messages};
        released();
        Exit exit = hosts->run(Host::a, line, RunOptions{.env = {variable, "VMA_TX_WRE=64"}}).wait();
        EXPECT_TRUE(exit.ok()) << exit.err;
        return atol(exit.out.c_str());
    };
    EXPECT_EQ(full("VMA_TX_NONBLOCKED_EAGAINS=0", "400"), 0);
    EXPECT_GT(full("VMA_TX_NONBLOCKED_EAGAINS=1", "1600"), 0);
}

// The program sleeps: the internal thread takes the data, and TCP acknowledges it later, or not at all.
TEST_F(Parameters, Acknowledgements) {
    auto time = [&](std::vector<std::string> env) {
        return run("c = accept()\nc.setsockopt(6, socket.TCP_QUICKACK, 0)\nready()\n", std::move(env),
                   "c = connect()\nprint(ack_time(c))")
            .peer_number();
    };
    const long standard = time({});
    EXPECT_GT(standard, 20);
    EXPECT_LT(standard, 150);
    EXPECT_LT(time({"VMA_TCP_QUICKACK=1"}), 35);
    EXPECT_LT(time({"VMA_TCP_DELAYED_ACK_MSEC=0"}), 35);
    EXPECT_GT(time({"VMA_TCP_DELAYED_ACK_MSEC=150"}), 120);
    EXPECT_GT(time({"VMA_TCP_TIMER_RESOLUTION_MSEC=1000"}), 200);
    // Nobody looks: not before the peer sends it again.
    const std::string once = "c = connect()\nprint(ack_time(c, 1))";
    for (const char* variable : {"VMA_PROGRESS_ENGINE_INTERVAL=0", "VMA_PROGRESS_ENGINE_WCE_MAX=0"})
        EXPECT_GT(run("c = accept()\nready()\n", {variable}, once).peer_number(), 1000) << variable;
}

TEST_F(Parameters, SegmentsAreMerged) {
    const std::string program = R"(
c = accept()
n = 0
while n < 800000:
    time.sleep(0.003)
    n += len(c.recv(1000000))
info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 240)
print(struct.unpack_from('I', info, 152)[0]) # tcpi_data_segs_in
ready()
)";
    // A few frames at a time, which the sender's kernel does not put together.
    const std::string peer = R"(
c = connect()
c.setsockopt(6, socket.TCP_NODELAY, 1)
for i in range(100):
    for j in range(8): c.send(b'x' * 1000)
    time.sleep(0.006)
)";
    const long each = run(program, {"VMA_GRO_STREAMS_MAX=0"}, peer).number();
    EXPECT_GT(each, 300);
    EXPECT_LT(run(program, {}, peer).number(), each / 2);
}

TEST_F(Parameters, PollsOnSend) {
    const std::string program = R"(
c = accept()
c.setsockopt(6, socket.TCP_NODELAY, 1)
most = 0
for round in range(20): # without a pause that the probe for lost segments would end
    for i in range(4):
        c.send(b'x')
        end = time.monotonic() + 0.0002
        while time.monotonic() < end: pass
    most += word(c, 4) # tcpi_unacked
    time.sleep(0.03)
print(most // 20)
ready()
)";
    const std::string peer = "c = connect()\nn = 0\nwhile n < 80: n += len(c.recv(100))\nprint(n)";
    // As on the kernel, TCP_INFO tells what has arrived, whether or not a write polls.
    EXPECT_LE(run(program, {}, peer).number(), 1);
    EXPECT_LE(run(program, {"VMA_RX_POLL_ON_TX_TCP=1"}, peer).number(), 1);
}

TEST_F(Parameters, SynRate) {
    const std::string peer = R"(
all = []
for i in range(10):
    s = socket.socket(socket.AF_INET, TCP)
    s.setblocking(False)
    s.connect_ex((HERE, 5000))
    all.append(s)
time.sleep(0.3)
print(len(select.select([], all, [], 0)[1]))
)";
    const std::string server = "l = listen()\nready()\n";
    EXPECT_EQ(run(server, {}, peer).peer_number(), 10);
    EXPECT_EQ(run(server, {"VMA_TCP_MAX_SYN_RATE=3"}, peer).peer_number(), 3);
}

TEST_F(Parameters, RxBytesMin) {
    const std::string program = R"(
s = udp()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
ready()
n = 0
s.setblocking(False)
try:
    while s.recv(2000): n += 1
except BlockingIOError: print(n)
)";
    const std::string peer = R"(
s = socket.socket(socket.AF_INET, UDP)
for i in range(200):
    s.sendto(b'x' * 1000, (HERE, 5000))
    time.sleep(0.001)
)";
    // A program that never looks: the device's queue comes on top, unless the internal thread empties it.
    const long standard = run(program, {"VMA_INTERNAL_THREAD_ARM_CQ=1"}, peer).number();
    EXPECT_NEAR(standard, 65536 / 1256, 3);
    EXPECT_LE(run(program, {"VMA_INTERNAL_THREAD_ARM_CQ=1", "VMA_RX_BYTES_MIN=8k"}, peer).number(), 8);
}

TEST_F(Parameters, BufferMemory) {
    const std::string program = "s = udp()\nprint(vm_size())";
    auto size = [&](std::vector<std::string> env) { return run(program, std::move(env)).number(); };
    const long standard = size({"VMA_RX_WRE=8192", "VMA_TX_WRE=8192"});  // 2 KiB each, received ones twice
    EXPECT_NEAR(standard - size({"VMA_RX_WRE=1024", "VMA_TX_WRE=8192"}), 28, 4);
    EXPECT_NEAR(standard - size({"VMA_RX_WRE=8192", "VMA_RX_BUFS=256", "VMA_TX_WRE=8192"}), 16, 4);
    EXPECT_NEAR(standard - size({"VMA_RX_WRE=8192", "VMA_TX_WRE=1024"}), 14, 4);
    EXPECT_NEAR(standard - size({"VMA_RX_WRE=8192", "VMA_TX_WRE=8192", "VMA_TX_BUFS=64"}), 16, 4);
}

TEST_F(Parameters, LooksAtTheKernel) {
    const std::string receives = R"(
s = udp()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 100000))
try: s.recv(100)
except BlockingIOError: pass
)";
    const long often = calls(receives, {"VMA_RX_UDP_POLL_OS_RATIO=1", "VMA_RX_POLL=-1"}, "recvmsg,recvfrom");
    EXPECT_GT(often, 10 * (calls(receives, {"VMA_RX_UDP_POLL_OS_RATIO=1000000", "VMA_RX_POLL=-1"},
                                 "recvmsg,recvfrom") +
                           1));
    const std::string selects = "s = udp()\nr, w = os.pipe()\nselect.select([s, r], [], [], 0.1)\n";
    const std::string polls = "poll,ppoll,select,pselect6";
    const long always = calls(selects, {"VMA_SELECT_POLL_OS_RATIO=1", "VMA_SELECT_POLL=-1"}, polls);
    EXPECT_GT(always,
              10 * (calls(selects, {"VMA_SELECT_POLL_OS_RATIO=1000000", "VMA_SELECT_POLL=-1"}, polls) + 1));
    EXPECT_GT(calls(selects, {"VMA_SELECT_POLL_OS_FORCE=1", "VMA_SELECT_POLL=-1"}, polls), always / 10);
}

TEST_F(Parameters, PollingTakesTheProcessor) {
    const std::string program = R"(
s = udp()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 300000))
start = time.process_time()
try: s.recv(100)
except BlockingIOError: pass
received = time.process_time()
select.select([s], [], [], 0.3)
print(int((received - start) * 1000) * 1000 + int((time.process_time() - received) * 1000))
)";
    const long both = run(program, {"VMA_RX_POLL=-1", "VMA_SELECT_POLL=-1"}).number();
    EXPECT_GT(both / 1000, 60);
    EXPECT_GT(both % 1000, 60);
    const long none = run(program, {"VMA_RX_POLL=1", "VMA_SELECT_POLL=0"}).number();
    EXPECT_LT(none / 1000, 60);
    EXPECT_LT(none % 1000, 60);
}

TEST_F(Parameters, StartUpPrint) {
    const std::string socket = "s = udp()";
    Result r = run(socket, {"VMA_RX_POLL=7", "VMA_TX_PREFETCH_BYTES=0", "VMA_RX_POL=1", "VMA_TX_WRE=1x"});
    EXPECT_TRUE(std::regex_search(r.err, std::regex("VMA INFO: VMA_VERSION: [0-9.]+\n"))) << r.err;
    EXPECT_NE(r.err.find("VMA INFO: Cmd Line: "), r.err.npos) << r.err;
    EXPECT_TRUE(std::regex_search(r.err, std::regex("VMA INFO: Rx Poll Loops +7 +\\[VMA_RX_POLL\\]\n")))
        << r.err;
    EXPECT_TRUE(
        std::regex_search(r.err, std::regex("Tx Prefetch Bytes +0 +\\[VMA_TX_PREFETCH_BYTES\\] no effect: ")))
        << r.err;
    EXPECT_EQ(r.err.find("[VMA_TX_WRE]"), r.err.npos) << r.err;
    EXPECT_NE(
        r.err.find("VMA WARNING: VMA_RX_POL is not a parameter and has no effect: is VMA_RX_POLL meant?\n"),
        r.err.npos)
        << r.err;
    EXPECT_NE(r.err.find("VMA WARNING: VMA_TX_WRE=\"1x\" is not a number: the default 2048 is used\n"),
              r.err.npos)
        << r.err;

    r = run(socket, {"VMA_TRACELEVEL=debug"});
    EXPECT_NE(r.err.find("[VMA_TX_WRE]"), r.err.npos) << r.err;
    EXPECT_NE(r.err.find("makes the program slow"), r.err.npos) << r.err;
    EXPECT_EQ(r.err.find("makes the program slow"), r.err.rfind("makes the program slow")) << r.err;

    EXPECT_EQ(run(socket, {"VMA_TRACELEVEL=warn", "VMA_RX_POLL=7"}).err, "");
    EXPECT_EQ(run("print(1)", {"VMA_TRACELEVEL=debug", "VMA_RX_POL=1"}).err, "");  // no socket, no word
    const std::string log = scratch->path("log%d");
    EXPECT_EQ(run(socket, {"VMA_LOG_FILE=" + log}).err, "");
    EXPECT_NE(scratch->read_all("log").find("VMA_VERSION"), std::string::npos);
}

// Level debug tells of calls that set a socket up, fine of those that move data, finer of frames.
TEST_F(Parameters, LogOfCalls) {
    const std::string program = R"(
s = udp()
t = listen()
p = select.poll()
p.register(s, select.POLLIN)
p.register(t, select.POLLIN)
print('ready', file=sys.stderr, flush=True)
data, peer = s.recvfrom(100)
s.sendto(data, peer)
s.setblocking(False)
try: s.recv(1)
except BlockingIOError: pass
assert p.poll(5000)
c = t.accept()[0]
assert c.recv(100) == b'123'
c.sendall(b'4567')
print(s.fileno(), t.fileno(), c.fileno())
c.close()
)";
    const std::string peer = R"(
s = socket.socket(socket.AF_INET, UDP)
s.settimeout(5)
s.sendto(b'12345', (HERE, 5000))
assert s.recv(100) == b'12345'
c = connect()
c.sendall(b'123')
assert c.recv(100) == b'4567'
)";
    auto has = [](const Result& r, const std::string& level, const std::string& text) {
        return std::regex_search(r.err,
                                 std::regex("VMA " + level + ": \\[pid [0-9]+ tid [0-9]+\\] " + text + "\n"));
    };
    const Result info = run(program, {}, peer), debug = run(program, {"VMA_TRACELEVEL=debug"}, peer),
                 fine = run(program, {"VMA_TRACELEVEL=fine"}, peer),
                 finer = run(program, {"VMA_TRACELEVEL=finer"}, peer);
    EXPECT_EQ(info.err.find("] bind("), std::string::npos) << info.err;
    int udp = -1, listener = -1, connection = -1;
    ASSERT_EQ(sscanf(debug.out.c_str(), "%d %d %d", &udp, &listener, &connection), 3) << debug.out;
    const std::string u = std::to_string(udp), l = std::to_string(listener), c = std::to_string(connection);
    for (const Result& r : {debug, fine, finer})
        for (const std::string& call :
             {"socket\\(2\\) = " + u, "bind\\(" + u + "\\) = 0", "setsockopt\\(" + l + "\\) = 0",
              "listen\\(" + l + "\\) = 0", "accept4?\\(" + l + "\\) = " + c, "close\\(" + c + "\\) = 0"})
            EXPECT_TRUE(has(r, "DEBUG", call)) << call << "\n" << r.err;
    for (const Result& r : {fine, finer})
        for (const std::string& call :
             {"recvfrom\\(" + u + "\\) = 5", "sendto\\(" + u + "\\) = 5", "recv\\(" + u + "\\) = -1 EAGAIN",
              std::string("poll\\(2\\) = 1"), "recv\\(" + c + "\\) = 3", "send\\(" + c + "\\) = 4"})
            EXPECT_TRUE(has(r, "FINE", call)) << call << "\n" << r.err;
    EXPECT_EQ(debug.err.find("recvfrom("), std::string::npos) << debug.err;
    const std::string here = TwoHosts::address(Host::a) + ":5000",
                      there = TwoHosts::address(Host::b) + ":[0-9]+";
    for (const std::string& frame : {" receives [0-9]+ bytes: UDP " + there + " to " + here,
                                     " sends [0-9]+ bytes: UDP " + here + " to " + there,
                                     " receives [0-9]+ bytes: TCP " + there + " to " + here,
                                     " sends [0-9]+ bytes: TCP " + here + " to " + there})
        EXPECT_TRUE(has(finer, "FINER", "xdp:veth1.*" + frame)) << frame << "\n" << finer.err;
    EXPECT_EQ(fine.err.find("FINER"), std::string::npos) << fine.err;
}

// Red for warnings, on a terminal.
TEST_F(Parameters, LogColors) {
    auto log = [&](std::vector<std::string> env) {
        env.push_back("VMA_RX_POL=1");  // is warned of
        released();
        Exit exit = hosts
                        ->run(Host::a,
                              {"python3", "-c", "import pty, sys\npty.spawn(['python3', '-c', sys.argv[1]])",
                               kPrelude + std::string("s = udp()")},
                              {.preload = true, .env = std::move(env)})
                        .wait();
        EXPECT_TRUE(exit.ok()) << exit.err;
        return exit.out;
    };
    EXPECT_NE(log({}).find("\033[31mVMA WARNING: VMA_RX_POL "), std::string::npos) << log({});
    const std::string plain = log({"VMA_LOG_COLORS=0"});
    EXPECT_NE(plain.find("VMA WARNING: VMA_RX_POL "), std::string::npos) << plain;
    EXPECT_EQ(plain.find('\033'), std::string::npos) << plain;
}

TEST_F(Parameters, Warnings) {
    const std::string socket = "s = udp()";
    const std::string huge = "not enough huge pages for ";
    EXPECT_NE(run(socket, {"VMA_MEM_ALLOC_TYPE=2", "VMA_RX_WRE=65536"}).err.find(huge), std::string::npos);
    EXPECT_EQ(run(socket, {"VMA_MEM_ALLOC_TYPE=1"}).err.find(huge), std::string::npos);
    EXPECT_NE(run(socket, {"VMA_LOG_CB_FUNC_PTR=0x401000"})
                  .err.find("is not used: the process was started with it"),
              std::string::npos);
    Result r =
        run(socket, {}, "", {"setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"});
    EXPECT_NE(r.err.find("VMA WARNING: locked memory is limited to 64 KiB"), r.err.npos) << r.err;
    r = run(socket, {}, "", {"setpriv", "--bounding-set=-bpf,-sys_admin"});
    EXPECT_NE(r.err.find("VMA WARNING: sockets on veth1 are served by the kernel: no permission"), r.err.npos)
        << r.err;
}

// sysfs has an RDMA device for the interface, and the program cannot load libibverbs.
TEST_F(Parameters, RdmaDeviceWithoutLibibverbs) {
    const std::string link = hosts->ip(Host::a, {"-o", "link", "show", TwoHosts::interface()});
    const std::string mac = link.substr(link.find("link/ether ") + 11, 17);
    tool({VMA_SIM_SYSFS, scratch->path("sys"), TwoHosts::interface() + "=" + mac});
    const std::string hide =
        "for f in $(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p'); do mount --bind /dev/null $f || "
        "exit 9; done; exec \"$@\"";
    const Result r = run("s = udp()\ns.sendto(b'x', (THERE, 6000))\n", {"SYSFS_PATH=" + scratch->path("sys")},
                         "", {"unshare", "-m", "sh", "-c", hide, "sh"});
    EXPECT_NE(r.err.find("libibverbs"), r.err.npos) << r.err;
    EXPECT_NE(r.err.find("sockets on veth1 are offloaded by xdp:veth1"), r.err.npos) << r.err;
}

// A server that binds as root and goes on as somebody else: its sockets stay offloaded, new ones work.
TEST_F(Parameters, PrivilegesAreGivenUp) {
    const std::string program = R"(
def kernel(): # InDatagrams and OutDatagrams
    fields = [l for l in open('/proc/net/snmp') if l.startswith('Udp:')][1].split()
    return int(fields[1]) + int(fields[4])
s = udp(500)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
new = udp(5000)
print('ready', file=sys.stderr, flush=True)
for t in (s, new): # the first of a peer may go through the kernel
    t.sendto(*t.recvfrom(100))
before = kernel()
for i in range(20):
    for t in (s, new): t.sendto(*t.recvfrom(100))
print(kernel() - before)
)";
    const std::string peer = R"(
a = socket.socket(socket.AF_INET, UDP)
a.settimeout(5)
for i in range(21):
    for port in (500, 5000):
        a.sendto(b'%d' % i, (HERE, port))
        assert a.recv(100) == b'%d' % i
    if i == 0: time.sleep(0.3) # on a busy machine the library hears late that the neighbour is known
)";
    EXPECT_LE(run(program, {}, peer).number(), 2);
}

// A program that takes each number the library has its own descriptors under: they move, and all goes on,
// sleeping in a receive, connections for a forked child.
TEST_F(Parameters, NumbersOfTheLibraryAreTaken) {
    const std::string program = R"(
def numbers(): return set(int(f) for f in os.listdir('/proc/self/fd'))
before = numbers()
s = udp()
print('ready', file=sys.stderr, flush=True)
l = listen()
c = l.accept()[0]
go = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(go[0], 1)
    c.sendall(b'child')
    os._exit(0)
never = os.pipe()
ours = sorted(numbers() - before - set((s.fileno(), l.fileno(), c.fileno()) + go + never))
ours = [n for n in ours if n > 100]
for n in ours: os.dup2(never[0], n)
os.write(go[1], b'x')
os.waitpid(pid, 0)
s.settimeout(20)
data, peer = s.recvfrom(100)
s.sendto(data, peer)
print(len(ours))
)";
    const std::string peer = R"(
for i in range(100):
    try: c = connect()
    except ConnectionRefusedError: time.sleep(0.05)
    else: break
c.settimeout(8)
assert c.recv(100) == b'child'
s = socket.socket(socket.AF_INET, UDP)
time.sleep(0.2) # so that it sleeps
s.sendto(b'12345', (HERE, 5000))
s.settimeout(8)
assert s.recv(100) == b'12345'
)";
    EXPECT_GT(run(program, {"VMA_RX_POLL=0", "VMA_SELECT_POLL=0"}, peer).number(), 5);
}

int signal_of(Process& process) { return process.wait().signal; }

// The program's end by a signal, with a TCP connection that has unsent data.
TEST_F(Parameters, FatalSignals) {
    auto fatal = [&](const std::string& what, std::vector<std::string> env) {
        return hosts->run(Host::a, {app("preload_fatal"), TwoHosts::address(Host::a), what},
                          RunOptions{.preload = true, .env = std::move(env)});
    };
    Process process = fatal("fault", {"VMA_HANDLE_SIGSEGV=1"});
    EXPECT_EQ(signal_of(process), SIGSEGV);
    EXPECT_TRUE(std::regex_search(
        process.err(),
        std::regex("VMA ERROR: #0  0x[0-9a-f]+ app_preload_fatal\\+0x[0-9a-f]+ faulty_function\\+0x")))
        << process.err();
    process = fatal("fault", {});
    EXPECT_EQ(signal_of(process), SIGSEGV);
    EXPECT_EQ(process.err().find("backtrace"), std::string::npos);
    for (const char* what : {"handler-before", "handler-after"}) {
        process = fatal(what, {"VMA_HANDLE_SIGSEGV=1"});
        Exit exit = process.wait();
        EXPECT_EQ(exit.code, 42) << what << exit.err;
        EXPECT_NE(exit.err.find("backtrace of thread"), std::string::npos) << what;
    }
    // SIGINT in the midst of a receive that spins or sleeps.
    for (const char* variable : {"VMA_RX_POLL=-1", "VMA_RX_POLL=1"}) {
        process = fatal("receive", {"VMA_HANDLE_SIGINTR=1", "VMA_CPU_USAGE_STATS=1", variable});
        ASSERT_TRUE(process.wait_for_out("receiving"));
        usleep(100000);
        process.kill(SIGINT);
        EXPECT_EQ(signal_of(process), SIGINT);
        EXPECT_NE(process.err().find("SIGINT ends the process"), std::string::npos) << process.err();
        EXPECT_NE(process.err().find("polling took"), std::string::npos)
            << process.err();  // said in a good end
    }
    process = fatal("receive", {});
    ASSERT_TRUE(process.wait_for_out("receiving"));
    process.kill(SIGINT);
    EXPECT_EQ(signal_of(process), SIGINT);
}

// A join waits for the switches. The program's handlers run meanwhile, as in a sleep of its own.
TEST_F(Parameters, WaitAfterJoin) {
    const std::string program = R"(
import signal
s = socket.socket(socket.AF_INET, UDP)
s.bind(('', 5000))
signal.signal(signal.SIGALRM, lambda *a: None)
os.set_blocking(1, False)
signal.set_wakeup_fd(1) # the handler itself writes the signal's number
signal.setitimer(signal.ITIMER_REAL, 0.2)
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
             socket.inet_aton('239.1.2.3') + socket.inet_aton(HERE))
print('joined', flush=True)
time.sleep(20)
)";
    for (const bool waits : {true, false}) {
        RunOptions options{.preload = true};
        if (waits) options.env = {"VMA_WAIT_AFTER_JOIN_MSEC=60000"};
        Process process = hosts->run(Host::a, {"python3", "-c", kPrelude + program}, options);
        EXPECT_TRUE(process.wait_for_out("\x0e")) << process.err();
        EXPECT_EQ(process.out().find("joined") == std::string::npos, waits) << process.out();
    }
}

// Data that the peer has no room for yet: lost when the process dies, unless it ends in good order.
TEST_F(Parameters, InterruptLosesNoData) {
    const std::string program = R"(
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
c = accept()
c.setblocking(False)
n = 0
try:
    while n < 4000000: n += c.send(b'x' * 50000)
except BlockingIOError: pass
print(n, flush=True)
time.sleep(20)
)";
    for (bool handled : {true, false}) {
        RunOptions options{.preload = true};
        if (handled) options.env = {"VMA_HANDLE_SIGINTR=1"};
        Process server = hosts->run(Host::a, {"python3", "-c", kPrelude + program}, options);
        ASSERT_TRUE(server.wait_for_err("ready"));
        Process peer = hosts->run(Host::b, {"python3", "-c", std::string(kPrelude) + R"(
s = socket.socket(socket.AF_INET, TCP)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
s.connect((HERE, 5000))
time.sleep(1)
n = 0
try:
    while True:
        d = s.recv(100000)
        if not d: break
        n += len(d)
except ConnectionResetError: pass
print(n)
)"});
        ASSERT_TRUE(server.wait_for_out("\n")) << server.err();
        server.kill(SIGINT);
        EXPECT_EQ(signal_of(server), SIGINT) << server.err();
        Exit exit = peer.wait();
        EXPECT_TRUE(exit.ok()) << exit.err;
        EXPECT_EQ(exit.out == server.out(), handled) << exit.out;
    }
}

}  // namespace
