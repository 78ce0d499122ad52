// SPDX-License-Identifier: BSD-2-Clause
// A client and a server of which one is real: what they say about another side that damages messages, ends,
// or talks nonsense. Over the loopback interface.
#include "tools/vma_perf/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/vma_perf/control.h"
#include "tools/vma_perf/progress.h"
#include "tools/vma_perf/server.h"
#include "tools/vma_perf/sockets/address.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::HasSubstr;

const std::atomic<bool> kGoOn{false};

Clock::time_point soon() { return Clock::now() + 10s; }

// Does `what` and says how it ended.
struct End {
    int status = kOk;
    std::string text;
};
End end_of(const std::function<int()>& what) {
    testing::internal::CaptureStdout();
    End end;
    try {
        end.status = what();
    } catch (const Failure& failure) {
        end = {failure.status(), failure.what()};
    }
    testing::internal::GetCapturedStdout();
    return end;
}

// The client against a server that greets as it should and then does `talk`.
End client_against(const std::function<void(Control&)>& talk, std::vector<const char*> words = {}) {
    const tools::Fd listener = listen_on(make_address("127.0.0.1", 0), 1);
    const std::string port = std::to_string(port_of(local_address(listener.get())));
    std::thread server([&] {
        try {
            Control control(accept_one(listener.get(), soon(), nullptr), "the client");
            control.hello(soon(), nullptr);
            control.expect("run", soon(), nullptr);
            talk(control);
        } catch (const Failure&) {  // the client has gone, as it should
        }
    });
    words.insert(words.begin(), {"vma_perf", "pingpong", "127.0.0.1", "-p", port.c_str(), "-n", "20",
                                 "--warmup", "0", "-q"});
    const Parsed parsed = parse_options(static_cast<int>(words.size()), words.data());
    EXPECT_EQ(parsed.err, "");
    const End end = end_of([&] { return run_client(std::get<ClientOptions>(parsed.command), kGoOn); });
    server.join();
    return end;
}

// Offers a UDP port, answers what comes there with `change` made to it, and reports what it counted.
void echo(Control& control, const std::function<void(std::span<std::byte>)>& change) {
    const tools::Fd udp(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_in bound = bind_to(udp.get(), make_address("127.0.0.1", 0));
    control.send({{"offer", {{"ports", {port_of(bound)}}}}});
    control.expect("answer", soon(), nullptr);
    control.send({{"ready", true}, {"stack", "kernel"}});
    unsigned received = 0;
    for (const auto deadline = soon(); Clock::now() < deadline;) {
        if (const auto message = control.look(); message && message->contains("sent")) break;
        if (!wait_for(udp.get(), POLLIN, Clock::now() + 5ms, nullptr)) continue;
        std::byte bytes[2000];
        sockaddr_in from{};
        socklen_t length = sizeof from;
        const ssize_t got = recvfrom(udp.get(), bytes, sizeof bytes, 0, as_sockaddr(from), &length);
        ASSERT_GT(got, 0);
        ++received;
        const auto size = static_cast<std::size_t>(got);
        change({bytes, size});
        ASSERT_EQ(sendto(udp.get(), bytes, size, 0, as_sockaddr(from), length), got);
    }
    control.send({{"report", {{"received", received}}}});
    control.expect("bye", soon(), nullptr);
}

TEST(PerfClient, MessagesThatAreNotWhatWasSent) {
    End end = client_against([](Control& c) { echo(c, [](std::span<std::byte>) {}); }, {"--verify"});
    EXPECT_EQ(end.status, kOk) << end.text;
    end = client_against(
        [](Control& c) { echo(c, [](std::span<std::byte> m) { m.back() ^= std::byte{1}; }); }, {"--verify"});
    EXPECT_EQ(end.status, kData);
    EXPECT_EQ(end.text, "20 messages were not what was sent");
}

TEST(PerfClient, AServerThatEnds) {
    for (const char* transport : {"udp", "tcp"}) {
        const End end = client_against([](Control&) {}, {"-t", transport});
        EXPECT_EQ(end.status, kPeerEnded);
        EXPECT_THAT(end.text, HasSubstr("the server 127.0.0.1:"));
        EXPECT_THAT(end.text, HasSubstr(" ended"));
    }
    // When everything is sent, and the report is missing.
    const End end = client_against([](Control& c) {
        echo(c, [](std::span<std::byte> m) {
            if (m[8] == std::byte{19}) throw Failure(kFailed, "the last request");
        });
    });
    EXPECT_EQ(end.status, kPeerEnded);
}

TEST(PerfClient, AServerThatRefuses) {
    const End end =
        client_against([](Control& c) { c.send(error_message(Failure(kUnsupported, "no such transport"))); });
    EXPECT_EQ(end.status, kUnsupported);
    EXPECT_THAT(end.text, HasSubstr("the server 127.0.0.1:"));
    EXPECT_THAT(end.text, HasSubstr(": no such transport"));
}

TEST(PerfClient, AServerThatTalksNonsense) {
    const auto after = [](const json& words, const char* transport, Status status, const std::string& text) {
        const End end = client_against(
            [&](Control& c) {
                c.send(words);
                c.receive(soon(), nullptr);  // until the client has read it
            },
            {"-t", transport});
        EXPECT_EQ(end.status, status) << words.dump() << " " << end.text;
        EXPECT_THAT(end.text, HasSubstr(text)) << words.dump();
    };
    after({{"ready", true}}, "udp", kVersion, "where \"offer\" was expected");
    for (const char* offer : {"{}", "[]", "3", R"({"ports":3})", R"({"ports":["x"]})"})
        after({{"offer", json::parse(offer)}}, "udp", kVersion, "cannot be read");
    after({{"offer", {{"ports", {1, 2}}}}}, "udp", kVersion, "another number of ports");
    after({{"offer", {{"port", "x"}}}}, "tcp", kVersion, "cannot be read");
    after({{"offer", {{"port", 1}, {"token", 1}}}}, "tcp", kUnreachable, "port 1: Connection refused");
    // Later words.
    const End end = client_against([](Control& c) {
        c.send({{"offer", {{"ports", {9}}}}});
        c.send({{"ready", true}, {"stack", 7}});
        c.expect("answer", soon(), nullptr);
        c.receive(soon(), nullptr);
    });
    EXPECT_EQ(end.status, kVersion) << end.text;
    EXPECT_THAT(end.text, HasSubstr("cannot be read"));
}

// A real server, for `clients` clients.
class PerfServer : public testing::Test {
  protected:
    void start(unsigned clients) {
        // A port that was free a moment ago.
        port_ = port_of(local_address(listen_on(make_address("127.0.0.1", 0), 1).get()));
        thread_ = std::thread([this, clients] {
            serve({.bind = "127.0.0.1", .port = port_, .clients = clients, .quiet = true}, stop_);
        });
    }
    void TearDown() override {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }
    Control greet() const {
        tools::Fd fd;
        for (const auto deadline = soon(); !fd;) try {
                fd = connect_to(make_address("127.0.0.1", port_), deadline, nullptr);
            } catch (const Failure&) {  // it does not listen so far
                if (Clock::now() >= deadline) throw;
            }
        Control control(std::move(fd), "the server");
        control.hello(soon(), nullptr);
        return control;
    }
    // What it says to these words.
    void expect_refusal(const json& words, Status status, const std::string& text) const {
        Control control = greet();
        control.send(words);
        try {
            control.receive(soon(), nullptr);
            ADD_FAILURE() << text;
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.status(), status) << failure.what();
            EXPECT_THAT(failure.what(), HasSubstr("the server: " + text));
        }
    }

    std::uint16_t port_ = 0;

  private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

TEST_F(PerfServer, ClientsThatAskForNonsense) {
    start(0);
    expect_refusal({{"frobnicate", 1}}, kVersion, "a request that this server does not know");
    expect_refusal({{"run", 3}}, kVersion, "the client's parameters cannot be read");
    const auto run = [](const char* field, json value) {
        json params = to_json(Params{});
        params[field] = std::move(value);
        return json{{"run", params}};
    };
    expect_refusal(run("seconds", 0), kVersion, "the client's parameters make no sense: --time");
    expect_refusal(run("transport", "pigeon"), kUnsupported, "this vma_perf has no transport pigeon");
    expect_refusal(run("max_size", 70000), kUsage, "--size: too large for this transport");
    expect_refusal(run("connections", 2), kUsage, "--wait blocking");
    expect_refusal(run("server_cpus", json::array({0, 1023})), kUnsupported,
                   "--server-cpus: cannot run on processor 1023");
    // And it goes on.
    Control control = greet();
    control.send(run("server_cpus", json::array({0})));
    EXPECT_EQ(control.expect("offer", soon(), nullptr)["ports"].size(), 1u);
    control.send({{"sent", 1}});  // in place of the answer
    try {
        control.receive(soon(), nullptr);
        ADD_FAILURE();
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status(), kVersion);
        EXPECT_THAT(failure.what(), HasSubstr("where \"answer\" was expected"));
    }
}

TEST_F(PerfServer, ARunOnGivenProcessors) {
    start(2);
    greet().send({{"bye", true}});
    const std::string port = std::to_string(port_);
    std::vector<const char*> words{"vma_perf",  "pingpong", "127.0.0.1", "-p", port.c_str(),    "-n",
                                   "20",        "-q",       "--cpus",    "0",  "--server-cpus", "0",
                                   "--threads", "2"};
    const Parsed parsed = parse_options(static_cast<int>(words.size()), words.data());
    const End end = end_of([&] { return run_client(std::get<ClientOptions>(parsed.command), kGoOn); });
    EXPECT_EQ(end.status, kOk) << end.text;
}

TEST(PerfServerOptions, AProcessorThatIsNotThere) {
    const End end = end_of([] {
        serve({.port = 0, .cpus = {1023}}, kGoOn);
        return 0;
    });
    EXPECT_EQ(end.status, kUnsupported);
    EXPECT_THAT(end.text, HasSubstr("--cpus: cannot run on processor 1023"));
}

TEST(PerfProgress, OneLineOnATerminalOnly) {
    const tools::Fd terminal(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    ASSERT_TRUE(terminal);
    ASSERT_EQ(grantpt(terminal.get()) + unlockpt(terminal.get()), 0);
    const tools::Fd other_end(open(ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC)),
        before(dup(STDERR_FILENO));
    ASSERT_GE(dup2(other_end.get(), STDERR_FILENO), 0);
    bool active = false, quiet = true;
    {
        Progress progress(false);
        active = progress.active();
        progress.show("one", true);
        progress.show("two");  // too soon
        progress.show("three", true);
        quiet = !Progress(true).active();
    }
    dup2(before.get(), STDERR_FILENO);
    EXPECT_TRUE(active);
    EXPECT_TRUE(quiet);
    // The kernel passes on what was written from a worker of its own, so it may come in parts.
    const std::string expected = "\r\x1b[Kone\r\x1b[Kthree\r\x1b[K";
    std::string text;
    pollfd ready{terminal.get(), POLLIN, 0};
    while (text.size() < expected.size() && poll(&ready, 1, 10'000) > 0) {
        char part[200];
        const ssize_t length = read(terminal.get(), part, sizeof part);
        if (length <= 0) break;
        text.append(part, static_cast<std::size_t>(length));
    }
    EXPECT_EQ(text, expected);
    const tools::Fd file(open("/dev/null", O_WRONLY | O_CLOEXEC));
    dup2(file.get(), STDERR_FILENO);
    active = Progress(false).active();
    dup2(before.get(), STDERR_FILENO);
    EXPECT_FALSE(active);
}

}  // namespace
}  // namespace vma_perf
