// SPDX-License-Identifier: BSD-2-Clause
// A program of plain verbs with the simulator preloaded, on host a's netdev, and the kernel's sockets on host
// b: what whole programs use when they run on the simulator.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/hosts/two_hosts.h"

namespace {

using namespace testing_support;

constexpr std::uint16_t kPort = 4711;
constexpr int kRefused = 6;  // host a's kernel got the datagram, and has no socket for it

class Netdev : public testing::Test {
  protected:
    Netdev() {
        char name[] = "/tmp/mlx5_sim_XXXXXX";
        directory_ = mkdtemp(name);
        const std::string link = hosts_.ip(Host::a, {"-o", "link", "show", TwoHosts::interface()});
        const auto mac = link.find("link/ether ");
        tool({SIM_SYSFS_TOOL, directory_ + "/sys", TwoHosts::interface() + "=" + link.substr(mac + 11, 17)});
    }
    ~Netdev() override { std::filesystem::remove_all(directory_); }

    // The echo program on host a. It ends when `input` is closed.
    Process echo(std::uint16_t port, Fd& input) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
        const Fd theirs(ends[0]);
        input = Fd(ends[1]);
        RunOptions options;
        options.env = {"SYSFS_PATH=" + directory_ + "/sys", "LD_PRELOAD=" SIM_LIBRARY, "MLX5_SIM_WIRE=netdev",
                       "MLX5_SIM_STRICT=abort"};
        options.fds = {{theirs.get(), STDIN_FILENO}};
        Process process = hosts_.run(Host::a, {SIM_ECHO, std::to_string(port)}, options);
        EXPECT_TRUE(process.wait_for_out("ready")) << process.err();
        return process;
    }
    // On host b: sends `count` datagrams to that port of host a and wants each back. 0 if all came.
    int ask(std::uint16_t port, unsigned count) const {
        Process process = hosts_.run(
            Host::b,
            [port, count] {
                const int fd = socket(AF_INET, SOCK_DGRAM, 0);
                sockaddr_in to{};
                to.sin_family = AF_INET;
                to.sin_port = htons(port);
                to.sin_addr.s_addr = inet_addr(TwoHosts::address(Host::a).c_str());
                if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return 2;
                for (unsigned i = 0; i < count; ++i) {
                    std::string sent(20 + i % 1400, static_cast<char>('a' + i % 26)), got(2000, '\0');
                    if (send(fd, sent.data(), sent.size(), 0) != static_cast<ssize_t>(sent.size())) return 3;
                    pollfd waiting{fd, POLLIN, 0};
                    if (poll(&waiting, 1, 2000) != 1) return 4;
                    const ssize_t bytes = recv(fd, got.data(), got.size(), 0);
                    if (bytes < 0 && errno == ECONNREFUSED) return kRefused;
                    if (bytes != static_cast<ssize_t>(sent.size()) || got.compare(0, sent.size(), sent) != 0)
                        return 5;
                }
                return 0;
            },
            {});
        return process.wait().code;
    }
    static void expect_end(Process& process, Fd& input, const std::string& answered) {
        input.reset();
        const Exit end = process.wait();
        EXPECT_TRUE(end.ok()) << end.err;
        EXPECT_EQ(end.err, "");
        EXPECT_NE(end.out.find(answered), std::string::npos) << end.out;
    }

    TwoHosts hosts_;
    std::string directory_;
};

TEST_F(Netdev, AProgramOfPlainVerbsAnswersTheKernel) {
    Fd input;
    Process program = echo(kPort, input);
    EXPECT_EQ(ask(kPort, 500), 0);
    expect_end(program, input, "500");
    EXPECT_EQ(ask(kPort, 1), kRefused);  // the rule went with the program
}

TEST_F(Netdev, TwoProcessesAndTheKernelOnOneNetdev) {
    Fd first_input, second_input;
    Process first = echo(kPort, first_input), second = echo(kPort + 1, second_input);
    EXPECT_EQ(ask(kPort, 100), 0);
    EXPECT_EQ(ask(kPort + 1, 100), 0);
    // What no rule takes is the kernel's.
    EXPECT_EQ(ask(kPort + 2, 1), kRefused);
    expect_end(first, first_input, "100");
    EXPECT_EQ(ask(kPort + 1, 100), 0);
    expect_end(second, second_input, "200");
}

TEST_F(Netdev, ANetdevThatIsNotThere) {
    const std::string tree = directory_ + "/other";
    tool({SIM_SYSFS_TOOL, tree, "none0=02:00:00:00:00:01"});
    RunOptions options;
    options.env = {"SYSFS_PATH=" + tree, "LD_PRELOAD=" SIM_LIBRARY, "MLX5_SIM_WIRE=netdev"};
    const Exit end = hosts_.run(Host::a, {SIM_ECHO, "7"}, options).wait();
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.err.find("mlx5_sim: mlx5_0 cannot use none0: "), std::string::npos) << end.err;
    EXPECT_NE(end.err.find("open: "), std::string::npos) << end.err;
}

}  // namespace
