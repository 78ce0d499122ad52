// SPDX-License-Identifier: BSD-2-Clause
// The netdev wire between two namespaces: the simulated adapter on host a, the kernel on both. What rules
// want arrives at the adapter, whole and with right sums; what they do not want is the kernel's; nothing is
// lost while rules come and go; nothing stays.
#include "tests/support/mlx5_sim/netdev/netdev_wire.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "tests/support/hosts/on_host.h"
#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

using testing_support::Fd;
using testing_support::Host;
using testing_support::On;
using testing_support::socket_address;
using testing_support::TwoHosts;

constexpr auto kPatience = std::chrono::seconds(10);

Fd socket_on(const TwoHosts& hosts, Host host, int type, std::uint16_t port) {
    const On on(hosts, host);
    Fd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
    const int bytes = 8 << 20;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    const sockaddr_in at = socket_address(TwoHosts::address(host), port);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
        throw std::runtime_error("bind");
    return fd;
}

void send_to(const Fd& fd, std::string_view data, std::uint16_t port, std::uint16_t segment = 0,
             const std::string& ip = TwoHosts::address(Host::a)) {
    const int size = segment;
    setsockopt(fd.get(), SOL_UDP, UDP_SEGMENT, &size, sizeof size);
    const sockaddr_in to = socket_address(ip, port);
    ASSERT_EQ(
        sendto(fd.get(), data.data(), data.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to),
        static_cast<ssize_t>(data.size()));
}

// What a kernel socket got; "" if nothing comes within `limit`.
std::string take(const Fd& fd, int limit_ms = 2000) {
    pollfd p{fd.get(), POLLIN, 0};
    if (poll(&p, 1, limit_ms) <= 0) return "";
    std::string data(70000, 0);
    const ssize_t n = recv(fd.get(), data.data(), data.size(), MSG_DONTWAIT);
    data.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return data;
}

std::string numbered(std::size_t bytes, unsigned seed = 0) {
    std::string text(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i + seed) * 31 >> 3);
    return text;
}

// The adapter of host a, wired to its netdev.
struct Adapter : Rig {
    static constexpr std::uint32_t kBuffer = 2048;

    explicit Adapter(const TwoHosts& hosts) : Rig({.recv_entries = 32, .cqes = 64}) {
        const On on(hosts, Host::a);
        auto made = NetdevWire::create(nic, TwoHosts::interface());
        if (!made) throw std::runtime_error(made.error());
        wire = std::move(*made);
        for (unsigned i = 0; i < shape.recv_entries; ++i)
            put_receive({segment(std::size_t{i} * kBuffer, kBuffer)});
        write_receive_record();
    }
    std::uint64_t steer(std::uint8_t protocol, std::uint16_t port,
                        const std::string& ip = TwoHosts::address(Host::a)) {
        Rule rule;
        rule.qpn = kQpn;
        rule.match.ether_type = htons(0x0800);
        rule.match.ether_type_mask = 0xffff;
        rule.match.protocol = protocol;
        rule.match.protocol_mask = 0xff;
        rule.match.dst_ip = inet_addr(ip.c_str());
        rule.match.dst_ip_mask = 0xffffffff;
        rule.match.dst_port = htons(port);
        rule.match.dst_port_mask = 0xffff;
        return nic.create_rule(rule);
    }
    // Frames that have arrived; their buffers are posted again.
    std::vector<Frame> frames() {
        std::vector<Frame> all;
        for (;;) {
            wire->turn();
            const auto cqe = poll(recv_cq);
            if (!cqe) return all;
            const std::size_t at = std::size_t{be16toh(cqe->wqe_counter) % shape.recv_entries} * kBuffer;
            all.emplace_back(arena.begin() + static_cast<std::ptrdiff_t>(at),
                             arena.begin() + static_cast<std::ptrdiff_t>(at + be32toh(cqe->byte_cnt)));
            EXPECT_EQ(cqe->hds_ip_ext, 7) << "sums";
            EXPECT_TRUE(sums_right(all.back()));
            put_receive({segment(at, kBuffer)});
            write_receive_record();
        }
    }
    std::vector<Frame> frames(std::size_t wanted) {
        std::vector<Frame> all;
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (all.size() < wanted && std::chrono::steady_clock::now() < end)
            std::ranges::move(frames(), std::back_inserter(all));
        return all;
    }
    std::unique_ptr<NetdevWire> wire;
};

std::string udp_payload(const Frame& frame) {
    const std::size_t bytes = std::size_t{frame[38]} << 8 | frame[39];
    return {reinterpret_cast<const char*>(&frame[42]), bytes - 8};
}

TEST(NetdevWire, UdpIsSharedByRules) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000);
    const Fd same_port = socket_on(hosts, Host::a, SOCK_DGRAM, 2000),
             other = socket_on(hosts, Host::a, SOCK_DGRAM, 2001);
    send_to(peer, "before", 2000);
    EXPECT_EQ(take(same_port), "before");
    const auto rule = adapter.steer(IPPROTO_UDP, 2000);
    for (std::size_t bytes : {1u, 100u, 1472u}) send_to(peer, numbered(bytes), 2000);
    send_to(peer, "other", 2001);
    const auto got = adapter.frames(3);
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(udp_payload(got[0]), numbered(1));
    EXPECT_EQ(udp_payload(got[1]), numbered(100));
    EXPECT_EQ(udp_payload(got[2]), numbered(1472));
    EXPECT_EQ(take(other), "other");
    send_to(peer, numbered(3000), 2000);  // fragments have no ports
    EXPECT_EQ(take(same_port), numbered(3000));
    adapter.nic.destroy_rule(rule);
    send_to(peer, "after", 2000);
    EXPECT_EQ(take(same_port), "after");
    EXPECT_TRUE(adapter.frames().empty());
    EXPECT_EQ(adapter.violations(), "");
}

TEST(NetdevWire, SuperFramesAreCut) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000);
    adapter.steer(IPPROTO_UDP, 2000);
    const std::string data = numbered(25000);
    send_to(peer, data, 2000, 1400);
    const auto got = adapter.frames(18);
    ASSERT_EQ(got.size(), 18u);
    std::string all;
    for (const Frame& frame : got) all += udp_payload(frame);
    EXPECT_EQ(all, data);
    EXPECT_EQ(adapter.violations(), "");
}

TEST(NetdevWire, TcpGoesToAndFro) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd server = socket_on(hosts, Host::a, SOCK_STREAM, 2000),
             client = socket_on(hosts, Host::b, SOCK_STREAM, 1000);
    ASSERT_EQ(listen(server.get(), 1), 0);
    const sockaddr_in to = socket_address(TwoHosts::address(Host::a), 2000);
    ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const Fd accepted(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // The kernel's connection loses its segments to the adapter for a while: whole segments, cut from
    // super-frames.
    const auto rule = adapter.steer(IPPROTO_TCP, 2000);
    const std::string data = numbered(14480);
    ASSERT_EQ(send(client.get(), data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
    const auto got = adapter.frames(10);
    ASSERT_GE(got.size(), 10u);
    std::map<std::uint32_t, std::string> segments;
    for (const Frame& frame : got) {
        const std::uint32_t sequence =
            static_cast<std::uint32_t>(frame[38]) << 24 | frame[39] << 16 | frame[40] << 8 | frame[41];
        const std::size_t header = 34 + std::size_t{frame[46]} / 16 * 4,
                          end = 14 + (std::size_t{frame[16]} << 8 | frame[17]);
        EXPECT_LE(end, 1514u);
        segments[sequence] = std::string(frame.begin() + static_cast<std::ptrdiff_t>(header),
                                         frame.begin() + static_cast<std::ptrdiff_t>(end));
    }
    std::string all;
    for (const auto& [sequence, bytes] : segments) all += bytes;
    EXPECT_EQ(all, data);
    // What it repeats then is the kernel's again.
    adapter.nic.destroy_rule(rule);
    std::string arrived;
    while (arrived.size() < data.size()) {
        adapter.wire->turn();
        const std::string piece = take(accepted, 5000);
        if (piece.empty()) break;
        arrived += piece;
    }
    EXPECT_EQ(arrived, data);
}

TEST(NetdevWire, NothingIsLostWhileRulesComeAndGo) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000),
             kernel = socket_on(hosts, Host::a, SOCK_DGRAM, 2000);
    constexpr unsigned kDatagrams = 20000;
    std::map<std::string, unsigned> seen;
    unsigned to_adapter = 0;
    std::uint64_t rule = 0;
    for (unsigned i = 0; i < kDatagrams; ++i) {
        send_to(peer, std::to_string(i), 2000);
        if (i % 7 == 0) {
            if (rule == 0) {
                rule = adapter.steer(IPPROTO_UDP, 2000);
            } else {
                adapter.nic.destroy_rule(rule);  // with frames under way
                rule = 0;
            }
        }
        if (i % 5 == 0) {
            for (const Frame& frame : adapter.frames()) {
                ++seen[udp_payload(frame)];
                ++to_adapter;
            }
            for (std::string text; !(text = take(kernel, 0)).empty();) ++seen[text];
        }
    }
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (seen.size() < kDatagrams && std::chrono::steady_clock::now() < end) {
        for (const Frame& frame : adapter.frames()) ++seen[udp_payload(frame)];
        for (std::string text; !(text = take(kernel, 1)).empty();) ++seen[text];
    }
    EXPECT_EQ(seen.size(), kDatagrams);
    for (const auto& [text, times] : seen) ASSERT_EQ(times, 1u) << text;
    EXPECT_GT(to_adapter, kDatagrams / 10);
    EXPECT_LT(to_adapter, kDatagrams * 9 / 10);
    EXPECT_EQ(adapter.violations(), "");
}

TEST(NetdevWire, SentFramesReachThePeer) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 2000);
    Frame frame = make_frame({.payload = 200, .sums = false});
    std::fill_n(frame.begin(), 6, 0xff);  // to all stations: the address of the peer's does not matter here
    const std::uint32_t from = inet_addr(TwoHosts::address(Host::a).c_str()),
                        to = inet_addr(TwoHosts::address(Host::b).c_str());
    std::memcpy(&frame[26], &from, 4);
    std::memcpy(&frame[30], &to, 4);
    for (int i = 0; i < 300; ++i) {
        adapter.post(Wqe()
                         .eth(MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM, 0, std::span(frame).first(18))
                         .inlined(std::span(frame).subspan(18)));
        adapter.nic.step();
        adapter.wire->turn();
        ASSERT_TRUE(adapter.poll(adapter.send_cq));
        ASSERT_EQ(take(peer), std::string(frame.begin() + 42, frame.end()));
    }
    EXPECT_EQ(adapter.wire->unsent(), 0u);
    EXPECT_EQ(adapter.violations(), "");
}

TEST(NetdevWire, GroupsGoToEveryAdapterThatWantsThem) {
    const TwoHosts hosts;
    Adapter one(hosts), two(hosts);
    const std::string group = "239.1.2.3";
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000);
    Fd kernel = socket_on(hosts, Host::a, SOCK_DGRAM, 0);
    {
        const On on(hosts, Host::a);
        kernel = Fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        const sockaddr_in at = socket_address("0.0.0.0", 2000);
        ASSERT_EQ(bind(kernel.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
        const ip_mreq join{{inet_addr(group.c_str())}, {inet_addr(TwoHosts::address(Host::a).c_str())}};
        ASSERT_EQ(setsockopt(kernel.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), 0);
    }
    const in_addr out{inet_addr(TwoHosts::address(Host::b).c_str())};
    ASSERT_EQ(setsockopt(peer.get(), IPPROTO_IP, IP_MULTICAST_IF, &out, sizeof out), 0);
    send_to(peer, "kernel", 2000, 0, group);
    EXPECT_EQ(take(kernel), "kernel");
    one.steer(IPPROTO_UDP, 2000, group);
    two.steer(IPPROTO_UDP, 2000, group);
    send_to(peer, "both", 2000, 0, group);
    const auto first = one.frames(1), second = two.frames(1);
    ASSERT_EQ(first.size(), 1u);
    ASSERT_EQ(second.size(), 1u);
    EXPECT_EQ(udp_payload(first[0]), "both");
    EXPECT_EQ(udp_payload(second[0]), "both");
    EXPECT_EQ(take(kernel, 50), "");
}

TEST(NetdevWire, MoreRulesThanFitAreStillRight) {
    const TwoHosts hosts;
    Adapter adapter(hosts);
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000),
             kernel = socket_on(hosts, Host::a, SOCK_DGRAM, 9000);
    // All made at once: each change alone costs time by the number of rules.
    adapter.nic.on_rules({});
    std::vector<std::uint64_t> rules;
    for (unsigned i = 0; i <= NETDEV_STEER_MAX_RULES; ++i)
        rules.push_back(adapter.steer(IPPROTO_UDP, static_cast<std::uint16_t>(2000 + i)));
    adapter.wire->follow_rules();
    for (std::uint16_t port :
         {std::uint16_t{2000}, static_cast<std::uint16_t>(2000 + NETDEV_STEER_MAX_RULES)}) {
        send_to(peer, std::to_string(port), port);
        const auto got = adapter.frames(1);
        ASSERT_EQ(got.size(), 1u);
        EXPECT_EQ(udp_payload(got[0]), std::to_string(port));
    }
    send_to(peer, "kernel", 9000);
    std::string got;
    for (int i = 0; i < 1000 && got.empty(); ++i) {
        adapter.wire->turn();
        got = take(kernel, 1);
    }
    EXPECT_EQ(got, "kernel");
    adapter.nic.destroy_rule(rules.front());
    send_to(peer, "last", static_cast<std::uint16_t>(2000 + NETDEV_STEER_MAX_RULES));
    EXPECT_EQ(adapter.frames(1).size(), 1u);
}

TEST(NetdevWire, NothingStaysOfAKilledProcess) {
    const TwoHosts hosts;
    const Fd peer = socket_on(hosts, Host::b, SOCK_DGRAM, 1000),
             kernel = socket_on(hosts, Host::a, SOCK_DGRAM, 2000);
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        Adapter adapter(hosts);
        adapter.steer(IPPROTO_UDP, 2000);
        (void)!write(ready[1], "1", 1);
        for (;;) pause();
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    send_to(peer, "lost", 2000);
    EXPECT_EQ(take(kernel, 50), "");
    EXPECT_THAT(hosts.ip(Host::a, {"link"}), testing::HasSubstr("mlx5sim0"));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    std::string links;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    do {
        links = hosts.ip(Host::a, {"link"});
    } while (links.find("mlx5sim") != std::string::npos && std::chrono::steady_clock::now() < end);
    EXPECT_THAT(links, testing::Not(testing::HasSubstr("mlx5sim")));
    send_to(peer, "back", 2000);
    EXPECT_EQ(take(kernel), "back");
}

TEST(NetdevWire, WithoutSuchAnInterface) {
    const TwoHosts hosts;
    const On on(hosts, Host::a);
    Nic nic;
    for (const std::string name : {"nothing", "", "a-name-that-is-too-long"}) {
        const auto made = NetdevWire::create(nic, name);
        ASSERT_FALSE(made);
        EXPECT_THAT(made.error(), testing::HasSubstr("netdev wire of " + name + ": "));
    }
}

}  // namespace
}  // namespace mlx5_sim
