// SPDX-License-Identifier: BSD-2-Clause
// Parameters of RDMA adapters, each seen in what the simulated adapter did (MLX5_SIM_COUNTERS,
// tests/support/mlx5_sim/sim.h), in the counters of the library's log, in system calls, or in what the
// program received.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/hosts/device.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

constexpr const char* kPrelude = R"(
import socket, struct, sys, time
HERE, THERE = '198.18.1.1', '198.18.1.2'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((HERE, 5000))
s.settimeout(5)
def told():  # waits for a line of the test's
    print('ready', flush=True)
    sys.stdin.readline()
)";
// The neighbour is known afterwards, so that the adapter carries what follows.
constexpr const char* kMeets = "s.sendto(b'x', (THERE, 6000))\ntime.sleep(0.2)\n";

class AdapterParameters : public HostsTest {
  protected:
    struct Result {
        std::string out, log, adapter;
    };
    // The program on host a with the library; `meanwhile` when it is told().
    Result run(const std::string& program, std::vector<std::string> env,
               const std::function<void()>& meanwhile = {}, std::vector<std::string> launcher = {}) {
        static int serial = 0;
        const std::string name = std::to_string(serial++);
        env.insert(env.end(), {"VMA_TRACELEVEL=debug", "VMA_LOG_FILE=" + scratch->path("log" + name),
                               "MLX5_SIM_COUNTERS=" + scratch->path("adapter" + name)});
        int in[2];
        if (pipe(in) != 0) ADD_FAILURE() << "no pipe";
        Fd from(in[0]), to(in[1]);
        launcher.insert(launcher.end(), {"python3", "-c", kPrelude + program});
        Process process =
            hosts->run(Host::a, launcher, {.preload = true, .env = env, .fds = {{from.get(), 0}}});
        if (meanwhile) {
            EXPECT_TRUE(process.wait_for_out("ready")) << process.err();
            meanwhile();
            EXPECT_EQ(write(to.get(), "\n", 1), 1);
        }
        to.reset();
        Exit exit = process.wait();
        EXPECT_TRUE(exit.ok()) << exit.out << exit.err;
        Result result{exit.out, scratch->read_all("log" + name), scratch->read_all("adapter" + name)};
        EXPECT_NE(result.log.find("sockets on veth1 are offloaded by " + device_name() + ":"),
                  std::string::npos)
            << result.log;
        return result;
    }
    // From `port` of host b to port 5000 of host a.
    void send(int port, int count) const {
        const std::string program =
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('198.18.1.2', " +
            std::to_string(port) + "))\nfor i in range(" + std::to_string(count) + "): s.sendto(b'" +
            std::to_string(port) + "', ('198.18.1.1', 5000))";
        EXPECT_TRUE(hosts->run(Host::b, {"python3", "-c", program}).wait().ok());
    }
    static long counter(const std::string& text, const std::string& name) {
        const auto at = text.find(" " + name + " ");
        return at == text.npos ? 0 : atol(text.c_str() + at + name.size() + 2);
    }
};

// The rule of a connected socket takes what others than its peer send, or does not.
TEST_F(AdapterParameters, UdpRulesOfThreeFields) {
    const std::string program =
        std::string(kMeets) + "s.connect((THERE, 6000))\ntold()\nprint(s.recv(100))\n";
    auto to_kernel = [&](const char* value) {
        const Result r =
            run(program, {std::string("VMA_UDP_3T_RULES=") + value}, [&] { send(6001, 10), send(6000, 1); });
        EXPECT_EQ(r.out, "ready\nb'6000'\n");
        return counter(r.log, "rx_to_kernel");
    };
    EXPECT_GE(to_kernel("1"), 10);
    EXPECT_EQ(to_kernel("0"), 0);
}

// What the stamp of the adapter becomes: nothing, the time, or another clock.
TEST_F(AdapterParameters, HardwareStamps) {
    const std::string program = R"(
s.setsockopt(socket.SOL_SOCKET, 37, 1 << 2 | 1 << 6) # SO_TIMESTAMPING: RX_HARDWARE, RAW_HARDWARE
told()
body, control, flags, peer = s.recvmsg(100, 200)
stamps = [struct.unpack('qqqqqq', data[:48])[4] for level, kind, data in control if kind == 37]
print('none' if not stamps or stamps[0] == 0 else 'time' if abs(stamps[0] - time.time()) < 60 else 'clock')
)";
    auto stamp = [&](const char* value) {
        return run(program, {std::string("VMA_HW_TS_CONVERSION=") + value}, [&] { send(6000, 1); }).out;
    };
    EXPECT_EQ(stamp("0"), "ready\nnone\n");
    EXPECT_EQ(stamp("1"), "ready\nclock\n");
    EXPECT_EQ(stamp("3"), "ready\ntime\n");
}

// libibverbs keeps what it registers from children.
TEST_F(AdapterParameters, Fork) {
    need({"strace"});
    auto kept = [&](const char* value) {
        const std::string trace = scratch->path(std::string("trace") + value);
        run("", {std::string("VMA_FORK=") + value}, {},
            {"strace", "-f", "-qq", "-e", "trace=madvise", "-e", "signal=none", "-o", trace});
        const std::string text = scratch->read(std::string("trace") + value);
        long calls = 0;
        for (auto at = text.find("MADV_DONTFORK"); at != text.npos; at = text.find("MADV_DONTFORK", at + 1))
            calls++;
        return calls;
    };
    EXPECT_GT(kept("1"), kept("0"));
}

TEST_F(AdapterParameters, Sending) {
    const std::string program =
        std::string(kMeets) + "for i in range(100): s.sendto(b'y' * 100, (THERE, 6000))\ntime.sleep(0.2)\n";
    auto adapter = [&](const char* variable, const char* what) {
        const std::string text = run(program, {variable}).adapter;
        EXPECT_GE(counter(text, "sent"), 95) << text;
        return counter(text, what);
    };
    EXPECT_EQ(adapter("VMA_TX_MAX_INLINE=204", "gathered"), 0);
    EXPECT_GE(adapter("VMA_TX_MAX_INLINE=0", "gathered"), 95);
    EXPECT_GE(adapter("VMA_TX_WRE_BATCHING=1", "send_completions"), 95);
    EXPECT_LE(adapter("VMA_TX_WRE_BATCHING=64", "send_completions"), 20);
    EXPECT_GT(adapter("VMA_BF=1", "blue_flames"), 0);
    // libmlx5 has a variable of its own for that.
    if (device() == Device::mlx5) {
        EXPECT_EQ(adapter("VMA_BF=0", "blue_flames"), 0);
    }
}

}  // namespace
