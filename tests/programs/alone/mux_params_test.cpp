// SPDX-License-Identifier: BSD-2-Clause
// Parameters of waiting, of interrupt moderation and of the internal thread: each is seen in what a small
// Python program does under the library: its system calls (strace), its threads (/proc), or the counters in
// the library's log.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sstream>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

constexpr const char* kPrelude = R"(
import os, select, socket, struct, sys, time
HERE, THERE = '198.18.1.1', '198.18.1.2'
def udp(port=5000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((HERE, port))
    return s
def limit(s, msec):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, msec * 1000))
def receive(s):
    try:
        return s.recv(2000)
    except BlockingIOError:
        return None
def told(when='ready'):  # waits for a line of the test's
    print(when, flush=True)
    sys.stdin.readline()
)";

class MuxParams : public HostsTest {
  protected:
    void SetUp() override {
        HostsTest::SetUp();
        need({"python3", "strace"});
    }

    struct Result {
        Exit exit;
        std::string log, trace;
    };
    // The program on host a with the library. It may say "ready" and wait (told()) until `meanwhile` has run,
    // and then "more" until `more` has.
    Result run(const std::string& program, std::vector<std::string> env,
               const std::function<void()>& meanwhile = {}, const std::string& traced = "",
               const std::function<void()>& more = {}) {
        static int serial = 0;
        const std::string name = std::to_string(serial++);
        env.push_back("VMA_TRACELEVEL=debug");
        env.push_back("VMA_LOG_FILE=" + scratch->path("log" + name));
        std::vector<std::string> line = {"python3", "-c", kPrelude + program};
        RunOptions options{.preload = traced.empty(), .env = env};
        if (!traced.empty()) {
            // The library only in the program, not in strace.
            std::vector<std::string> strace = {"strace",
                                               "-f",
                                               "-c",
                                               "-e",
                                               "trace=" + traced,
                                               "-o",
                                               scratch->path("trace" + name),
                                               "-E",
                                               "LD_PRELOAD=" + preload_value()};
            line.insert(line.begin(), strace.begin(), strace.end());
        }
        int in[2];
        if (pipe2(in, O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
        Fd from(in[0]), to(in[1]);
        options.fds = {{from.get(), 0}};
        Process process = hosts->run(Host::a, line, options);
        if (meanwhile) {
            EXPECT_TRUE(process.wait_for_out("ready")) << process.err();
            meanwhile();
            EXPECT_EQ(write(to.get(), "\n", 1), 1);
        }
        if (more) {
            EXPECT_TRUE(process.wait_for_out("more")) << process.err();
            more();
        }
        to.reset();
        Result result{process.wait(), "", ""};
        EXPECT_TRUE(result.exit.ok()) << result.exit.code << result.exit.out << result.exit.err;
        result.log = scratch->read_all("log" + name);
        if (!traced.empty()) result.trace = scratch->read("trace" + name);
        return result;
    }
    // Datagrams from host b, with a pause in ms between them.
    void send(int count, int pause = 0) const {
        const std::string program =
            "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor i in range(" +
            std::to_string(count) + "):\n s.sendto(b'x', ('198.18.1.1', 5000))\n time.sleep(" +
            std::to_string(pause) + " / 1000)";
        EXPECT_TRUE(hosts->run(Host::b, {"python3", "-c", program}).wait().ok());
    }
    // What a program receives of 60 datagrams, sent when it is ready, and a thousand more, when it has taken
    // a few and nobody polls: neither does the internal thread.
    long drained(const std::string& program, std::vector<std::string> env) {
        env.insert(env.end(), {"VMA_CQ_POLL_BATCH_MAX=1", "VMA_RX_WRE=64", "VMA_RX_WRE_BATCHING=1",
                               "VMA_PROGRESS_ENGINE_INTERVAL=0"});
        return atol(run(
                        program, env, [&] { send(60); }, "", [&] { send(1000); })
                        .exit.out.c_str() +
                    strlen("ready\nmore\n"));
    }
    static long counter(const std::string& log, const std::string& name) {
        auto at = log.find(" " + name + " ");
        return at == log.npos ? 0 : atol(log.c_str() + at + name.size() + 2);
    }
    // From strace's table: "% time, seconds, usecs/call, calls, [errors,] name".
    static long calls(const std::string& trace) {
        std::istringstream in(trace);
        long sum = 0;
        for (std::string line; std::getline(in, line);) {
            std::istringstream fields(line);
            std::string percent, seconds, usecs;
            long count = 0;
            if (line.find("total") == line.npos && fields >> percent >> seconds >> usecs >> count)
                sum += count;
        }
        return sum;
    }
};

TEST_F(MuxParams, YieldWhilePolling) {
    const std::string receives = "s = udp()\nlimit(s, 400)\nreceive(s)\n";
    const std::string polls = "s = udp()\np = select.poll()\np.register(s, select.POLLIN)\np.poll(400)\n";
    // On a busy machine each yield costs a round of the others, so only a few are certain.
    auto yields = [&](const std::string& program, const std::string& variable) {
        return calls(run(program, {variable, "VMA_PROGRESS_ENGINE_INTERVAL=0"}, {}, "sched_yield").trace);
    };
    EXPECT_GT(yields(receives, "VMA_RX_POLL_YIELD=1"), yields(receives, "VMA_RX_POLL_YIELD=0") + 3);
    EXPECT_GT(yields(polls, "VMA_SELECT_POLL_YIELD=1"), yields(polls, "VMA_SELECT_POLL_YIELD=0") + 3);
}

TEST_F(MuxParams, RxPollInit) {
    // Neither bound nor connected: no ring serves it.
    const std::string program =
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nlimit(s, 30)\nreceive(s)\n";
    long asleep = calls(run(program, {}, {}, "recvmsg,recvfrom").trace);
    long polling = calls(run(program, {"VMA_RX_POLL_INIT=1000000"}, {}, "recvmsg,recvfrom").trace);
    EXPECT_LT(asleep, 10);
    EXPECT_GT(polling, 50);
}

TEST_F(MuxParams, DrainRate) {
    // What stays in the device's short queue leaves no room for what comes next.
    const std::string program =
        "s = udp()\ntold()\nfor i in range(4): receive(s)\ntold('more')\n"
        "limit(s, 100)\nn = 4\nwhile receive(s): n += 1\nprint(n)\n";
    const long lazy = drained(program, {}), eager = drained(program, {"VMA_RX_CQ_DRAIN_RATE_NSEC=1"});
    EXPECT_LT(lazy, 1060);
    EXPECT_GE(eager, lazy + 20);  // each of three more receives took a batch of eight
}

// The same of a TCP connection: its receives take what the UDP socket beside it gets.
TEST_F(MuxParams, DrainRateOfTcp) {
    const std::string program =
        "s = udp()\nc = socket.create_connection((THERE, 5001))\nwhile len(c.recv(100, socket.MSG_PEEK)) < "
        "100: pass\n"
        "c.recv(1)\ntold()\nfor i in range(4): c.recv(1)\ntold('more')\n"
        "limit(s, 100)\nn = 0\nwhile receive(s): n += 1\nprint(n)\n";
    auto received = [&](const std::vector<std::string>& env) {
        Process server = hosts->run(
            Host::b,
            {"python3", "-c",
             "import socket, time\nl = socket.create_server(('198.18.1.2', 5001))\nprint('up', flush=True)\n"
             "c = l.accept()[0]\nc.send(b'y' * 100)\nc.settimeout(20)\nc.recv(1)"});
        EXPECT_TRUE(server.wait_for_out("up")) << server.err();
        return drained(program, env);
    };
    const long lazy = received({}), eager = received({"VMA_RX_CQ_DRAIN_RATE_NSEC=1"});
    EXPECT_LT(lazy, 1060);
    EXPECT_GE(eager, lazy + 20);
}

TEST_F(MuxParams, SkipOs) {
    const std::string program =
        "s = udp()\np = select.poll()\np.register(s, select.POLLIN)\ntold()\np.poll(1000)\nfor i in "
        "range(200): p.poll(1)\n";
    auto looks = [&](const char* value) {
        return calls(
            run(
                program, {std::string("VMA_SELECT_SKIP_OS=") + value}, [&] { send(1); }, "poll,ppoll")
                .trace);
    };
    const long always = looks("1"), seldom = looks("20");
    EXPECT_GE(always, 200);
    EXPECT_LT(seldom, always - 150);
}

TEST_F(MuxParams, CqIrq) {
    const std::string program =
        "s = udp()\np = select.poll()\np.register(s, select.POLLIN)\ntold()\nassert p.poll(3000)\n"
        "receive(s)\ntold()\nassert not p.poll(20)\n";
    auto requested = [&](std::vector<std::string> env) {
        env.push_back("VMA_SELECT_POLL=0");
        return counter(run(program, env, [&] { send(1); }).log, "interrupts_requested");
    };
    EXPECT_GT(requested({}), 0);
    EXPECT_EQ(requested({"VMA_SELECT_CQ_IRQ=0"}), 0);
}

TEST_F(MuxParams, Moderation) {
    const std::string program =
        "s = udp()\np = select.poll()\np.register(s, select.POLLIN)\nprint('ready', flush=True)\n"
        "for i in range(40):\n assert p.poll(5000)\n receive(s)\n";
    long count = 0;
    auto wake_ups = [&](std::vector<std::string> env, long* period = nullptr, long* held_back = nullptr) {
        env.push_back("VMA_SELECT_POLL=0");
        const std::string log = run(program, env, [&] { send(40, 2); }).log;
        EXPECT_EQ(counter(log, "rx_frames"), 40);
        if (period != nullptr) *period = counter(log, "moderation_period_usec");
        if (held_back != nullptr) *held_back = counter(log, "moderation_count");
        return counter(log, "interrupts_received");
    };
    long period = 0;
    const long each = wake_ups({}), none = wake_ups({"VMA_CQ_MODERATION_ENABLE=0"}, &period);
    EXPECT_EQ(period, 0);
    const long held = wake_ups(
        {"VMA_CQ_AIM_INTERVAL_MSEC=0", "VMA_CQ_MODERATION_PERIOD_USEC=30000", "VMA_CQ_MODERATION_COUNT=1000"},
        &period);
    EXPECT_EQ(period, 30000);
    EXPECT_GT(each, 20);  // far below the rate aimed at, every frame wakes
    EXPECT_GT(none, 20);
    EXPECT_LT(held, 15);
    EXPECT_GT(held, 0);
    // At a rate of 10 wake-ups a second, less is aimed at than there are frames.
    wake_ups({"VMA_CQ_AIM_INTERVAL_MSEC=10", "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=10",
              "VMA_CQ_AIM_MAX_PERIOD_USEC=777"},
             &period);
    EXPECT_EQ(period, 777);
    wake_ups(
        {"VMA_CQ_AIM_INTERVAL_MSEC=10", "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=10", "VMA_CQ_AIM_MAX_COUNT=3"},
        nullptr, &count);
    EXPECT_EQ(count, 3);
}

constexpr const char* kInternalThread = R"(
s = udp()
for _ in range(200):
    found = [t for t in os.listdir('/proc/self/task') if open(f'/proc/self/task/{t}/comm').read() == 'vma\n']
    if found: break
    time.sleep(0.01)
time.sleep(0.05)
status = dict(l.split(':\t', 1) for l in open(f'/proc/self/task/{found[0]}/status').read().splitlines())
)";

TEST_F(MuxParams, InternalThreadAffinity) {
    const std::string program = std::string(kInternalThread) + "print(status['Cpus_allowed_list'])\n";
    EXPECT_EQ(run(program, {"VMA_INTERNAL_THREAD_AFFINITY=0"}).exit.out, "0\n");
    EXPECT_EQ(run(program, {"VMA_INTERNAL_THREAD_AFFINITY=0x1"}).exit.out, "0\n");
    const std::string own = "print(*sorted(os.sched_getaffinity(0)))\n";
    EXPECT_EQ(run("s = udp()\n" + own, {"VMA_INTERNAL_THREAD_AFFINITY=0"}).exit.out,
              run("s = udp()\n" + own, {}).exit.out);
}

TEST_F(MuxParams, InternalThreadTakesNoSignals) {
    const std::string program = std::string(kInternalThread) + "print(status['SigBlk'])\n";
    const std::string out = run(program, {}).exit.out;
    EXPECT_EQ(strtoull(out.c_str(), nullptr, 16) & 0x7ffbfeff, 0x7ffbfeffu)
        << out;  // all but SIGKILL and SIGSTOP
}

TEST_F(MuxParams, InternalThreadCpuset) {
    // What a cgroup's directory has: a file that takes the thread's number.
    const std::string set = scratch->path("set");
    ASSERT_EQ(system(("mkdir " + set + " && : > " + set + "/tasks").c_str()), 0);
    Result r = run(std::string(kInternalThread) + "print(found[0])\n", {"VMA_INTERNAL_THREAD_CPUSET=" + set});
    EXPECT_EQ(scratch->read("set/tasks") + "\n", r.exit.out);
    r = run(kInternalThread, {"VMA_INTERNAL_THREAD_CPUSET=" + scratch->path("none")});
    EXPECT_NE(r.log.find("VMA_INTERNAL_THREAD_CPUSET"), std::string::npos) << r.log;
}

constexpr const char* kSwitches = R"(
def switches():
    status = open(f'/proc/self/task/{found[0]}/status').read()
    return int(status.split('\nvoluntary_ctxt_switches:\t')[1].split()[0])
)";

TEST_F(MuxParams, InternalThreadArmCq) {
    const std::string program = std::string(kInternalThread) + kSwitches +
                                "before = switches()\ntold()\nprint(switches() - before)\n";
    auto wake_ups = [&](std::vector<std::string> env) {
        return atol(run(program, env, [&] { send(40, 2); }).exit.out.c_str() + strlen("ready\n"));
    };
    EXPECT_GT(wake_ups({"VMA_INTERNAL_THREAD_ARM_CQ=1"}), wake_ups({}) + 20);
}

TEST_F(MuxParams, TimerResolution) {
    const std::string program =
        std::string("l = socket.create_server((HERE, 5001))\n") + kInternalThread + kSwitches + R"(
print('ready', flush=True)
c, _ = l.accept()
before = switches()
time.sleep(0.5)
print(switches() - before)
)";
    auto wake_ups = [&](const char* resolution) {
        Process peer;
        Result r = run(
            program,
            {"VMA_PROGRESS_ENGINE_INTERVAL=2", std::string("VMA_TIMER_RESOLUTION_MSEC=") + resolution}, [&] {
                peer = hosts->run(Host::b,
                                  {"python3", "-c",
                                   "import socket, time\ns = socket.create_connection(('198.18.1.1', 5001))\n"
                                   "s.recv(1)\n"});
            });
        peer.wait();
        return atol(r.exit.out.c_str() + r.exit.out.find('\n') + 1);
    };
    const long fine = wake_ups("1"), coarse = wake_ups("100");
    EXPECT_GT(fine, 50);
    EXPECT_LT(coarse, fine / 3);
}

TEST_F(MuxParams, CpuUsageStats) {
    const std::string program = "s = udp()\np = select.poll()\np.register(s, select.POLLIN)\np.poll(300)\n";
    auto per_cent = [&](std::vector<std::string> env) {
        const std::string log = run(program, env).log, label = "polling took ";
        auto at = log.find(label);
        return at == log.npos ? -1 : atol(log.c_str() + at + label.size());
    };
    EXPECT_EQ(per_cent({}), -1);
    EXPECT_GT(per_cent({"VMA_CPU_USAGE_STATS=1", "VMA_SELECT_POLL=-1"}), 30);
    EXPECT_LT(per_cent({"VMA_CPU_USAGE_STATS=1", "VMA_SELECT_POLL=0"}), 10);
}

// A connection whose peer has gone costs nothing, nor does waiting at all when told not to poll.
TEST_F(MuxParams, NothingToDoCostsNothing) {
    const std::string program = R"(
l = socket.create_server((HERE, 5001))
e = select.epoll()
e.register(l, select.EPOLLIN)
print('ready', flush=True)
c, _ = l.accept()
e.register(c, select.EPOLLIN | select.EPOLLET)
while not (e.poll(3) and c.recv(10) == b''): pass  # the peer has ended
def idle(wait):
    before, began = time.process_time(), time.monotonic()
    wait()
    return (time.process_time() - before) / (time.monotonic() - began)
print('connected to nobody', idle(lambda: e.poll(0.5)) < 0.05)
c.close()
print('closed', idle(lambda: e.poll(0.5)) < 0.05)
limit(udp(), 400)
print('receive', idle(lambda: receive(udp(5005)) if limit(udp(5006), 1) else e.poll(0.4)) < 0.05)
)";
    Process peer;
    Result r = run(program, {"VMA_RX_POLL=0", "VMA_SELECT_POLL=0"}, [&] {
        peer = hosts->run(Host::b, {"python3", "-c",
                                    "import socket\ns = socket.create_connection(('198.18.1.1', 5001))\n"});
    });
    peer.wait();
    EXPECT_NE(r.exit.out.find("connected to nobody True\nclosed True\nreceive True\n"), std::string::npos)
        << r.exit.out;
}

}  // namespace
