// SPDX-License-Identifier: BSD-2-Clause
// A server on the library while somebody who makes up addresses sends it 10,000 SYNs a second: peers that
// mean it get in, also one whose answer takes 100 ms, and the server's memory stays what it was. The flood,
// and the slow peer, are a packet socket's.
#include <arpa/inet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/apps/payload.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace testing_support;

constexpr int kPort = 7000;
constexpr unsigned kPerSecond = 10'000, kMaxSeconds = 20, kLeast = 2 * kPerSecond;
constexpr std::size_t kAnswer = 100;  // bytes that the slow peer sends and gets back
const char* const kSlowPeer = "198.18.1.77";

using Bytes = std::vector<std::uint8_t>;
using Mac = std::array<std::uint8_t, 6>;
enum : std::uint8_t { kSyn = 2, kPsh = 8, kAck = 16 };

Mac mac_of(const TwoHosts& hosts, Host host) {
    const std::string text = hosts.ip(host, {"-o", "link", "show", TwoHosts::interface()});
    Mac mac{};
    const std::size_t at = text.find("link/ether ");
    if (at != std::string::npos)
        for (std::size_t i = 0; i < 6; i++)
            mac[i] = static_cast<std::uint8_t>(std::stoi(text.substr(at + 11 + 3 * i, 2), nullptr, 16));
    return mac;
}

std::uint64_t now_ms() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000 + static_cast<std::uint64_t>(t.tv_nsec) / 1'000'000;
}

struct Sender {
    Mac own, server;
    int fd = -1;

    static std::uint16_t fold(std::uint32_t sum) {
        while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
        return static_cast<std::uint16_t>(~sum);
    }
    static std::uint32_t sum(const std::uint8_t* p, std::size_t n) {
        std::uint32_t s = 0;
        for (std::size_t i = 0; i < n; i++) s += i % 2 ? p[i] : std::uint32_t{p[i]} << 8;
        return s;
    }
    static void put(Bytes& b, std::size_t at, std::uint32_t v, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; i++)
            b[at + i] = static_cast<std::uint8_t>(v >> 8 * (bytes - 1 - i));
    }
    bool open() {
        fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP));
        sockaddr_ll where{};
        where.sll_family = AF_PACKET;
        where.sll_protocol = htons(ETH_P_IP);
        where.sll_ifindex = static_cast<int>(if_nametoindex(TwoHosts::interface().c_str()));
        return fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
    }
    void send(std::uint32_t from, std::uint16_t port, std::uint32_t seq, std::uint32_t ack,
              std::uint8_t flags, const Bytes& data = {}) {
        const bool syn = (flags & kSyn) != 0;
        const std::size_t header = syn ? 24 : 20;
        Bytes f(34 + header + data.size());
        std::copy(server.begin(), server.end(), f.begin());
        std::copy(own.begin(), own.end(), f.begin() + 6);
        put(f, 12, ETH_P_IP, 2);
        f[14] = 0x45;
        put(f, 16, static_cast<std::uint32_t>(f.size() - 14), 2);
        put(f, 20, 0x4000, 2);
        f[22] = 64;
        f[23] = IPPROTO_TCP;
        put(f, 26, from, 4);
        put(f, 30, ntohl(inet_addr("198.18.1.2")), 4);
        put(f, 24, fold(sum(f.data() + 14, 20)), 2);
        put(f, 34, port, 2);
        put(f, 36, kPort, 2);
        put(f, 38, seq, 4);
        put(f, 42, ack, 4);
        f[46] = static_cast<std::uint8_t>(header / 4 << 4);
        f[47] = flags;
        put(f, 48, 60000, 2);
        if (syn) put(f, 54, 0x020405b4, 4);
        std::copy(data.begin(), data.end(), f.begin() + static_cast<long>(34 + header));
        const auto l4 = static_cast<std::uint32_t>(f.size() - 34);
        put(f, 50, fold(sum(f.data() + 34, l4) + sum(f.data() + 26, 8) + IPPROTO_TCP + l4), 2);
        (void)!::send(fd, f.data(), f.size(), MSG_DONTWAIT);
    }
};

// Sends the flood, for kMaxSeconds at most. A byte from `orders` has the slow peer come, a second one ends it
// all when that has its answer and kLeast SYNs have left. 0: the slow peer's bytes came back.
int flood(Sender sender, int orders) {
    if (!sender.open()) return 1;
    std::mt19937 random(7);
    const std::uint32_t slow = ntohl(inet_addr(kSlowPeer));
    const Bytes question = payload::make(kAnswer, 0);
    Bytes back;
    std::uint32_t seq = 90'000, ack = 0;
    std::uint64_t sent = 0, answer_at = 0, again_at = 0;
    bool established = false, coming = false, stopping = false;
    const std::uint64_t start = now_ms();
    for (std::uint64_t now = start; now < start + kMaxSeconds * 1000; now = now_ms()) {
        for (; sent < (now - start) * kPerSecond / 1000; sent++)
            sender.send(0xc6130000u | (random() & 0xffff),
                        static_cast<std::uint16_t>(1024 + random() % 60000), random(), 0, kSyn);
        if (coming && now >= again_at && !established && answer_at == 0) {
            again_at = now + 1000;
            sender.send(slow, 5555, seq, 0, kSyn);
        }
        if (answer_at != 0 && now >= answer_at && !established) {
            established = true;
            seq++;
            sender.send(slow, 5555, seq, ack, kAck);
            again_at = now;
        }
        if (established && now >= again_at && back.size() < kAnswer) {
            again_at = now + 300;
            sender.send(slow, 5555, seq, ack, kAck | kPsh, question);
        }
        Bytes f(4096);
        for (ssize_t n; (n = recv(sender.fd, f.data(), f.size(), MSG_DONTWAIT)) >= 54;) {
            if (f[23] != IPPROTO_TCP || f[33] != 77 || f[31] != 18) continue;
            auto word = [&](std::size_t at) {
                return std::uint32_t{f[at]} << 24 | std::uint32_t{f[at + 1]} << 16 |
                       std::uint32_t{f[at + 2]} << 8 | f[at + 3];
            };
            if ((f[47] & (kSyn | kAck)) == (kSyn | kAck) && answer_at == 0) {
                ack = word(38) + 1;
                answer_at = now + 100;
            }
            const std::size_t header = 34 + (f[46] >> 4 << 2), end = 14 + (std::size_t{f[16]} << 8 | f[17]);
            if (established && end > header && word(38) == ack && end <= static_cast<std::size_t>(n)) {
                back.insert(back.end(), f.begin() + static_cast<long>(header),
                            f.begin() + static_cast<long>(end));
                ack += static_cast<std::uint32_t>(end - header);
                sender.send(slow, 5555, seq + static_cast<std::uint32_t>(kAnswer), ack, kAck);
            }
        }
        pollfd p{orders, POLLIN, 0};
        char order;
        if (::poll(&p, 1, 1) > 0 && read(orders, &order, 1) == 1) stopping |= std::exchange(coming, true);
        if (stopping && back.size() >= kAnswer && sent >= kLeast) break;
    }
    printf("%llu SYNs\n", static_cast<unsigned long long>(sent));
    fflush(stdout);
    return back == question ? 0 : 2;
}

TEST(SynFlood, PeersGetInAndMemoryStays) {
    TwoHosts hosts;
    // The addresses of the flood are behind host a; the slow peer has its link address.
    hosts.ip(Host::b, {"route", "add", "default", "via", TwoHosts::address(Host::a)});
    const Sender sender{mac_of(hosts, Host::a), mac_of(hosts, Host::b)};
    char text[32];
    snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", sender.own[0], sender.own[1], sender.own[2],
             sender.own[3], sender.own[4], sender.own[5]);
    hosts.ip(Host::b, {"neigh", "replace", kSlowPeer, "lladdr", text, "dev", TwoHosts::interface()});

    Agent server(hosts, Host::b, with_library()), client(hosts, Host::a);
    ASSERT_EQ(server.ask("listen l 198.18.1.2 7000 128"), "ok 7000");
    ASSERT_TRUE(hosts.wait_offloaded(Host::b, true));
    auto talk = [&](const std::string& id) {
        ASSERT_EQ(client.ask("dial " + id + " 198.18.1.2 7000"), "ok");
        ASSERT_EQ(server.ask("accept l " + id + " 5000"), "ok");
        server.post("answer " + id + " 1000 20");
        EXPECT_EQ(client.ask("talk " + id + " 1000 20"), "talked 20");
        EXPECT_EQ(server.answer(), "answered 20");
    };
    ASSERT_NO_FATAL_FAILURE(talk("before"));
    const long memory = Agent::value(server.ask("usage"), "rss_kb");

    int orders[2];
    ASSERT_EQ(pipe(orders), 0);
    Process flooder = hosts.run(Host::a, [&] { return flood(sender, orders[0]); });
    for (int i = 0; i < 5; i++) ASSERT_NO_FATAL_FAILURE(talk("during" + std::to_string(i)));
    ASSERT_EQ(write(orders[1], "s", 1), 1);
    ASSERT_EQ(server.ask("accept l slow 5000"), "ok");
    EXPECT_EQ(server.ask("answer slow " + std::to_string(kAnswer) + " 1"), "answered 1");
    ASSERT_EQ(write(orders[1], "x", 1), 1);
    const Exit end = flooder.wait();
    EXPECT_TRUE(end.ok()) << end.code << ", " << end.out << end.err;
    const long after = Agent::value(server.ask("usage"), "rss_kb");
    EXPECT_LT(after - memory, 1024 * patience()) << "KiB";
    ASSERT_NO_FATAL_FAILURE(talk("after"));
    close(orders[0]);
    close(orders[1]);
}

}  // namespace
