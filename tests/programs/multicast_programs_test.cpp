// SPDX-License-Identifier: BSD-2-Clause
// Programs that use multicast as they come: sockperf's ping-pong over groups (appendix A.3 of the manual),
// and socat that sends to a group and receives from one.
#include <signal.h>
#include <stdlib.h>

#include <string>
#include <thread>

#include "tests/support/hosts/programs.h"

namespace {

using namespace testing_support;

class MulticastPrograms : public HostsTest, public ::testing::WithParamInterface<Sides> {
  protected:
    RunOptions at(Host host) const {
        const bool preload = host == Host::b ? GetParam().server : GetParam().client;
        return preload ? RunOptions{.preload = true} : RunOptions{};
    }
    // Datagrams that the host's kernel has sent.
    long sent_by_kernel(Host host) {
        const std::string text = hosts->run(host, {"cat", "/proc/net/snmp"}).wait().out;
        const auto at = text.find("\nUdp: ", text.find("\nUdp: ") + 1);
        const char* p = text.c_str() + at + 6;
        char* end = nullptr;
        long value = 0;
        for (int column = 0; column < 4; column++, p = end) value = strtol(p, &end, 10);
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

INSTANTIATE_TEST_SUITE_P(Multicast, MulticastPrograms,
                         ::testing::Values(Sides{}, Sides{.server = true}, Sides{.client = true},
                                           Sides{.server = true, .client = true}),
                         [](const ::testing::TestParamInfo<Sides>& info) { return name_of(info.param); });

}  // namespace
