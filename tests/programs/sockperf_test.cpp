// SPDX-License-Identifier: BSD-2-Clause
// sockperf as an unmodified program that uses UDP in many ways: ping-pong, throughput and under-load, over
// select, poll, epoll and plain receive, blocking and not, small to fragmented messages, preloaded and loaded
// by --load-vma. Numbers are not judged, delivery is: where the kernel's run loses nothing, ours may lose
// nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "tests/support/hosts/two_hosts.h"

namespace {

using namespace testing_support;

constexpr long kGreetings = 5;  // the most messages that the client sends first, one to each port

struct Session {
    std::string mode = "pp";               // pp, tp, ul
    std::vector<std::string> both = {};    // options for server and client
    std::vector<std::string> client = {};  // options for the client
    std::vector<std::string> server = {};
    bool feed = false;  // several ports from a file
    bool preload = true;
    std::optional<bool> server_preload = {};  // if it differs
    int seconds = 1;
};

struct Delivery {
    bool ran = false;
    long sent = -1, received = -1, dropped = -1, duplicated = -1, disordered = -1;
    long server_received = -1;
    std::string text;
};

// Frames that the processors' queues have dropped, of all hosts of this machine.
long dropped_by_backlog() {
    std::ifstream file("/proc/net/softnet_stat");
    long sum = 0;
    for (std::string line, processed, dropped; std::getline(file, line);)
        if (std::istringstream(line) >> processed >> dropped) sum += std::stol(dropped, nullptr, 16);
    return sum;
}

// The number behind the last `label` in `text`, -1 without it.
long number_after(const std::string& text, const std::string& label) {
    auto at = text.rfind(label);
    return at == std::string::npos ? -1 : atol(text.c_str() + at + label.size());
}

void append(std::vector<std::string>& to, const std::vector<std::string>& what) {
    to.insert(to.end(), what.begin(), what.end());
}

class Sockperf : public testing::Test {
  protected:
    void SetUp() override {
        try {
            hosts = std::make_unique<TwoHosts>();
        } catch (const std::exception& e) {
            FAIL() << e.what();
        }
    }

    Delivery run(const Session& setup) {
        Fd ports(memfd_create("ports", 0));
        std::string feed_file = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(ports.get());
        if (setup.feed)
            for (int port = 11111; port < 11116; port++) dprintf(ports.get(), "U:198.18.1.2:%d\n", port);
        std::vector<std::string> where = {"-i", "198.18.1.2", "-p", "11111"};
        if (setup.feed) where = {"-f", feed_file};
        std::vector<std::string> server_line = {"sockperf", "server"}, client_line = {"sockperf", setup.mode};
        append(server_line, where);
        append(server_line, setup.both);
        append(server_line, setup.server);
        append(client_line, where);
        append(client_line, {"-t", std::to_string(setup.seconds)});
        append(client_line, setup.both);
        append(client_line, setup.client);

        const long before = dropped_by_backlog();
        const bool server_preload = setup.server_preload.value_or(setup.preload);
        Process server = hosts->run(Host::b, server_line, {.preload = server_preload});
        EXPECT_TRUE(server.wait_for_out("[SERVER] listen on:") && server.wait_for_out("Warmup stage"))
            << server.out() << server.err();
        bool uses_library =
            server_preload || (!setup.both.empty() && setup.both[0].starts_with("--load-vma"));
        if (uses_library) {
            EXPECT_TRUE(hosts->wait_offloaded(Host::b, true)) << "not offloaded\n"
                                                              << server.out() << server.err();
        }
        Exit client = hosts->run(Host::a, client_line, {.preload = setup.preload}).wait(milliseconds(30000));
        server.kill(SIGINT);
        Exit end = server.wait();

        Delivery d;
        d.text =
            "client:\n" + client.out + client.err + "server:\n" + end.out + end.err +
            "frames that the machine's backlog dropped: " + std::to_string(dropped_by_backlog() - before) +
            "\n";
        d.ran = client.ok() && !end.timed_out && end.signal == 0 && end.code == 0;
        d.sent = number_after(client.out, setup.mode == "tp" ? "Total of " : "SentMessages=");
        d.received = number_after(client.out, "ReceivedMessages=");
        d.dropped = number_after(client.out, "# dropped messages = ");
        d.duplicated = number_after(client.out, "# duplicated messages = ");
        d.disordered = number_after(client.out, "# out-of-order messages = ");
        d.server_received = number_after(end.out, "Total ");
        return d;
    }

    // The first message after the greetings opens the device. Where tests beside this one hold the kernel's
    // lock of interfaces, that can take longer than the whole session. And sockperf judges only what was sent
    // and answered in the middle of a session. So one that `says` nothing is repeated for longer.
    template <class F>
    Delivery run_until(Session session, F&& says) {
        Delivery d;
        for (; session.seconds <= 9; session.seconds *= 3) {
            d = run(session);
            if (!d.ran || (d.sent > kGreetings + 1 && says(d))) break;
        }
        return d;
    }

    // Every message was answered, once, in order.
    void expect_lossless(const Session& setup) {
        std::string line;
        for (const auto& words : {setup.both, setup.client})
            for (const auto& w : words) line += " " + w;
        SCOPED_TRACE(setup.mode + line + (setup.feed ? " with a feed file" : ""));
        const Delivery d = run_until(setup, [](const Delivery& d) { return d.dropped >= 0; });
        EXPECT_TRUE(d.ran) << d.text;
        EXPECT_GT(d.received, 0) << d.text;
        EXPECT_GT(d.server_received, 0) << d.text;
        EXPECT_EQ(d.dropped, 0) << d.text;
        EXPECT_EQ(d.duplicated, 0) << d.text;
        EXPECT_EQ(d.disordered, 0) << d.text;
    }

    std::unique_ptr<TwoHosts> hosts;
};

TEST_F(Sockperf, KernelReference) {
    expect_lossless({.preload = false});
    expect_lossless({.mode = "ul", .preload = false});
}

TEST_F(Sockperf, PingPongSizes) {
    for (const char* size : {"14", "64", "1472", "4000", "65000"}) expect_lossless({.client = {"-m", size}});
}

TEST_F(Sockperf, PingPongNonblocking) {
    for (const char* size : {"14", "4000"})
        expect_lossless({.both = {"--nonblocked"}, .client = {"-m", size}});
}

TEST_F(Sockperf, Multiplexers) {
    for (const char* type : {"s", "p", "e", "r"}) expect_lossless({.both = {"-F", type}, .feed = true});
}

TEST_F(Sockperf, MultiplexersNonblocking) {
    for (const char* type : {"s", "r"}) expect_lossless({.both = {"-F", type, "--nonblocked"}, .feed = true});
}

TEST_F(Sockperf, MultiplexersWaitForEver) {
    for (const char* type : {"p", "e"}) expect_lossless({.both = {"-F", type, "--timeout=-1"}, .feed = true});
}

TEST_F(Sockperf, ThreadedServer) {
    expect_lossless({.both = {"-F", "e"}, .server = {"--threads-num", "2"}, .feed = true});
}

TEST_F(Sockperf, UnderLoad) {
    // Three busy threads and other tests share whatever cores there are. So what comes while a receiver waits
    // for its turn, half a second long, fits into its socket, also on the kernel.
    expect_lossless({.mode = "ul", .client = {"--mps", "500", "--reply-every", "1"}});
    expect_lossless({.mode = "ul", .client = {"-m", "4000", "--mps", "60", "--reply-every", "3"}});
}

// At rates that leave the receiver time, though not always on a busy machine.
TEST_F(Sockperf, Throughput) {
    struct {
        const char *size, *rate;
    } loads[] = {{"14", "5000"}, {"1472", "5000"}, {"65000", "200"}};
    for (const auto& load : loads) {
        SCOPED_TRACE(load.size);
        const Delivery d = run_until({.mode = "tp", .client = {"-m", load.size, "--mps", load.rate}},
                                     [&](const Delivery& d) { return d.sent > atol(load.rate) / 10; });
        EXPECT_TRUE(d.ran) << d.text;
        EXPECT_GT(d.sent, atol(load.rate) / 10) << d.text;
        EXPECT_GT(d.server_received, d.sent / 2) << d.text;
    }
}

TEST_F(Sockperf, LoadedBySockperfItself) {
    expect_lossless({.both = {"--load-vma=" + library()}, .preload = sanitized()});
}

TEST_F(Sockperf, BothPeersMixed) {
    // Server on the kernel, client on the library, and the other way round.
    for (const bool client_has_it : {true, false})
        expect_lossless({.preload = client_has_it, .server_preload = !client_has_it});
}

}  // namespace
