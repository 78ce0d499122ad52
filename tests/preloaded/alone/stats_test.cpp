// SPDX-License-Identifier: BSD-2-Clause
// The statistics of real traffic: what the file says of a socket is what its peer, the program itself and the
// kernel counted.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/stats_file.h"

namespace {

using namespace testing_support;
using namespace vma::stats;

std::string text(const char* field, std::size_t room) { return {field, strnlen(field, room)}; }
#define TEXT(field) text(field, sizeof(field))

// A rules file for one test.
class Conf {
  public:
    explicit Conf(const std::string& rules)
        : path_("/tmp/vma-stats-test-" + std::to_string(getpid()) + ".conf") {
        std::ofstream(path_) << rules;
    }
    ~Conf() { unlink(path_.c_str()); }
    std::string variable() const { return "VMA_CONFIG_FILE=" + path_; }

  private:
    std::string path_;
};

class Stats : public testing::Test {
  protected:
    void start(std::vector<std::string> env = {}) {
        hosts = std::make_unique<TwoHosts>();
        a = std::make_unique<Agent>(*hosts, Host::a, with_library(std::move(env)));
        b = std::make_unique<Agent>(*hosts, Host::b);
        open_socket(*a, Host::a, 5000);
        open_socket(*b, Host::b, 6000);
        file = std::make_unique<StatsFile>(a->process().pid());
    }
    // Neighbours are known afterwards, and counters at 0.
    void warm_up() {
        expect_conversation(*a, *b, "198.18.1.2", 5);
        EXPECT_EQ(command(*hosts, Host::a, *file, Command::zero).error, 0);
    }
    SocketBlock block(int type = SOCK_DGRAM, int port = 5000) {
        EXPECT_TRUE(refresh(*hosts, Host::a, *file)) << file->path();
        const auto found = file->socket(type, port);
        EXPECT_TRUE(found) << "no socket on port " << port;
        return found.value_or(SocketBlock{});
    }
    void send(Agent& from, const std::string& to, int port, int length, int count) {
        EXPECT_EQ(from.ask("send s " + to + " " + std::to_string(port) + " " + std::to_string(length) + " " +
                           std::to_string(count) + " 0 50"),
                  "sent " + std::to_string(count));
    }
    // From b to a, or from a to b, and the receiver counts them all.
    void a_receives(int length, int count) {
        a->post("drain s 500");
        send(*b, "198.18.1.1", 5000, length, count);
        EXPECT_EQ(Agent::value(a->answer(), "count"), count);
    }
    void a_sends(int length, int count) {
        b->post("drain s 500");
        send(*a, "198.18.1.2", 6000, length, count);
        EXPECT_EQ(Agent::value(b->answer(), "count"), count);
    }
    long drained(Agent& agent) { return Agent::value(agent.ask("drain s 300"), "count"); }
    void TearDown() override {
        if (HasFailure() && a) std::cout << "log of a:\n" << a->process().err();
    }
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> a, b;
    std::unique_ptr<StatsFile> file;
};

void expect_traffic(const Traffic& t, std::uint64_t packets, std::uint64_t bytes, const char* what) {
    EXPECT_EQ(t.packets, packets) << what;
    EXPECT_EQ(t.bytes, bytes) << what;
    EXPECT_EQ(t.errors, 0u) << what;
}

TEST_F(Stats, OffloadedUdp) {
    start();
    warm_up();
    a_receives(100, 300);
    a_sends(250, 200);
    const SocketBlock s = block();
    expect_traffic(s.rx_offload, 300, 30000, "rx offload");
    expect_traffic(s.tx_offload, 200, 50000, "tx offload");
    expect_traffic(s.rx_os, 0, 0, "rx os");
    expect_traffic(s.tx_os, 0, 0, "tx os");
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::offloaded));
    EXPECT_EQ(s.tx_path, static_cast<std::uint8_t>(Path::offloaded));
    EXPECT_EQ(TEXT(s.rule), "no rule");
    EXPECT_EQ(TEXT(s.device), "veth1");
    EXPECT_EQ(s.ring, 0);
    EXPECT_NE(s.inode, 0u);
    EXPECT_EQ(s.rx_thread, a->process().pid());
    EXPECT_EQ(s.tx_thread, a->process().pid());
    EXPECT_EQ(s.rx_queue_packets, 0u);
    EXPECT_GE(s.rx_queue_max_packets, 1u);
    EXPECT_EQ(s.rx_drop_packets, 0u);

    const auto rings = file->rings();
    ASSERT_EQ(rings.size(), 1u);
    EXPECT_EQ(TEXT(rings[0].interface), "veth1");
    EXPECT_EQ(rings[0].rx_packets, 300u);
    EXPECT_EQ(rings[0].rx_bytes, 300u * 142) << "with 42 bytes of headers";
    EXPECT_EQ(rings[0].tx_packets, 200u);
    EXPECT_EQ(rings[0].tx_bytes, 200u * 292);
    EXPECT_EQ(rings[0].rules, 1u);

    // Zeroed counters begin anew, and only they.
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::zero).error, 0);
    const SocketBlock zeroed = block();
    expect_traffic(zeroed.rx_offload, 0, 0, "zeroed");
    EXPECT_EQ(zeroed.id, s.id);
    EXPECT_EQ(file->header().zeroed, 2u);
    EXPECT_EQ(file->rings()[0].rx_packets, 0u);
    a_receives(10, 7);
    expect_traffic(block().rx_offload, 7, 70, "after zero");
}

TEST_F(Stats, RulesLeaveItToTheKernel) {
    const Conf conf("use os udp_receiver *:5000\nuse os udp_sender *:6000\n");
    start({conf.variable()});
    a_receives(100, 30);
    a_sends(250, 20);
    const SocketBlock s = block();
    expect_traffic(s.rx_os, 30, 3000, "rx os");
    expect_traffic(s.tx_os, 20, 5000, "tx os");
    expect_traffic(s.rx_offload, 0, 0, "rx offload");
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::kernel));
    EXPECT_EQ(s.rx_reason, static_cast<std::uint16_t>(Reason::rule));
    EXPECT_EQ(s.tx_reason, static_cast<std::uint16_t>(Reason::rule));
    EXPECT_NE(TEXT(s.rule).find("use os udp_sender *:6000"), std::string::npos) << TEXT(s.rule);
    EXPECT_EQ(s.ring, -1);
}

TEST_F(Stats, ReceiveOffloadedSendThroughTheKernel) {
    const Conf conf("use os udp_sender *:*\n");
    start({conf.variable()});
    a_receives(100, 30);
    a_sends(250, 20);
    const SocketBlock s = block();
    EXPECT_EQ(s.rx_offload.packets + s.rx_os.packets, 30u);
    EXPECT_GE(s.rx_offload.packets, 29u);
    expect_traffic(s.tx_os, 20, 5000, "tx os");
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::offloaded));
    EXPECT_EQ(s.tx_path, static_cast<std::uint8_t>(Path::kernel));
    EXPECT_EQ(s.tx_reason, static_cast<std::uint16_t>(Reason::rule));
    EXPECT_NE(TEXT(s.rule).find("use os udp_sender"), std::string::npos) << TEXT(s.rule);
}

TEST_F(Stats, QueueOverflowLosesNothingUncounted) {
    start({"VMA_RX_BYTES_MIN=0"});
    warm_up();
    EXPECT_EQ(a->ask("set s rcvbuf 4096"), "ok");
    send(*b, "198.18.1.1", 5000, 100, 400);  // nobody reads meanwhile
    const long read = drained(*a);
    const SocketBlock s = block();
    EXPECT_GT(s.rx_drop_packets, 0u);
    const RingBlock ring = file->rings().at(0);
    EXPECT_EQ(static_cast<std::uint64_t>(read) + s.rx_drop_packets +
                  ring.drops[static_cast<unsigned>(RingDrop::device)],
              400u);
    EXPECT_EQ(s.rx_drop_bytes, s.rx_drop_packets * 100);
    expect_traffic(s.rx_offload, static_cast<std::uint64_t>(read), static_cast<std::uint64_t>(read) * 100,
                   "read");
    EXPECT_LT(s.rx_queue_max_packets, 400u);
    EXPECT_EQ(ring.drops[static_cast<unsigned>(RingDrop::queue_full)], s.rx_drop_packets);
}

TEST_F(Stats, WhatFoundNothing) {
    start();
    warm_up();
    for (int i = 0; i < 3; i++) EXPECT_EQ(a->ask("recv s 0").find("len="), std::string::npos);
    const SocketBlock s = block();
    EXPECT_EQ(s.rx_offload.packets + s.rx_os.packets, 0u);
    EXPECT_EQ(s.rx_offload.errors + s.rx_os.errors, 0u);
    const auto muxes = file->muxes();
    ASSERT_FALSE(muxes.empty());
    EXPECT_EQ(muxes[0].kind, static_cast<std::uint32_t>(Mux::poll));
    EXPECT_GE(muxes[0].timeouts, 3u) << "the agent polls before it receives";
}

TEST_F(Stats, SocketsBeyondTheLimitAreInTheTotals) {
    start({"VMA_STATS_FD_NUM=1"});
    warm_up();
    open_socket(*a, Host::a, 5001, 1, "t");
    EXPECT_EQ(a->ask("send t 198.18.1.2 6000 100 25 0 50"), "sent 25");
    EXPECT_EQ(drained(*b), 25);
    ASSERT_TRUE(refresh(*hosts, Host::a, *file));
    EXPECT_EQ(file->sockets().size(), 1u);
    EXPECT_FALSE(file->socket(SOCK_DGRAM, 5001));
    EXPECT_EQ(file->header().sockets_unseen, 1u);
    TotalsBlock t = file->totals()[kTotalsUdp];
    EXPECT_EQ(t.tx_offload.packets + t.tx_os.packets, 25u);
    EXPECT_EQ(t.tx_offload.bytes + t.tx_os.bytes, 2500u);
    // A socket that ends leaves its traffic there.
    a_receives(100, 40);
    EXPECT_EQ(a->ask("close s"), "ok");
    ASSERT_TRUE(refresh(*hosts, Host::a, *file));
    t = file->totals()[kTotalsUdp];
    EXPECT_EQ(t.rx_offload.packets + t.rx_os.packets, 40u);
    EXPECT_EQ(file->sockets().size(), 0u);
}

TEST_F(Stats, LoopbackAndGroupsAreTheKernels) {
    start();
    hosts->ip(Host::a, {"route", "add", "224.0.0.0/4", "dev", "veth1"});
    EXPECT_EQ(a->ask("open l 127.0.0.1 5002"), "ok 5002");
    EXPECT_EQ(a->ask("open m 0.0.0.0 5003"), "ok 5003");
    EXPECT_EQ(a->ask("join m 224.7.7.7 198.18.1.1"), "ok");
    const SocketBlock s = block(SOCK_DGRAM, 5002);
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::kernel));
    EXPECT_EQ(s.rx_reason, static_cast<std::uint16_t>(Reason::loopback));
    const auto groups = file->groups();
    ASSERT_EQ(groups.size(), 1u);
    const std::uint8_t group[] = {224, 7, 7, 7};
    EXPECT_EQ(memcmp(groups[0].group.bytes, group, 4), 0);
    EXPECT_EQ(groups[0].socket_id, file->socket(SOCK_DGRAM, 5003)->id);
    EXPECT_EQ(a->ask("send m 224.7.7.7 6000 100 3"), "sent 3");
    SocketBlock m = block(SOCK_DGRAM, 5003);
    EXPECT_EQ(m.tx_reason, static_cast<std::uint16_t>(Reason::multicast)) << "a copy comes back";
    EXPECT_EQ(m.tx_os.packets, 3u);
    EXPECT_EQ(a->ask("send m 224.7.7.9 6000 100 4"), "sent 4");
    m = block(SOCK_DGRAM, 5003);
    EXPECT_EQ(m.tx_reason, static_cast<std::uint16_t>(Reason::none));
    EXPECT_EQ(m.tx_offload.packets, 4u);
    EXPECT_EQ(a->ask("close m"), "ok");
    ASSERT_TRUE(refresh(*hosts, Host::a, *file));
    EXPECT_TRUE(file->groups().empty());
}

TEST_F(Stats, WhatOnlyTheKernelCanSend) {
    start();
    warm_up();
    a_sends(100, 3);
    EXPECT_EQ(block().tx_path, static_cast<std::uint8_t>(Path::offloaded));
    a_sends(3000, 2);
    SocketBlock s = block();
    EXPECT_EQ(s.tx_reason, static_cast<std::uint16_t>(Reason::too_long));
    expect_traffic(s.tx_os, 2, 6000, "tx os");
    a_sends(100, 4);
    s = block();
    EXPECT_EQ(s.tx_path, static_cast<std::uint8_t>(Path::offloaded)) << "the last datagram's";
    EXPECT_EQ(TEXT(s.detail), "");
    expect_traffic(s.tx_offload, 7, 700, "tx offload");
}

TEST_F(Stats, DeviceThatMayNotBeUsed) {
    start({"VMA_XDP_INTERFACES="});
    const SocketBlock s = block();
    EXPECT_EQ(s.rx_reason, static_cast<std::uint16_t>(Reason::no_device));
    EXPECT_NE(TEXT(s.detail).find("veth1: VMA_XDP_INTERFACES"), std::string::npos) << TEXT(s.detail);
}

TEST_F(Stats, FileLivesAsLongAsTheProcess) {
    start();
    EXPECT_TRUE(file->read());
    EXPECT_EQ(file->header().life, static_cast<std::uint32_t>(Life::running));
    EXPECT_EQ(file->header().pid, static_cast<std::uint32_t>(a->process().pid()));
    a->finish();
    EXPECT_FALSE(file->exists());
}

TEST_F(Stats, EpollCountsWhatItReported) {
    hosts = std::make_unique<TwoHosts>();
    b = std::make_unique<Agent>(*hosts, Host::b);
    open_socket(*b, Host::b, 6000);
    const std::string program =
        "import select, socket, os, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.bind(('198.18.1.1', 5000))\n"
        "r, w = os.pipe()\n"
        "e = select.epoll()\n"
        "e.register(s, select.EPOLLIN)\n"
        "e.register(r, select.EPOLLIN)\n"
        "os.write(w, b'x')\n"
        "print('ready', flush=True)\n"
        "sockets = pipes = calls = timeouts = packets = 0\n"
        "while packets < 100:\n"
        "    events = e.poll(0.05)\n"
        "    calls += 1\n"
        "    timeouts += not events\n"
        "    for fd, _ in events:\n"
        "        if fd == r:\n"
        "            pipes += 1\n"
        "            os.read(r, 1)\n"
        "        else:\n"
        "            sockets += 1\n"
        "            s.recv(2000)\n"
        "            packets += 1\n"
        "print('counted', sockets, pipes, calls, timeouts, 'end', flush=True)\n"
        "import time; time.sleep(20)\n";
    Process process = hosts->run(Host::a, {"python3", "-c", program}, with_library());
    ASSERT_TRUE(process.wait_for_out("ready")) << process.err();
    send(*b, "198.18.1.1", 5000, 100, 100);
    ASSERT_TRUE(process.wait_for_out(" end")) << process.out() << process.err();
    unsigned long sockets = 0, pipes = 0, calls = 0, timeouts = 0;
    const std::string out = process.out();
    ASSERT_EQ(sscanf(out.c_str() + out.find("counted"), "counted %lu %lu %lu %lu", &sockets, &pipes, &calls,
                     &timeouts),
              4);
    StatsFile stats(process.pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, stats));
    bool found = false;
    for (const MuxBlock& m : stats.muxes()) {
        if (m.kind != static_cast<std::uint32_t>(Mux::epoll)) continue;
        found = true;
        EXPECT_EQ(m.calls, calls);
        EXPECT_EQ(m.timeouts, timeouts);
        EXPECT_EQ(m.rx_ready_offload + m.rx_ready_os, sockets + pipes);
        EXPECT_GE(m.rx_ready_os, pipes);
        EXPECT_GE(m.rx_ready_offload, sockets - 2) << "the first may come through the kernel";
        EXPECT_EQ(m.errors, 0u);
        EXPECT_EQ(m.members, 1u);
        EXPECT_LE(m.poll_hit + m.poll_miss, calls - timeouts);
    }
    EXPECT_TRUE(found);
    const auto s = stats.socket(SOCK_DGRAM, 5000);
    ASSERT_TRUE(s);
    EXPECT_EQ(s->rx_offload.packets + s->rx_os.packets, 100u);
}

// fork, a failed exec, and exec of another program, as /dev/shm shows them.
TEST_F(Stats, FileOverForkAndExec) {
    hosts = std::make_unique<TwoHosts>();
    const std::string program =
        "import os, socket, time\n"
        "def bound(port):\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    s.bind(('198.18.1.1', port))\n"
        "    return s\n"
        "def file(pid): return os.path.exists('/dev/shm/vmastat.%d' % pid)\n"
        "print('none', file(os.getpid()))\n"
        "s = bound(5000)\n"
        "print('own', file(os.getpid()))\n"
        "r, w = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    before = file(os.getpid())\n"
        "    t = bound(5001)\n"
        "    os.write(w, b'child %s %s %s' % (str(before).encode(), str(file(os.getpid())).encode(), "
        "str(file(os.getppid())).encode()))\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.read(r, 100).decode(), 'after', file(child), file(os.getpid()))\n"
        "try:\n"
        "    os.execv('/nowhere', ['nowhere'])\n"
        "except OSError:\n"
        "    print('failed exec', file(os.getpid()), flush=True)\n"
        "os.execv('/bin/sleep', ['sleep', '30'])\n";
    Process process = hosts->run(Host::a, {"python3", "-c", program}, with_library());
    ASSERT_TRUE(process.wait_for_out("failed exec")) << process.out() << process.err();
    EXPECT_EQ(process.out(),
              "none False\nown True\nchild False True True after False True\nfailed exec True\n")
        << process.err();
    const StatsFile stats(process.pid());
    for (int i = 0; i < 100 && stats.exists(); i++) usleep(20000);
    EXPECT_FALSE(stats.exists()) << "the file of a program that is no more";
    EXPECT_TRUE(process.running());
}

TEST_F(Stats, KilledProcessLeavesAFileThatTellsItself) {
    start();
    ASSERT_TRUE(file->read());
    a->process().kill(SIGKILL);
    a->process().wait();
    ASSERT_TRUE(file->read());
    EXPECT_EQ(file->header().life, static_cast<std::uint32_t>(Life::running));
    EXPECT_NE(access(("/proc/" + std::to_string(file->header().pid)).c_str(), F_OK), 0);
    unlink(file->path().c_str());
}

TEST_F(Stats, CommandsReachTheProcess) {
    start();
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::dump_socket, 0, 2).error, 0);
    EXPECT_TRUE(a->process().wait_for_err("Rx Offload:")) << a->process().err();
    EXPECT_TRUE(a->process().wait_for_err("198.18.1.1:5000")) << a->process().err();
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::log_level, 0).error, 0);
    ASSERT_TRUE(file->read());
    EXPECT_EQ(file->header().log_level, 0);
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::log_level, 42).error, EINVAL);
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::dump_socket, 999, 2).error, EBADF);
}

TEST_F(Stats, ReportWhenASocketCloses) {
    const std::string report = "/tmp/vma-stats-report-" + std::to_string(getpid());
    start({"VMA_STATS_FILE=" + report, "VMA_TRACELEVEL=debug"});
    warm_up();
    send(*b, "198.18.1.1", 5000, 1024, 100);
    EXPECT_EQ(drained(*a), 100);
    EXPECT_EQ(a->ask("close s"), "ok");
    std::ostringstream lines;
    lines << std::ifstream(report).rdbuf();
    unlink(report.c_str());
    EXPECT_NE(lines.str().find("Rx Offload: 100 KB / 100 / 0 [bytes/packets/errors]"), std::string::npos)
        << lines.str();
    EXPECT_NE(lines.str().find("Rx OS info: 0 KB / 0 / 0 [bytes/packets/errors]"), std::string::npos)
        << lines.str();
    EXPECT_TRUE(a->process().wait_for_err("Rx Offload: 100 KB / 100 / 0")) << a->process().err();
}

// ---- TCP ----

class TcpStats : public Stats {
  protected:
    // A conversation between a server on host a, with the library, and a client on b; then a look at the
    // server's file.
    struct Count {
        long sent_calls = 0, sent_bytes = 0, got_calls = 0, got_bytes = 0, eagain = 0;
    };
    static Count parse(const std::string& out) {
        Count c;
        const std::size_t at = out.find("sent=");
        EXPECT_NE(at, std::string::npos) << out;
        if (at == std::string::npos) return c;
        EXPECT_EQ(sscanf(out.c_str() + at, "sent=%ld %ld got=%ld %ld eagain=%ld", &c.sent_calls,
                         &c.sent_bytes, &c.got_calls, &c.got_bytes, &c.eagain),
                  5);
        return c;
    }
    SocketBlock converse(int rounds, int length, bool move, Count& count, std::vector<std::string> env = {}) {
        hosts = std::make_unique<TwoHosts>();
        int keep[2];
        EXPECT_EQ(pipe(keep), 0);
        end_ = Fd(keep[1]);
        const Fd read(keep[0]);
        RunOptions options = with_library(std::move(env)), plain;
        options.fds = plain.fds = {{read.get(), 3}};
        const std::vector<std::string> tail = {"198.18.1.1", "5000", std::to_string(rounds),
                                               std::to_string(length)};
        std::vector<std::string> server = {VMA_APPS_DIR "/app_stats_tcp", "server"},
                                 client = {VMA_APPS_DIR "/app_stats_tcp", "client"};
        server.insert(server.end(), tail.begin(), tail.end());
        client.insert(client.end(), tail.begin(), tail.end());
        if (move) server.push_back("move");
        server_ = hosts->run(Host::a, server, options);
        EXPECT_TRUE(server_.wait_for_out("ready")) << server_.err();
        client_ = hosts->run(Host::b, client, plain);
        EXPECT_TRUE(server_.wait_for_out("sent=")) << server_.err();
        EXPECT_TRUE(client_.wait_for_out("sent="));
        count = parse(server_.out());
        const Count peer = parse(client_.out());
        EXPECT_EQ(count.got_bytes, peer.sent_bytes);
        EXPECT_EQ(count.sent_bytes, peer.got_bytes);
        file = std::make_unique<StatsFile>(server_.pid());
        return block(SOCK_STREAM, 5000);
    }
    // Until the peer has acknowledged everything, which it may put off, and nothing more comes of it.
    void wait_for_silence() {
        SocketBlock before, now = block(SOCK_STREAM, 5000);
        do {
            before = now;
            usleep(50'000);
            now = block(SOCK_STREAM, 5000);
        } while (!HasFailure() && (now.tx_queue_bytes != 0 || now.tcp_segments_in != before.tcp_segments_in));
    }
    void TearDown() override {
        if (HasFailure()) std::cout << "log of the server:\n" << server_.err();
        end_.reset();
    }
    Fd end_;
    Process server_, client_;
};

TEST_F(TcpStats, CountsCallsAndBytes) {
    Count c;
    const SocketBlock s = converse(200, 3000, false, c);
    expect_traffic(s.rx_offload, static_cast<std::uint64_t>(c.got_calls), 600000, "rx offload");
    expect_traffic(s.tx_offload, static_cast<std::uint64_t>(c.sent_calls), 600000, "tx offload");
    expect_traffic(s.rx_os, 0, 0, "rx os");
    EXPECT_EQ(s.rx_offload.eagain, static_cast<std::uint64_t>(c.eagain));
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::offloaded));
    EXPECT_EQ(s.tcp_state, 1u);
    EXPECT_EQ(s.peer.family, AF_INET);
    EXPECT_EQ(TEXT(s.device), "veth1");
    EXPECT_GE(s.tcp_segments_in, 200u) << "a message of three segments may come as one super-frame";
    EXPECT_GT(s.tcp_rtt_us, 0u);
    EXPECT_GT(s.tcp_cwnd_bytes, 1000u);
    EXPECT_EQ(s.tcp_mss, 1448u);
    // Nothing is lost on this wire: sent again is only what a peer that does not run for a while leaves
    // unacknowledged.
    if (s.tcp_timeouts == 0) {
        EXPECT_EQ(s.tcp_retransmits, s.tcp_tail_probes);
    }
    EXPECT_GT(s.rx_poll_hit + s.rx_poll_miss, 0u);
    bool listener = false;
    for (const SocketBlock& l : file->sockets()) {
        if (l.tcp_state != 10) continue;
        listener = true;
        EXPECT_EQ(l.tcp_accepted, 1u);
        EXPECT_EQ(l.rx_path, static_cast<std::uint8_t>(Path::offloaded));
    }
    EXPECT_TRUE(listener);
    wait_for_silence();
    EXPECT_EQ(command(*hosts, Host::a, *file, Command::zero).error, 0);
    const SocketBlock zeroed = block(SOCK_STREAM, 5000);
    expect_traffic(zeroed.rx_offload, 0, 0, "zeroed");
    EXPECT_EQ(zeroed.tcp_segments_in, 0u);
    EXPECT_EQ(zeroed.tcp_mss, 1448u) << "no counter";
    EXPECT_EQ(file->totals()[kTotalsTcp].rx_offload.bytes, 0u);
}

TEST_F(TcpStats, MovedToTheKernelInTheMiddle) {
    Count c;
    const SocketBlock s = converse(100, 1000, true, c);
    EXPECT_EQ(s.rx_offload.packets + s.rx_os.packets, static_cast<std::uint64_t>(c.got_calls));
    EXPECT_EQ(s.rx_offload.bytes + s.rx_os.bytes, 100000u);
    EXPECT_EQ(s.tx_offload.bytes, 50000u);
    EXPECT_EQ(s.tx_os.bytes, 50000u);
    EXPECT_EQ(s.tx_offload.packets + s.tx_os.packets, static_cast<std::uint64_t>(c.sent_calls));
    EXPECT_EQ(s.rx_path, static_cast<std::uint8_t>(Path::kernel));
    EXPECT_EQ(s.rx_reason, static_cast<std::uint16_t>(Reason::option));
    EXPECT_NE(TEXT(s.detail).find("socket option"), std::string::npos) << TEXT(s.detail);
    EXPECT_EQ(s.tcp_state, 1u) << "as the kernel has it";
    EXPECT_EQ(s.local.port, 5000);
}

TEST_F(TcpStats, RuleLeavesTheListenerToTheKernel) {
    const Conf conf("use os tcp_server *:5000\n");
    hosts = std::make_unique<TwoHosts>();
    RunOptions options = with_library({conf.variable()});
    int keep[2];
    ASSERT_EQ(pipe(keep), 0);
    end_ = Fd(keep[1]);
    const Fd read(keep[0]);
    options.fds = {{read.get(), 3}};
    server_ = hosts->run(Host::a, {VMA_APPS_DIR "/app_stats_tcp", "server", "198.18.1.1", "5000", "1", "1"},
                         options);
    ASSERT_TRUE(server_.wait_for_out("ready"));
    StatsFile stats(server_.pid());
    ASSERT_TRUE(refresh(*hosts, Host::a, stats));
    ASSERT_EQ(stats.sockets().size(), 1u);
    const SocketBlock l = stats.sockets()[0];
    EXPECT_EQ(l.rx_reason, static_cast<std::uint16_t>(Reason::rule));
    EXPECT_NE(TEXT(l.rule).find("use os tcp_server *:5000"), std::string::npos) << TEXT(l.rule);
    EXPECT_EQ(l.tcp_state, 10u);
}

}  // namespace
