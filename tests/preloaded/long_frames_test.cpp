// SPDX-License-Identifier: BSD-2-Clause
// Frames longer than the MTU between virtual interfaces. A kernel peer with BIG TCP sends segments of more
// than 64 KiB, which have no length in the IP header. What the library sends as long frames stays in order
// with short ones, whatever queueing discipline the interface has.
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

// What `ip link set INTERFACE gso_ipv4_max_size SIZE gro_ipv4_max_size SIZE` does (Linux 6.3). False: the
// kernel does not know it.
bool set_big_tcp(const std::string& interface, std::uint32_t size) {
    constexpr std::uint16_t kGso = 63, kGro = 64;  // newer than Debian 12's headers
    struct {
        nlmsghdr header;
        ifinfomsg link;
        nlattr gso;
        std::uint32_t gso_size;
        nlattr gro;
        std::uint32_t gro_size;
        nlmsgerr answer;
    } m{};
    m.header = {offsetof(decltype(m), answer), RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0};
    m.link.ifi_index = static_cast<int>(if_nametoindex(interface.c_str()));
    m.gso = {8, kGso};
    m.gro = {8, kGro};
    m.gso_size = m.gro_size = size;
    const Fd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (send(fd.get(), &m, m.header.nlmsg_len, 0) < 0) throw std::runtime_error("netlink");
    struct {
        nlmsghdr header;
        nlmsgerr error;
    } answer{};
    return recv(fd.get(), &answer, sizeof answer, 0) >= static_cast<ssize_t>(sizeof answer) &&
           answer.error.error == 0;
}

class BigTcp : public testing::Test {
  protected:
    // Segments that the peer's kernel sent again.
    static long sent_again(const TwoHosts& hosts) {
        const std::string counter = "TcpRetransSegs",
                          text =
                              tool({"ip", "netns", "exec", hosts.netns(Host::b), "nstat", "-asz", counter});
        const auto at = text.find(counter);
        return at == std::string::npos ? -1 : std::stol(text.substr(at + counter.size()));
    }
    // A kernel peer sends `count` messages of a megabyte, which come back.
    void move(std::uint32_t size, int count, const std::string& mode) {
        SCOPED_TRACE(mode + " " + std::to_string(size));
        TwoHosts hosts(Wire{.known_neighbours = true});
        for (const Host host : {Host::a, Host::b}) {
            On there(hosts, host);
            ASSERT_TRUE(set_big_tcp(TwoHosts::interface(), size));
        }
        Agent server(hosts, Host::a, with_library({"VMA_XDP_MODE=" + mode})), client(hosts, Host::b);
        EXPECT_EQ(server.ask("listen l 198.18.1.1 7000"), "ok 7000");
        EXPECT_EQ(client.ask("dial c 198.18.1.1 7000"), "ok");
        EXPECT_EQ(server.ask("accept l c 3000"), "ok");
        const std::string words = " c 1000000 " + std::to_string(count);
        server.post("answer" + words);
        EXPECT_EQ(client.ask("talk" + words, milliseconds(60000)), "talked " + std::to_string(count));
        EXPECT_EQ(server.answer(), "answered " + std::to_string(count)) << server.process().err();
        if (mode == "auto") {
            EXPECT_LE(sent_again(hosts), 20 * count);
        }
    }
};

TEST_F(BigTcp, ComesWhole) {
    for (const std::uint32_t size : {65536u, 75000u, 200000u, 524280u}) move(size, 20, "auto");
}
TEST_F(BigTcp, AHundredMegabytes) { move(200000, 100, "auto"); }
TEST_F(BigTcp, OverXdpPrograms) {
    for (const char* mode : {"skb", "drv"}) move(200000, 5, mode);
}

// The client writes long and short by turns; the answer to all is one byte. How many segments came before
// their predecessors did, the peer's kernel counts.
constexpr const char* kWriter =
    "import socket, sys\n"
    "c = socket.create_connection(('198.18.1.2', 7000))\n"
    "c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
    "for i in range(300):\n"
    "    c.sendall(b'l' * 40000)\n"
    "    for j in range(4): c.sendall(b's' * 100)\n"
    "c.shutdown(socket.SHUT_WR)\n"
    "print(c.recv(1))\n";
constexpr const char* kReader =
    "import socket\n"
    "l = socket.create_server(('198.18.1.2', 7000))\n"
    "print('listens', flush=True)\n"
    "c, _ = l.accept()\n"
    "n = 0\n"
    "while True:\n"
    "    data = c.recv(1 << 20)\n"
    "    if not data: break\n"
    "    n += len(data)\n"
    "c.sendall(b'x')\n"
    "names, values = [line.split() for line in open('/proc/self/net/netstat') if line.startswith('TcpExt')]\n"
    "print('read', n, 'out of order', values[names.index('TCPOFOQueue')])\n";

TEST(LongFrames, StayInOrderWithShortOnes) {
    for (const std::vector<std::string>& discipline :
         {std::vector<std::string>{},
          {"tbf", "rate", "300mbit", "burst", "100kb", "limit", "10mb"},
          {"pfifo"}}) {
        SCOPED_TRACE(testing::PrintToString(discipline));
        TwoHosts hosts(Wire{.known_neighbours = true});
        if (!discipline.empty()) {
            std::vector<std::string> tc = {"tc",    "-n",  hosts.netns(Host::a), "qdisc", "add", "dev",
                                           "veth1", "root"};
            tc.insert(tc.end(), discipline.begin(), discipline.end());
            tool(tc);
        }
        Process reader = hosts.run(Host::b, {"python3", "-c", kReader});
        ASSERT_TRUE(reader.wait_for_out("listens")) << reader.err();
        const Exit writer = hosts.run(Host::a, {"python3", "-c", kWriter}, with_library()).wait();
        EXPECT_EQ(writer.out, "b'x'\n") << writer.err;
        const Exit end = reader.wait();
        EXPECT_NE(end.out.find("read 12120000 out of order 0\n"), std::string::npos) << end.out << end.err;
    }
}

}  // namespace
