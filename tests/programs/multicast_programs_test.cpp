// SPDX-License-Identifier: BSD-2-Clause
// Programs that use multicast as they come: sockperf's ping-pong over groups (appendix A.3 of the manual),
// socat and iperf that send to a group and receive from one, and Avahi, whose daemon shares its group and
// port with a program that has the library.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

class MulticastPrograms : public HostsTest, public ::testing::WithParamInterface<Sides> {
  protected:
    RunOptions at(Host host) const {
        const bool preload = host == Host::b ? GetParam().server : GetParam().client;
        return preload ? RunOptions{.preload = true} : RunOptions{};
    }
    // Datagrams that the host's kernel has delivered, or sent.
    long received_by_kernel(Host host) { return udp_counter(host, 1); }
    long sent_by_kernel(Host host) { return udp_counter(host, 4); }
    long udp_counter(Host host, int columns) {
        const std::string text = hosts->run(host, {"cat", "/proc/net/snmp"}).wait().out;
        const auto at = text.find("\nUdp: ", text.find("\nUdp: ") + 1);
        const char* p = text.c_str() + at + 6;
        char* end = nullptr;
        long value = 0;
        for (int column = 0; column < columns; column++, p = end) value = strtol(p, &end, 10);
        return value;
    }
};

long number_after(const std::string& text, const std::string& label) {
    const auto at = text.rfind(label);
    return at == std::string::npos ? -1 : atol(text.c_str() + at + label.size());
}

TEST_P(MulticastPrograms, SockperfPingPong) {
    need({"sockperf"});
    auto line = [](std::vector<std::string> words, const std::string& interface) {
        for (const char* word : {"-i", "224.4.4.4", "-p", "19140"}) words.emplace_back(word);
        for (const char* option : {"--mc-rx-if", "--mc-tx-if"}) {
            words.emplace_back(option);
            words.push_back(interface);
        }
        return words;
    };
    Process server = hosts->run(Host::b, line({"sockperf", "server"}, "198.18.1.2"), at(Host::b));
    ASSERT_TRUE(server.wait_for_out("to block on socket")) << server.out() << server.err();
    const long before = sent_by_kernel(Host::a);
    Exit client =
        hosts->run(Host::a, line({"sockperf", "ping-pong", "-m", "14", "-t", "1"}, "198.18.1.1"), at(Host::a))
            .wait(milliseconds(30000));
    const long by_kernel = sent_by_kernel(Host::a) - before;
    server.kill(SIGINT);
    const Exit end = server.wait();
    const std::string text = "client:\n" + client.out + client.err + "server:\n" + end.out + end.err;
    EXPECT_TRUE(client.ok() && end.ok()) << text;
    const long sent = number_after(client.out, "SentMessages=");
    EXPECT_GT(sent, 10) << text;
    EXPECT_GT(number_after(client.out, "ReceivedMessages="), 0) << text;
    EXPECT_EQ(number_after(client.out, "# dropped messages = "), 0) << text;
    EXPECT_EQ(number_after(client.out, "# duplicated messages = "), 0) << text;
    EXPECT_EQ(number_after(client.out, "# out-of-order messages = "), 0) << text;
    // sockperf asks for no copies, so its own membership does not keep it from the ring.
    if (GetParam().client)
        EXPECT_LT(by_kernel, 20) << "of " << sent << "\n" << text;
    else
        EXPECT_GE(by_kernel, sent) << text;
}

TEST_P(MulticastPrograms, Socat) {
    need({"socat"});
    Process receiver = hosts->run(
        Host::b, {"socat", "-u", "UDP4-RECV:7002,ip-add-membership=239.1.2.3:198.18.1.2,reuseaddr", "STDOUT"},
        at(Host::b));
    // The sender has a receiver on its own host, too.
    Process here = hosts->run(
        Host::a, {"socat", "-u", "UDP4-RECV:7002,ip-add-membership=239.1.2.3:198.18.1.1,reuseaddr", "STDOUT"},
        at(Host::a));
    Process sender = hosts->run(
        Host::a,
        {"bash", "-c",
         "for i in {1..100}; do echo line $i; sleep 0.02; done | "
         "exec socat -u STDIN UDP4-DATAGRAM:239.1.2.3:7002,ip-multicast-if=198.18.1.1,ip-multicast-ttl=3"},
        at(Host::a));
    // Once both hear, neither misses a line.
    for (Process* p : {&receiver, &here}) EXPECT_TRUE(p->wait_for_out("line ")) << p->err();
    EXPECT_TRUE(sender.wait().ok());
    for (Process* p : {&receiver, &here}) {
        EXPECT_TRUE(p->wait_for_out("line 100\n"));
        p->kill(SIGTERM);
        const std::string out = p->wait().out;
        int line = atoi(out.c_str() + 5);
        std::string expected;
        for (; line <= 100; line++) expected += "line " + std::to_string(line) + "\n";
        EXPECT_EQ(out, expected);
    }
}

// iperf counts what is lost, doubled or out of order.
TEST_P(MulticastPrograms, Iperf) {
    need({"iperf"});
    hosts->ip(Host::a, {"route", "add", "224.0.0.0/4", "dev", "veth1"});
    hosts->ip(Host::b, {"route", "add", "224.0.0.0/4", "dev", "veth1"});
    Process server = hosts->run(Host::b, {"iperf", "-s", "-u", "-B", "239.1.2.3%veth1", "-f", "k", "-i", "0"},
                                at(Host::b));
    // It joins when it has said so, and opens the device for that. Its kernel socket holds only a part of
    // what comes meanwhile.
    ASSERT_TRUE(server.wait_for_out("Joining multicast")) << server.out() << server.err();
    ASSERT_TRUE(!GetParam().server || server.wait_for_err("are offloaded")) << server.err();
    const long sent_before = sent_by_kernel(Host::a), received_before = received_by_kernel(Host::b);
    const Exit client = hosts
                            ->run(Host::a,
                                  {"iperf", "-c", "239.1.2.3", "-u", "-T", "4", "-b", "8m", "-n", "250000",
                                   "-l", "1000", "-f", "k"},
                                  at(Host::a))
                            .wait(milliseconds(30000));
    EXPECT_TRUE(client.ok()) << client.out << client.err;
    EXPECT_TRUE(server.wait_for_out("%)")) << server.out() << server.err();
    const long by_sender = sent_by_kernel(Host::a) - sent_before,
               by_receiver = received_by_kernel(Host::b) - received_before;
    server.kill(SIGKILL);
    const std::string out = server.wait().out;
    const long sent = number_after(client.out, "Sent ");
    EXPECT_GE(sent, 250) << client.out;
    // "... 0/  250 (0%)"
    EXPECT_NE(out.find(" 0/"), std::string::npos) << out;
    EXPECT_NE(out.find("(0%)"), std::string::npos) << out;
    EXPECT_EQ(out.find("out-of-order"), std::string::npos) << out;
    // The sockets that iperf opens for a client, and for the next one, take the group while datagrams come.
    EXPECT_EQ(by_sender < 125, GetParam().client) << by_sender;
    EXPECT_EQ(by_receiver < 125, GetParam().server) << by_receiver << "\n" << server.err();
}

// The daemon of mDNS and a program with the library are on one host, and share group and port: the daemon
// answers, and the program hears each question, whoever comes and goes.
class MulticastNames : public HostsTest {
  protected:
    static constexpr const char *kAll = "224.0.0.251", *kName = "\7vmatest\5local";

    void SetUp() override {
        HostsTest::SetUp();
        hosts->ip(Host::b, {"route", "add", "224.0.0.0/4", "dev", "veth1"});
        const On host(*hosts, Host::b);
        socket_ = Fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    }
    // Without D-Bus, and with a directory of its own for its PID file.
    Process start_daemon() {
        scratch->write("avahi.conf",
                       "[server]\nhost-name=vmatest\nuse-ipv6=no\nallow-interfaces=veth1\nenable-dbus=no\n"
                       "[publish]\npublish-workstation=no\n");
        return hosts->run(Host::a,
                          {"unshare", "-m", "sh", "-c",
                           "mount -t tmpfs none /run && mkdir /run/avahi-daemon && exec avahi-daemon "
                           "--no-drop-root --no-chroot --no-rlimits -f " +
                               scratch->path("avahi.conf")});
    }
    // Asks for the daemon's host by the group; true: the answer has its address. A question from another port
    // than 5353 is answered to the one who asks (RFC 6762, section 6.7).
    bool ask() {
        std::string question("\x12\x34\0\0\0\1\0\0\0\0\0\0", 12);
        question += std::string(kName, 15) + std::string("\0\1\0\1", 4);
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(5353);
        inet_pton(AF_INET, kAll, &to.sin_addr);
        if (sendto(socket_.get(), question.data(), question.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                   sizeof to) < 0)
            return false;
        pollfd p{socket_.get(), POLLIN, 0};
        if (poll(&p, 1, 500) <= 0) return false;
        char answer[1500];
        const ssize_t n = recv(socket_.get(), answer, sizeof answer, 0);
        return n > 0 &&
               std::string(answer, static_cast<std::size_t>(n)).find("\xc6\x12\1\1") != std::string::npos;
    }

    // The program has the question, among what the daemon says to all.
    static bool heard(Agent& program) {
        for (int i = 0; i < 50; i++) {
            const std::string got = program.ask("recv s 1000");
            if (got.starts_with("len=31 ")) return true;
            if (!got.starts_with("len=")) return false;
        }
        return false;
    }

    Fd socket_;
};

TEST_F(MulticastNames, AvahiBesideAnOffloadedProcess) {
    need({"avahi-daemon"});
    Agent program(*hosts, Host::a, {.preload = true});
    EXPECT_EQ(program.ask("open s 0.0.0.0 5353 reuseaddr reuseport"), "ok 5353");
    EXPECT_EQ(program.ask(std::string("join s ") + kAll + " 198.18.1.1"), "ok");
    const long before = kernel_datagrams(program);
    EXPECT_FALSE(ask());  // nobody answers
    EXPECT_TRUE(heard(program));
    EXPECT_EQ(kernel_datagrams(program), before);

    Process daemon = start_daemon();
    ASSERT_TRUE(daemon.wait_for_err("Server startup complete")) << daemon.err();
    for (int i = 0; i < 5; i++) {
        EXPECT_TRUE(ask()) << daemon.err();
        EXPECT_TRUE(heard(program));
    }
    daemon.kill(SIGTERM);
    EXPECT_TRUE(daemon.wait().ok()) << daemon.err();
    EXPECT_FALSE(ask());
    EXPECT_TRUE(heard(program));
}

INSTANTIATE_TEST_SUITE_P(Multicast, MulticastPrograms,
                         ::testing::Values(Sides{}, Sides{.server = true}, Sides{.client = true},
                                           Sides{.server = true, .client = true}),
                         [](const ::testing::TestParamInfo<Sides>& info) { return name_of(info.param); });

}  // namespace
