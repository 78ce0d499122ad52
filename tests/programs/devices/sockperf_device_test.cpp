// SPDX-License-Identifier: BSD-2-Clause
// Unmodified sockperf between a host that has the device under test (support/device.h) and one that has the
// kernel: UDP and TCP, ping-pong and one way, the library at the server and at the client. Speed is not
// judged; that messages arrive, and that they went past the kernel's protocols, is.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <sstream>

#include "tests/support/hosts/device.h"
#include "tests/support/hosts/two_hosts.h"

namespace {

using namespace testing_support;

struct Session {
    const char* name;
    const char* mode;  // sockperf's: pp, tp
    bool tcp;
    bool library_at_server;
};
void PrintTo(const Session& s, std::ostream* out) { *out << s.name; }

// The number behind the last `label` in `text`, -1 without it.
long number_after(const std::string& text, const std::string& label) {
    auto at = text.rfind(label);
    return at == std::string::npos ? -1 : atol(text.c_str() + at + label.size());
}

class SockperfOnDevice : public testing::TestWithParam<Session> {
  protected:
    // Packets that the kernel's protocol has received and sent in the host's namespace.
    long kernel_packets(Host host) const {
        const std::string protocol = GetParam().tcp ? "Tcp:" : "Udp:";
        std::istringstream in(hosts.run(host, {"cat", "/proc/self/net/snmp"}).wait().out);
        std::string names, values, name, value;
        while (std::getline(in, names) && std::getline(in, values)) {
            if (!names.starts_with(protocol)) continue;
            long sum = 0;
            std::istringstream n(names), v(values);
            while (n >> name && v >> value)
                if (name == "InDatagrams" || name == "OutDatagrams" || name == "InSegs" || name == "OutSegs")
                    sum += atol(value.c_str());
            return sum;
        }
        return -1;
    }
    TwoHosts hosts;
};

TEST_P(SockperfOnDevice, TalksToTheKernel) {
    const Session& s = GetParam();
    const Host with_library = s.library_at_server ? Host::b : Host::a;
    std::vector<std::string> where = {"-i", "198.18.1.2", "-p", "11111"};
    if (s.tcp) where.push_back("--tcp");
    auto line = [&](std::vector<std::string> words) {
        words.insert(words.end(), where.begin(), where.end());
        return words;
    };
    Process server = hosts.run(Host::b, line({"sockperf", "server"}), {.preload = s.library_at_server});
    ASSERT_TRUE(server.wait_for_out("[SERVER] listen on:")) << server.out() << server.err();
    ASSERT_TRUE(server.wait_for_out("to block on socket")) << server.out() << server.err();
    const long before = kernel_packets(with_library);
    const bool one_way = std::string(s.mode) == "tp";
    std::vector<std::string> client_line = line({"sockperf", s.mode, "-t", "1", "-m", "100"});
    // The simulated adapter empties its queue more slowly than sockperf fills it, and a datagram without room
    // goes through the kernel.
    if (one_way && !s.tcp) client_line.insert(client_line.end(), {"--mps", "5000"});
    Exit client =
        hosts.run(Host::a, client_line, {.preload = !s.library_at_server}).wait(milliseconds(30000));
    const long kernel = kernel_packets(with_library) - before;
    server.kill(SIGINT);
    const Exit end = server.wait();
    const std::string text = "client:\n" + client.out + client.err + "server:\n" + end.out + end.err;
    EXPECT_TRUE(client.ok() && end.ok()) << text;

    const long sent = number_after(client.out, one_way ? "Total of " : "SentMessages=");
    const long arrived = number_after(end.out, "Total ");
    EXPECT_GT(sent, 0) << text;
    EXPECT_GT(arrived, 0) << text;
    if (!one_way) {
        EXPECT_GT(number_after(client.out, "ReceivedMessages="), 0) << text;
        EXPECT_EQ(number_after(client.out, "# dropped messages = "), 0) << text;
        EXPECT_EQ(number_after(client.out, "# duplicated messages = "), 0) << text;
        EXPECT_EQ(number_after(client.out, "# out-of-order messages = "), 0) << text;
    }
    const std::string log = s.library_at_server ? end.err : client.err;
    EXPECT_NE(log.find("offloaded by " + device_name() + ":"), log.npos) << text;
    // Of TCP all; of UDP the simulated adapter, a thread without a processor of its own, may lose some.
    EXPECT_GT(arrived, s.tcp ? sent * 9 / 10 : sent / 2) << text;
    // A neighbour is confirmed, a connection set up. A datagram finds no room while the adapter's thread has
    // no processor.
    EXPECT_LT(kernel, s.tcp ? 20 : 20 + sent / 20) << "not offloaded, of " << sent << "\n" << text;
}

INSTANTIATE_TEST_SUITE_P(Sessions, SockperfOnDevice,
                         testing::Values(Session{"udp_ping_pong_server", "pp", false, true},
                                         Session{"udp_ping_pong_client", "pp", false, false},
                                         Session{"udp_one_way_server", "tp", false, true},
                                         Session{"udp_one_way_client", "tp", false, false},
                                         Session{"tcp_ping_pong_server", "pp", true, true},
                                         Session{"tcp_ping_pong_client", "pp", true, false},
                                         Session{"tcp_one_way_server", "tp", true, true},
                                         Session{"tcp_one_way_client", "tp", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
