// SPDX-License-Identifier: BSD-2-Clause
// The XDP device under a ring, against a kernel host at the other end of a veth pair: both modes, one and two
// queues, ordinary and jumbo frames, what stays with the kernel, and what is left when the process is killed.
#include "libvma/verbs/xdp/xdp_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "libvma/net/frame.h"
#include "libvma/net/udp_headers.h"
#include "libvma/ring/ring.h"
#include "tests/support/capabilities.h"
#include "tests/support/hosts/device.h"
#include "tests/support/hosts/on_host.h"

namespace vma::verbs::xdp {
namespace {

using testing_support::Fd;
using testing_support::Host;
using testing_support::On;
using testing_support::patience;
using testing_support::socket_address;
using testing_support::TwoHosts;
using testing_support::WithoutCapabilities;

constexpr std::uint16_t kPort = 2000, kPeerPort = 1000;

Fd udp_socket(const std::string& ip, std::uint16_t port) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int room = 64 << 20;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    const sockaddr_in own = socket_address(ip, port);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
        throw std::runtime_error("bind: " + std::string(strerror(errno)));
    return fd;
}

MacAddress mac_of(const std::string& interface) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, interface.c_str(), sizeof request.ifr_name - 1);
    if (ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) throw std::runtime_error("SIOCGIFHWADDR");
    MacAddress mac;
    std::memcpy(mac.data(), request.ifr_hwaddr.sa_data, 6);
    return mac;
}

std::string pattern(std::size_t length, unsigned seed = 0) {
    std::string text(length, '\0');
    std::uint32_t state = seed * 2654435761u + 12345;
    for (char& c : text) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    return text;
}

// By these the XDP program finds the kernel's description of a super-frame.
bool kernel_has_types() { return access("/sys/kernel/btf/vmlinux", R_OK) == 0; }

// What `ethtool -K interface feature off` does.
void switch_off(const std::string& interface, const std::string& feature) {
    constexpr std::uint32_t kMost = 256;
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto ask = [&](void* question) {
        ifreq request{};
        std::strncpy(request.ifr_name, interface.c_str(), sizeof request.ifr_name - 1);
        request.ifr_data = static_cast<char*>(question);
        if (ioctl(fd.get(), SIOCETHTOOL, &request) < 0)
            throw std::runtime_error("SIOCETHTOOL: " + feature + ": " + strerror(errno));
    };
    // Each of these ends in an array.
    std::vector<std::uint64_t> names(sizeof(ethtool_gstrings) + kMost * ETH_GSTRING_LEN);
    auto* list = reinterpret_cast<ethtool_gstrings*>(names.data());
    list->cmd = ETHTOOL_GSTRINGS;
    list->string_set = ETH_SS_FEATURES;
    ask(list);
    std::vector<std::uint64_t> blocks(sizeof(ethtool_sfeatures) + kMost);
    auto* change = reinterpret_cast<ethtool_sfeatures*>(blocks.data());
    change->cmd = ETHTOOL_SFEATURES;
    change->size = (list->len + 31) / 32;
    for (std::uint32_t i = 0; i < list->len; i++)
        if (feature == reinterpret_cast<const char*>(&list->data[i * ETH_GSTRING_LEN]))
            change->features[i / 32].valid = 1u << i % 32;
    ask(change);
}

// A datagram from a kernel socket, or nothing for five seconds.
std::optional<std::string> receive(const Fd& fd) {
    pollfd p{fd.get(), POLLIN, 0};
    if (poll(&p, 1, 5000 * patience()) != 1) return std::nullopt;
    std::string text(65536, '\0');
    const ssize_t n = recv(fd.get(), text.data(), text.size(), 0);
    if (n < 0) return std::nullopt;
    text.resize(static_cast<std::size_t>(n));
    return text;
}

struct Sink final : ring::FrameSink {
    std::vector<std::string> payloads;
    std::map<std::uint16_t, int> by_peer_port;
    bool deliver(ring::RxBuffer* buffer) noexcept override {
        std::string text(buffer->payload_length, '\0');
        iovec iov{text.data(), text.size()};
        buffer->copy_to(&iov, 1);
        payloads.push_back(std::move(text));
        by_peer_port[ntohs(buffer->src_port)]++;
        buffer->release();
        return true;
    }
};

// Opens the device of host a, in the calling thread's namespace.
Result<std::unique_ptr<XdpDevice>> open_device(Mode mode, unsigned queues, std::uint32_t mtu,
                                               std::uint32_t rx_entries = 1024, unsigned rings = 1) {
    XdpConfig config;
    config.rings = rings;
    config.name = TwoHosts::interface();
    config.ifindex = static_cast<int>(if_nametoindex(config.name.c_str()));
    config.mac = mac_of(config.name);
    config.mtu = mtu;
    config.queues = queues;
    config.modes = {mode};
    config.rx_entries = rx_entries;
    config.tx_entries = 512;
    config.inside = true;
    return XdpDevice::open(std::move(config));
}

Result<std::unique_ptr<ring::Ring>> open_ring(Mode mode, unsigned queues, std::uint32_t mtu,
                                              std::uint32_t rx_entries = 1024, unsigned rings = 1) {
    auto device = open_device(mode, queues, mtu, rx_entries, rings);
    if (!device) return std::unexpected(device.error());
    return ring::Ring::create(std::move(*device), {.huge_pages = false});
}

FlowSpec flow(std::uint16_t port, std::uint16_t peer_port = 0) {
    return {IPPROTO_UDP, inet_addr(TwoHosts::address(Host::a).c_str()), htons(port),
            peer_port != 0 ? inet_addr(TwoHosts::address(Host::b).c_str()) : 0, htons(peer_port)};
}

// Host a has the ring and a kernel socket on the same port (the shadow); host b is all kernel.
class XdpDeviceTest : public testing::TestWithParam<Mode> {
  protected:
    // All but the ring.
    void make_hosts(const testing_support::Wire& wire = {}) {
        hosts.emplace(wire);
        {
            On host(*hosts, Host::b);
            peer_mac = mac_of(TwoHosts::interface());
            peer = udp_socket(TwoHosts::address(Host::b), kPeerPort);
        }
        On host(*hosts, Host::a);
        own_mac = mac_of(TwoHosts::interface());
        shadow = udp_socket(TwoHosts::address(Host::a), kPort);
    }
    void start(unsigned queues = 1, std::uint32_t mtu = 1500, std::uint32_t rx_entries = 1024,
               unsigned rings = 1) {
        make_hosts({.queues = static_cast<int>(queues), .mtu = static_cast<int>(mtu)});
        On host(*hosts, Host::a);
        auto opened = open_ring(GetParam(), queues, mtu, rx_entries, rings);
        ASSERT_TRUE(opened) << opened.error().what;
        ring = std::move(*opened);
    }
    // A further ring on the same netdev.
    std::unique_ptr<ring::Ring> another(unsigned lane) {
        On host(*hosts, Host::a);
        auto device = ring->device().further();
        if (!device || *device == nullptr) {
            ADD_FAILURE() << (device ? "opened anew" : device.error().what);
            return nullptr;
        }
        auto made = ring::Ring::create(std::move(*device), {.lane = lane, .huge_pages = false});
        if (!made) {
            ADD_FAILURE() << made.error().what;
            return nullptr;
        }
        ring->post_for_others((*made)->attr().borrowed_recv);
        return std::move(*made);
    }
    void attach(const FlowSpec& spec, Sink& to) {
        ring->expect(2048);  // what a socket with a large receive buffer announces
        auto attached = ring->attach(spec, &to, ring::Share::latest);
        ASSERT_TRUE(attached) << attached.error().what;
    }
    void peer_sends(const std::string& text, std::uint16_t port = kPort) const {
        peer_sends(peer, text, port);
    }
    static void peer_sends(const Fd& from, const std::string& text, std::uint16_t port = kPort) {
        const sockaddr_in to = socket_address(TwoHosts::address(Host::a), port);
        ASSERT_EQ(sendto(from.get(), text.data(), text.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                         sizeof to),
                  static_cast<ssize_t>(text.size()))
            << strerror(errno);
    }
    // Polls until `reached` or for five seconds.
    template <class Condition>
    bool poll_until(Condition reached) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5) * patience();
        while (!reached()) {
            if (ring->poll() == 0) std::this_thread::yield();
            if (std::chrono::steady_clock::now() > end) return false;
        }
        return true;
    }
    int send(const std::string& text) { return send(*ring, text); }
    int send(ring::Ring& from, const std::string& text, std::uint16_t port = kPeerPort) {
        return send(from, text, port, peer_mac, TwoHosts::address(Host::b));
    }
    int send(ring::Ring& from, const std::string& text, std::uint16_t port, const MacAddress& mac,
             const std::string& address) {
        std::uint8_t headers[net::kUdpHeaders];
        net::build_udp_headers({.src_mac = own_mac,
                                .dst_mac = mac,
                                .src_addr = inet_addr(TwoHosts::address(Host::a).c_str()),
                                .dst_addr = inet_addr(address.c_str()),
                                .src_port = htons(kPort),
                                .dst_port = htons(port)},
                               0, headers);
        iovec iov{const_cast<char*>(text.data()), text.size()};
        return from.send_udp(headers, &iov, 1, text.size());
    }

    // Datagrams that the kernel has got join those of the ring.
    void take_from_kernel() {
        std::string text(2000, '\0');
        for (ssize_t n; (n = recv(shadow.get(), text.data(), text.size(), MSG_DONTWAIT)) >= 0;)
            sink.payloads.emplace_back(text, 0, static_cast<std::size_t>(n));
    }

    std::optional<TwoHosts> hosts;
    MacAddress own_mac{}, peer_mac{};
    Fd peer, shadow;
    Sink sink;
    std::unique_ptr<ring::Ring> ring;
};

TEST_P(XdpDeviceTest, BothWays) {
    start();
    EXPECT_EQ(ring->attr().name, std::string("xdp:veth1 (") + name_of(GetParam()) + ")");
    EXPECT_EQ(ring->attr().chunk_size, 2048u);
    EXPECT_EQ(ring->max_udp_payload(), 1472u);
    EXPECT_TRUE(hosts->offloaded(Host::a));
    attach(flow(kPort), sink);
    for (std::size_t size : {0u, 1u, 2u, 99u, 255u, 256u, 257u, 1000u, 1471u, 1472u}) {
        const std::string text = pattern(size, static_cast<unsigned>(size));
        peer_sends(text);
        ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); })) << size;
        EXPECT_TRUE(sink.payloads == std::vector<std::string>{text}) << size;
        sink.payloads.clear();
        ASSERT_EQ(send(text), 0);
        EXPECT_TRUE(receive(peer) == text) << size << ", checksum offload " << ring->attr().tx_checksum;
    }
    const ring::RingCounters counters = ring->counters();
    EXPECT_EQ(counters.rx_frames, 10u);
    for (std::uint64_t bad : counters.rx_bad) EXPECT_EQ(bad, 0u);
    ring.reset();
    EXPECT_FALSE(hosts->offloaded(Host::a));
}

TEST_P(XdpDeviceTest, RulesComeAndGo) {
    start();
    Fd other_peer;
    {
        On host(*hosts, Host::b);
        other_peer = udp_socket(TwoHosts::address(Host::b), kPeerPort + 1);
    }
    peer_sends("before any rule");
    EXPECT_EQ(receive(shadow), "before any rule");

    Sink any, connected;
    attach(flow(kPort), any);
    attach(flow(kPort, kPeerPort), connected);
    peer_sends("five");
    peer_sends(other_peer, "three");
    ASSERT_TRUE(poll_until([&] { return !any.payloads.empty() && !connected.payloads.empty(); }));
    EXPECT_EQ(any.payloads, std::vector<std::string>{"three"});
    EXPECT_EQ(connected.payloads, std::vector<std::string>{"five"});

    ring->detach(flow(kPort), &any);
    peer_sends(other_peer, "kernel");
    EXPECT_EQ(receive(shadow), "kernel");
    peer_sends("five again");
    ASSERT_TRUE(poll_until([&] { return connected.payloads.size() == 2; }));

    ring->detach(flow(kPort, kPeerPort), &connected);
    peer_sends("kernel again");
    EXPECT_EQ(receive(shadow), "kernel again");
    ring->poll();
    EXPECT_EQ(any.payloads.size(), 1u);
    EXPECT_EQ(connected.payloads.size(), 2u);
}

// The program counts the rules of a port: each rule works until it goes itself, whatever others of the port
// do.
TEST_P(XdpDeviceTest, RulesOfOnePort) {
    start();
    Fd other_peer;
    {
        On host(*hosts, Host::b);
        other_peer = udp_socket(TwoHosts::address(Host::b), kPeerPort + 1);
    }
    Sink first, second;
    for (int round = 0; round < 3; round++) {
        first.payloads.clear();
        second.payloads.clear();
        attach(flow(kPort, kPeerPort), first);
        attach(flow(kPort, kPeerPort + 1), second);
        peer_sends("one");
        peer_sends(other_peer, "two");
        ASSERT_TRUE(poll_until([&] { return !first.payloads.empty() && !second.payloads.empty(); }));
        ring->detach(flow(kPort, kPeerPort), &first);
        peer_sends("kernel");
        EXPECT_EQ(receive(shadow), "kernel");
        peer_sends(other_peer, "two again");
        ASSERT_TRUE(poll_until([&] { return second.payloads.size() == 2; }));
        ring->detach(flow(kPort, kPeerPort + 1), &second);
        peer_sends(other_peer, "kernel again");
        EXPECT_EQ(receive(shadow), "kernel again");
        EXPECT_EQ(first.payloads, std::vector<std::string>{"one"});
    }
}

TEST_P(XdpDeviceTest, CountsOfPorts) {
    hosts.emplace();
    On host(*hosts, Host::a);
    const std::string name = TwoHosts::interface();
    CopyMaps maps{.sizes = {.posted = 256, .received = 256}};
    auto steering =
        Steering::attach(static_cast<int>(if_nametoindex(name.c_str())), name, GetParam(), 0, maps);
    ASSERT_TRUE(steering) << steering.error().what;
    const FlowSpec udp = flow(kPort), connected = flow(kPort, kPeerPort);
    FlowSpec tcp = udp;
    tcp.protocol = IPPROTO_TCP;
    EXPECT_EQ(steering->rules_at(udp), 0u);
    ASSERT_TRUE(steering->add(udp, 0));
    ASSERT_TRUE(steering->add(connected, 0));
    EXPECT_EQ(steering->rules_at(udp), 2u);
    EXPECT_EQ(steering->rules_at(tcp), 0u);
    ASSERT_TRUE(steering->move(udp, STEER_MAX_QUEUES));
    EXPECT_EQ(steering->rules_at(udp), 2u);
    ASSERT_TRUE(steering->add(tcp, 0));
    EXPECT_EQ(steering->rules_at(tcp), 1u);
    steering->remove(udp);
    EXPECT_EQ(steering->rules_at(udp), 1u);
    steering->remove(connected);
    EXPECT_EQ(steering->rules_at(udp), 0u);
    // Many threads, one port.
    std::vector<std::thread> threads;
    for (std::uint16_t t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 200; i++) {
                EXPECT_TRUE(steering->add(flow(kPort, kPeerPort + t), 0));
                EXPECT_GE(steering->rules_at(udp), 1u);
                steering->remove(flow(kPort, kPeerPort + t));
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(steering->rules_at(udp), 0u);
    EXPECT_EQ(steering->rules_at(tcp), 1u);
}

// So many rules that hundreds of them find their bucket in the mapped table full: those are in a hash map,
// and work as well.
TEST_P(XdpDeviceTest, RulesBeyondTheirBuckets) {
    start();
    constexpr std::uint16_t kRules = 30000, kFirst = 2001, kAsked = 500;
    for (std::uint16_t i = 0; i < kRules; i++)
        attach(flow(static_cast<std::uint16_t>(kFirst + i), kPeerPort), sink);
    for (std::uint16_t i = 0; i < kAsked; i++) peer_sends("mine", static_cast<std::uint16_t>(kFirst + i));
    EXPECT_TRUE(poll_until([&] { return sink.payloads.size() == kAsked; })) << sink.payloads.size();
    for (std::uint16_t i = 0; i < kRules; i++)
        ring->detach(flow(static_cast<std::uint16_t>(kFirst + i), kPeerPort), &sink);
    Fd first;
    {
        On host(*hosts, Host::a);
        first = udp_socket(TwoHosts::address(Host::a), kFirst);
    }
    peer_sends("kernel", kFirst);
    EXPECT_EQ(receive(first), "kernel");
    attach(flow(kFirst, kPeerPort), sink);
    peer_sends("mine again", kFirst);
    EXPECT_TRUE(poll_until([&] { return sink.payloads.size() == kAsked + 1; }));
}

// Payloads of a peer's super-frame of `total` bytes, cut at `segment`.
std::vector<std::string> segments(const std::string& text, std::size_t segment) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < text.size(); at += segment) out.push_back(text.substr(at, segment));
    return out;
}

// A peer's super-frame of datagrams arrives as these, whatever their lengths and the buffers' are.
TEST_P(XdpDeviceTest, SuperFramesOfDatagramsAreSplit) {
    if (GetParam() == Mode::drv) return;  // a native driver's frames are not described
    if (!kernel_has_types()) GTEST_SKIP() << "the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)";
    for (const std::uint32_t mtu : {1500u, 9000u}) {
        start(1, mtu);
        attach(flow(kPort), sink);
        for (const auto& [total, segment] : {std::pair{4500, 1000},
                                             {2000, 100},
                                             {1600, 1472},
                                             {1601, 1},
                                             {40000, 1472},
                                             {44, 11},
                                             {60000, 8000}}) {
            if (segment + 28u > mtu) continue;
            const std::string text = pattern(std::min<std::size_t>(total, 64u * segment));
            sink.payloads.clear();
            ASSERT_EQ(setsockopt(peer.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
            peer_sends(text);
            const auto wanted = segments(text, static_cast<std::size_t>(segment));
            EXPECT_TRUE(poll_until([&] { return sink.payloads.size() == wanted.size(); }))
                << total << " by " << segment << ": " << sink.payloads.size();
            EXPECT_TRUE(sink.payloads == wanted) << total << " by " << segment;
        }
        const ring::RingCounters counters = ring->counters();
        for (std::uint64_t bad : counters.rx_bad) EXPECT_EQ(bad, 0u);
        ring.reset();
        hosts.reset();
    }
}

// Without this right the kernel gets super-frames, whole, and cuts them.
TEST_P(XdpDeviceTest, WithoutCapPerfmon) {
    make_hosts();
    {
        On host(*hosts, Host::a);
        const WithoutCapabilities fewer({CAP_PERFMON, CAP_SYS_ADMIN});
        auto opened = open_ring(GetParam(), 1, 1500);
        ASSERT_TRUE(opened) << opened.error().what;
        ring = std::move(*opened);
    }
    attach(flow(kPort), sink);
    peer_sends("one datagram");
    EXPECT_TRUE(poll_until([&] { return sink.payloads.size() == 1; }));
    if (GetParam() != Mode::skb) return;  // the far end cuts super-frames itself, or no right is needed
    const int segment = 1000;
    ASSERT_EQ(setsockopt(peer.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
    peer_sends(pattern(4500));
    for (const std::string& wanted : segments(pattern(4500), 1000)) EXPECT_TRUE(receive(shadow) == wanted);
    EXPECT_EQ(ring->poll(), 0u);
}

// Bursts of datagrams leave as super-frames where they can: fewer frames, the same datagrams in their order.
TEST_P(XdpDeviceTest, BurstsOfDatagramsLeaveAsSuperFrames) {
    start();
    Fd tap, other;
    {
        On host(*hosts, Host::b);
        tap = Fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP)));
        int room = 64 << 20;
        setsockopt(tap.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
        other = udp_socket(TwoHosts::address(Host::b), kPeerPort + 1);
    }
    const auto frames = [&] {
        std::vector<std::uint8_t> frame(65536);
        std::size_t n = 0, longest = 0;
        for (ssize_t got; (got = recv(tap.get(), frame.data(), frame.size(), 0)) > 0; n++)
            longest = std::max(longest, static_cast<std::size_t>(got));
        return std::pair(n, longest);
    };
    const auto burst = [&](std::size_t count, auto length_of) {
        std::vector<std::string> wanted;
        frames();
        {
            const ring::Ring::Gather together(ring.get(), false);
            for (std::size_t i = 0; i < count; i++) {
                wanted.push_back(pattern(length_of(i), static_cast<unsigned>(i)));
                EXPECT_EQ(send(wanted.back()), 0);
            }
        }
        ring->flush();
        for (std::size_t i = 0; i < count; i++) EXPECT_TRUE(receive(peer) == wanted[i]) << i;
        return frames();
    };
    for (const std::size_t length : {1u, 100u, 255u, 256u, 1472u}) {
        const auto [n, longest] = burst(320, [=](std::size_t) { return length; });
        if (GetParam() == Mode::skb) {
            EXPECT_EQ(n, 10u) << length;
        }
        EXPECT_LE(longest, 32 * length + net::kUdpHeaders);
    }
    // A shorter datagram ends a frame; longer ones, empty ones and those of others are not part of it.
    burst(320, [](std::size_t i) { return i % 7 == 6 ? 50u : 100u; });
    burst(320, [](std::size_t i) { return i % 50; });
    burst(320, [](std::size_t i) { return i % 11 == 0 ? 0u : 700u; });
    for (int i = 0; i < 64; i++) {
        const std::uint16_t port = i % 13 < 6 ? kPeerPort : kPeerPort + 1;
        ASSERT_EQ(send(*ring, "number " + std::to_string(i), port), 0);
    }
    ring->flush();
    for (int i = 0; i < 64; i++) EXPECT_EQ(receive(i % 13 < 6 ? peer : other), "number " + std::to_string(i));
    // All send buffers come back.
    ring->send_all();
    EXPECT_GE(ring->buffer_counts().tx_free + 128, ring->buffer_counts().tx_total);
}

// Each member of a group gets the datagrams, on the kernel and past it.
TEST_P(XdpDeviceTest, SuperFramesToAGroup) {
    start();
    const std::string group = "239.1.2.3";
    const MacAddress mac{0x01, 0x00, 0x5e, 1, 2, 3};
    constexpr std::uint16_t kGroupPort = 7000;
    const auto member = [&](Host host) {
        On there(*hosts, host);
        Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        const int on = 1, room = 64 << 20;
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
        const sockaddr_in own = socket_address(group, kGroupPort);
        EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
        const ip_mreqn wanted{.imr_multiaddr = own.sin_addr,
                              .imr_address = {},
                              .imr_ifindex = static_cast<int>(if_nametoindex(TwoHosts::interface().c_str()))};
        EXPECT_EQ(setsockopt(fd.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &wanted, sizeof wanted), 0);
        return fd;
    };
    const Fd one = member(Host::b), two = member(Host::b), here = member(Host::a);
    std::vector<std::string> wanted;
    {
        const ring::Ring::Gather together(ring.get(), false);
        for (unsigned i = 0; i < 100; i++) {
            wanted.push_back(pattern(500, i));
            ASSERT_EQ(send(*ring, wanted.back(), kGroupPort, mac, group), 0);
        }
    }
    ring->flush();
    for (const std::string& text : wanted) {
        ASSERT_TRUE(receive(one) == text);
        ASSERT_TRUE(receive(two) == text);
    }
    if (GetParam() == Mode::drv || !kernel_has_types()) return;
    attach({IPPROTO_UDP, inet_addr(group.c_str()), htons(kGroupPort), 0, 0}, sink);
    const int segment = 500;
    {
        On there(*hosts, Host::b);
        ASSERT_EQ(setsockopt(peer.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
        const ip_mreqn from{.imr_multiaddr = {},
                            .imr_address = {},
                            .imr_ifindex = static_cast<int>(if_nametoindex(TwoHosts::interface().c_str()))};
        ASSERT_EQ(setsockopt(peer.get(), IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof from), 0);
        const sockaddr_in to = socket_address(group, kGroupPort);
        ASSERT_EQ(sendto(peer.get(), pattern(9900).data(), 9900, 0, reinterpret_cast<const sockaddr*>(&to),
                         sizeof to),
                  9900);
    }
    EXPECT_TRUE(poll_until([&] { return sink.payloads.size() == 20; })) << sink.payloads.size();
    EXPECT_TRUE(sink.payloads == segments(pattern(9900), 500));
}

// Without the netdev's help each datagram is a frame again.
TEST_P(XdpDeviceTest, NetdevStopsSegmenting) {
    start();
    const auto all_arrive = [&] {
        const ring::Ring::Gather together(ring.get(), false);
        for (int i = 0; i < 500; i++) EXPECT_EQ(send("number " + std::to_string(i)), 0);
        ring->flush();
        for (int i = 0; i < 500; i++) EXPECT_EQ(receive(peer), "number " + std::to_string(i));
    };
    all_arrive();
    {
        On host(*hosts, Host::a);
        switch_off(TwoHosts::interface(), "tx-udp-segmentation");
    }
    all_arrive();
}

TEST_P(XdpDeviceTest, FragmentsAndSegmentsGoToTheKernel) {
    start();
    attach(flow(kPort), sink);
    const std::string large = pattern(5000);
    peer_sends(large);  // fragments, which the kernel puts together
    EXPECT_TRUE(receive(shadow) == large);
    int segment = 1000;
    ASSERT_EQ(setsockopt(peer.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
    peer_sends(pattern(4500));
    segment = 0;
    setsockopt(peer.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
    // Whether the far end splits it before the wire is its device's business; each datagram arrives once, on
    // one side.
    const std::vector<std::string> all = segments(pattern(4500), 1000);
    const std::multiset<std::string> wanted(all.begin(), all.end());
    std::multiset<std::string> got;
    ASSERT_TRUE(poll_until([&] {
        std::string text(2000, '\0');
        ssize_t n = recv(shadow.get(), text.data(), text.size(), MSG_DONTWAIT);
        if (n >= 0) got.insert(text.substr(0, static_cast<std::size_t>(n)));
        return got.size() + sink.payloads.size() >= wanted.size();
    }));
    got.insert(sink.payloads.begin(), sink.payloads.end());
    EXPECT_TRUE(got == wanted);
}

// What the kernel did not take while the interface was down leaves when it is up again.
TEST_P(XdpDeviceTest, FramesSentWhileTheInterfaceIsDown) {
    start();
    ASSERT_EQ(send("first"), 0);
    EXPECT_EQ(receive(peer), "first");
    hosts->ip(Host::a, {"link", "set", "dev", "veth1", "down"});
    for (int i = 0; i < 5; i++) ASSERT_EQ(send("down " + std::to_string(i)), 0);
    hosts->ip(Host::a, {"link", "set", "dev", "veth1", "up"});
    for (int i = 0; i < 500 && hosts->ip(Host::a, {"link", "show", "dev", "veth1"}).find("LOWER_UP") ==
                                   std::string::npos;
         i++)
        usleep(10'000);
    ring->flush();
    for (int i = 0; i < 5; i++) EXPECT_EQ(receive(peer), "down " + std::to_string(i));
}

// The kernel runs a program of a virtual device on the sender's processor, so on several at once.
TEST_P(XdpDeviceTest, SendersOnSeveralProcessors) {
    constexpr unsigned kSenders = 3, kEach = 5000, kUnderWay = 64;
    start(1, 1500, 4096);
    attach(flow(kPort), sink);
    std::atomic<std::size_t> received{0};
    std::vector<std::jthread> senders;
    for (unsigned s = 0; s < kSenders; s++) {
        Fd from;
        {
            On host(*hosts, Host::b);
            from = udp_socket(TwoHosts::address(Host::b), static_cast<std::uint16_t>(kPeerPort + 1 + s));
        }
        senders.emplace_back([s, &received, from = std::move(from)] {
            for (unsigned i = 0; i < kEach; i++) {
                while (i * kSenders > received.load() + kUnderWay * kSenders) std::this_thread::yield();
                peer_sends(from, std::to_string(s) + " " + std::to_string(i) + " " + pattern(i % 1400, i));
            }
        });
    }
    EXPECT_TRUE(poll_until([&] {
        // A frame that found the rings' lock taken for long is the kernel's.
        if (sink.payloads.size() == received.load()) take_from_kernel();
        received = sink.payloads.size();
        return received == kSenders * kEach;
    })) << received;
    received = kSenders * kEach;  // lets the senders end
    // Each once. A thread that changes its processor may overtake itself.
    std::set<std::pair<unsigned, unsigned>> seen;
    for (const std::string& text : sink.payloads) {
        unsigned s = 0, i = 0;
        ASSERT_EQ(sscanf(text.c_str(), "%u %u", &s, &i), 2);
        ASSERT_TRUE(seen.emplace(s, i).second) << s << " " << i;
        ASSERT_EQ(text, std::to_string(s) + " " + std::to_string(i) + " " + pattern(i % 1400, i));
    }
    EXPECT_EQ(ring->device().rx_device_drops(), 0u);
}

// A host that stops the processor which has the lock loses no datagram. TCP sends its segment again.
TEST_P(XdpDeviceTest, ALockHeldForLongLosesNoDatagram) {
    if (GetParam() != Mode::tc) return;  // without the program's own rings there is no lock
    start();
    attach(flow(kPort), sink);
    FlowSpec stream = flow(kPort, kPeerPort);
    stream.protocol = IPPROTO_TCP;
    attach(stream, sink);
    const auto set_lock = [&](std::uint32_t value) {
        On host(*hosts, Host::a);
        ASSERT_TRUE(testing_support::set_tcx_value(TwoHosts::interface(), "busy", value));
    };
    set_lock(1);
    peer_sends("meanwhile");
    {
        On host(*hosts, Host::b);
        const Fd raw(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP));
        net::TcpHeader segment{};
        segment.src_port = htons(kPeerPort);
        segment.dst_port = htons(kPort);
        segment.data_offset = sizeof segment / 4 << 4;
        segment.flags = 0x10;
        const sockaddr_in to = socket_address(TwoHosts::address(Host::a), 0);
        ASSERT_EQ(
            sendto(raw.get(), &segment, sizeof segment, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to),
            static_cast<ssize_t>(sizeof segment));
    }
    EXPECT_EQ(receive(shadow), "meanwhile");
    EXPECT_EQ(ring->device().rx_device_drops(), 1u) << "the segment";
    set_lock(0);
    peer_sends("afterwards");
    EXPECT_TRUE(poll_until([&] { return !sink.payloads.empty(); }));
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"afterwards"});
}

// A frame with a VLAN's tag is not for the interface itself.
TEST_P(XdpDeviceTest, TaggedFramesAreNotTaken) {
    start();
    attach(flow(kPort), sink);
    std::uint8_t headers[net::kUdpHeaders];
    net::build_udp_headers({.src_mac = peer_mac,
                            .dst_mac = own_mac,
                            .src_addr = inet_addr(TwoHosts::address(Host::b).c_str()),
                            .dst_addr = inet_addr(TwoHosts::address(Host::a).c_str()),
                            .src_port = htons(kPeerPort),
                            .dst_port = htons(kPort)},
                           0, headers);
    std::vector<std::uint8_t> frame(headers, headers + sizeof headers);
    net::finish_udp_frame(frame.data(), 0, 0, false);
    const std::vector<std::uint8_t> tag{0x81, 0x00, 0x00, 0x05};
    std::vector<std::uint8_t> tagged = frame;
    tagged.insert(tagged.begin() + 12, tag.begin(), tag.end());
    {
        On host(*hosts, Host::b);
        const Fd raw = testing_support::packet_socket(TwoHosts::interface());
        for (const auto& f : {tagged, frame})
            ASSERT_EQ(::send(raw.get(), f.data(), f.size(), 0), static_cast<ssize_t>(f.size()));
    }
    ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); }));
    EXPECT_EQ(ring->poll(), 0u);
    EXPECT_EQ(sink.payloads.size(), 1u) << "the untagged one";
}

// Copy mode charges frames on their way to the socket's send buffer; the default is less than the queue.
TEST_P(XdpDeviceTest, SendBufferHoldsTheWholeQueue) {
    if (GetParam() == Mode::tc) return;  // its channel is no XSK
    start();
    int room = 0;
    socklen_t length = sizeof room;
    ASSERT_EQ(getsockopt(ring->channel_fd(), SOL_SOCKET, SO_SNDBUF, &room, &length), 0);
    EXPECT_GE(room, 512 * 4096);
}

TEST(XskBind, ZeroCopyComesBeforeScatterGather) {
    const std::uint16_t wake = XDP_USE_NEED_WAKEUP, sg = XDP_USE_SG, zero = XDP_ZEROCOPY, copy = XDP_COPY;
    auto ways = [](auto... flags) {
        return std::vector<std::uint16_t>{static_cast<std::uint16_t>(flags)...};
    };
    EXPECT_EQ(ways_to_bind(true, true), ways(zero | wake | sg, zero | wake, copy | wake | sg, copy | wake));
    EXPECT_EQ(ways_to_bind(true, false), ways(zero | wake | sg, copy | wake | sg))
        << "frames need several buffers";
    EXPECT_EQ(ways_to_bind(false, true), ways(copy | wake | sg, copy | wake));
}

TEST_P(XdpDeviceTest, TwoQueues) {
    start(2);
    attach(flow(kPort), sink);
    // A frame's queue follows from its flow; with so many flows there are some on each queue, and a queue
    // without a socket would hand its frames to the kernel.
    constexpr int kFlows = 64, kEach = 20;
    std::vector<Fd> peers;
    {
        On host(*hosts, Host::b);
        for (int i = 0; i < kFlows; i++)
            peers.push_back(
                udp_socket(TwoHosts::address(Host::b), static_cast<std::uint16_t>(kPeerPort + 1 + i)));
    }
    for (int n = 0; n < kEach; n++)
        for (Fd& from : peers) {
            peer_sends(from, pattern(200));
            if (n % 4 == 0) ring->poll();
        }
    ASSERT_TRUE(poll_until([&] { return sink.payloads.size() >= kFlows * kEach; })) << sink.payloads.size();
    EXPECT_EQ(sink.by_peer_port.size(), static_cast<std::size_t>(kFlows));
    for (auto [port, count] : sink.by_peer_port) EXPECT_EQ(count, kEach) << port;
    EXPECT_EQ(recv(shadow.get(), nullptr, 0, MSG_DONTWAIT), -1) << "the kernel got one";
    ASSERT_EQ(send("answer"), 0);
    EXPECT_EQ(receive(peer), "answer");
    // Asleep on all queues.
    for (std::size_t i = 0; i < 8; i++) {
        sink.payloads.clear();
        ring->arm();
        while (ring->poll() != 0) {
        }
        peer_sends(peers[i], "wake");
        pollfd p{ring->channel_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 5000 * patience()), 1);
        ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); }));
    }
}

TEST_P(XdpDeviceTest, JumboFramesBothWays) {
    start(1, 9000);
    EXPECT_EQ(ring->attr().chunk_size, GetParam() == Mode::tc ? 2048u : 4096u);
    EXPECT_EQ(ring->max_udp_payload(), 8972u);
    attach(flow(kPort), sink);
    for (std::size_t size :
         {100u, 3700u, 3797u, 3798u, 3799u, 3990u, 4000u, 7637u, 7638u, 7639u, 8971u, 8972u}) {
        const std::string text = pattern(size, static_cast<unsigned>(size));
        peer_sends(text);
        ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); })) << size;
        EXPECT_TRUE(sink.payloads == std::vector<std::string>{text}) << size;
        sink.payloads.clear();
        ASSERT_EQ(send(text), 0);
        EXPECT_TRUE(receive(peer) == text) << size;
    }
    // And many of them, so that buffers come round.
    for (unsigned i = 0; i < 2000; i++) {
        peer_sends(pattern(8972, i));
        ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); })) << i;
        ASSERT_TRUE(sink.payloads[0] == pattern(8972, i)) << i;
        sink.payloads.clear();
        ASSERT_EQ(send(pattern(8972, i)), 0);
        ASSERT_TRUE(receive(peer) == pattern(8972, i)) << i;
    }
    const ring::BufferCounts counts = ring->buffer_counts();
    EXPECT_EQ(counts.rx_posted + counts.rx_free, counts.rx_total);
}

TEST_P(XdpDeviceTest, BurstsArriveWholeAndInOrder) {
    start();
    for (unsigned burst = 0; burst < 20; burst++) {
        const unsigned frames = burst * 37 % 400 + 1;
        for (unsigned i = 0; i < frames; i++)
            ASSERT_EQ(send(std::to_string(burst) + "." + std::to_string(i)), 0);
        // No further call: the flusher sends the last ones.
        for (unsigned i = 0; i < frames; i++)
            ASSERT_EQ(receive(peer), std::to_string(burst) + "." + std::to_string(i)) << frames;
    }
    for (int i = 0; i < 20000; i++) {
        ASSERT_EQ(send(pattern(300, 7)), 0) << i;
        for (int k = 0; i % 100 == 99 && k < 100; k++)
            ASSERT_TRUE(receive(peer) == pattern(300, 7)) << i << " " << k;
    }
    // Completions are asked for once in 32 requests and looked for when 64 buffers are out.
    EXPECT_GE(ring->buffer_counts().tx_free + 64, ring->buffer_counts().tx_total);
}

TEST_P(XdpDeviceTest, FramesWithoutABufferAreCountedAndItGoesOn) {
    start(1, 1500, 256);
    attach(flow(kPort), sink);
    for (int i = 0; i < 1000; i++) peer_sends(std::to_string(i));  // nobody polls
    ASSERT_TRUE(poll_until([&] { return sink.payloads.size() + ring->device().rx_device_drops() >= 1000; }))
        << sink.payloads.size() << " delivered, " << ring->device().rx_device_drops() << " dropped";
    EXPECT_EQ(sink.payloads.size() + ring->device().rx_device_drops(), 1000u);
    EXPECT_GT(ring->device().rx_device_drops(), 0u);
    EXPECT_EQ(sink.payloads[0], "0");
    sink.payloads.clear();
    for (int i = 0; i < 1000; i++) {
        peer_sends(std::to_string(i));
        ring->poll();
    }
    ASSERT_TRUE(poll_until([&] { return sink.payloads.size() == 1000; })) << sink.payloads.size();
    EXPECT_EQ(sink.payloads.back(), "999");
}

TEST_P(XdpDeviceTest, SeveralRingsOnOneNetdev) {
    for (const unsigned queues : {1u, 2u}) {
        start(queues, 1500, 1024, 4);
        attach(flow(kPort), sink);
        std::vector<std::unique_ptr<ring::Ring>> rings;
        Sink sinks[3];
        for (unsigned i = 0; i < 3; i++) {
            rings.push_back(another(i + 1));
            ASSERT_NE(rings.back(), nullptr);
            const auto port = static_cast<std::uint16_t>(kPort + 1 + i);
            ASSERT_TRUE(rings[i]->attach(flow(port), &sinks[i], ring::Share::latest));
        }
        EXPECT_FALSE(ring->device().further()) << "its memory was divided for four";
        for (int i = 0; i < 3000; i++) {
            const auto text = std::to_string(i) + pattern(static_cast<std::size_t>(i % 1400));
            const int to = i % 4;
            peer_sends(text, static_cast<std::uint16_t>(kPort + to));
            Sink& its = to == 0 ? sink : sinks[to - 1];
            ASSERT_TRUE(poll_until([&] {
                if (to != 0) rings[static_cast<std::size_t>(to - 1)]->poll();
                return !its.payloads.empty();
            })) << i;
            ASSERT_TRUE(its.payloads == std::vector<std::string>{text}) << i;
            its.payloads.clear();
            ASSERT_EQ(send(to == 0 ? *ring : *rings[static_cast<std::size_t>(to - 1)], text), 0);
            ASSERT_TRUE(receive(peer) == text) << i;
        }
        for (auto& each : rings) {
            EXPECT_GE(each->buffer_counts().tx_free + 64, each->buffer_counts().tx_total);
            EXPECT_EQ(each->counters().tx_lost, 0u);
        }
        EXPECT_EQ(recv(shadow.get(), nullptr, 0, MSG_DONTWAIT), -1) << "the kernel got one";
        rings.clear();
        ring.reset();
    }
}

// Who leaves its ring unread takes no buffer from the others.
TEST_P(XdpDeviceTest, AnUnreadRingDoesNotStarveTheOthers) {
    start(1, 1500, 1024, 3);
    attach(flow(kPort), sink);
    auto unread = another(1), other = another(2);
    Sink its, others;
    ASSERT_TRUE(unread->attach(flow(kPort + 1), &its, ring::Share::latest));
    ASSERT_TRUE(other->attach(flow(kPort + 2), &others, ring::Share::latest));
    constexpr std::size_t kMore = 5000, kEach = 1000;
    for (std::size_t i = 0; i < kMore; i++) peer_sends(std::to_string(i), kPort + 1);
    for (std::size_t i = 0; i < kEach; i++) {
        peer_sends(std::to_string(i));
        peer_sends(std::to_string(i), kPort + 2);
        ring->poll();
        other->poll();
    }
    EXPECT_TRUE(poll_until([&] {
        other->poll();
        return sink.payloads.size() == kEach && others.payloads.size() == kEach;
    })) << sink.payloads.size()
        << " " << others.payloads.size();
    EXPECT_EQ(others.payloads.back(), std::to_string(kEach - 1));
    // What its queue could hold has waited; and it goes on.
    while (unread->poll() != 0) {
    }
    EXPECT_GE(its.payloads.size(), 1000u);
    EXPECT_EQ(its.payloads.size() + unread->device().rx_device_drops(), kMore);
    its.payloads.clear();
    peer_sends("again", kPort + 1);
    EXPECT_TRUE(poll_until([&] { return unread->poll() != 0; }));
    EXPECT_EQ(its.payloads, std::vector<std::string>{"again"});
}

// Threads send and receive on rings of their own at a time.
TEST_P(XdpDeviceTest, RingsOfSeveralThreads) {
    constexpr unsigned kThreads = 4, kFrames = 4000;
    start(1, 1500, 1024, kThreads);
    std::vector<std::unique_ptr<ring::Ring>> rings;
    for (unsigned i = 1; i < kThreads; i++) rings.push_back(another(i));
    rings.insert(rings.begin(), std::move(ring));
    std::vector<Sink> sinks(kThreads);
    for (unsigned i = 0; i < kThreads; i++)
        ASSERT_TRUE(
            rings[i]->attach(flow(static_cast<std::uint16_t>(kPort + i)), &sinks[i], ring::Share::latest));
    std::thread echo([&] {
        std::string text(2048, 0);
        for (unsigned i = 0; i < kThreads * kFrames; i++) {
            pollfd p{peer.get(), POLLIN, 0};
            if (poll(&p, 1, 5000 * patience()) != 1) break;
            const ssize_t n = recv(peer.get(), text.data(), text.size(), 0);
            const auto to = static_cast<std::uint16_t>(kPort + (text[0] - '0'));
            if (n > 0) peer_sends(peer, text.substr(0, static_cast<std::size_t>(n)), to);
        }
    });
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; i++)
        threads.emplace_back([&, i] {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20) * patience();
            for (unsigned sent = 0; sinks[i].payloads.size() < kFrames;) {
                if (sent < kFrames && sent < sinks[i].payloads.size() + 32) {
                    if (send(*rings[i], std::to_string(i) + "." + std::to_string(sent)) == 0) sent++;
                } else {
                    rings[i]->flush();
                    if (rings[i]->poll() == 0) std::this_thread::yield();
                }
                if (std::chrono::steady_clock::now() > end) break;
            }
        });
    for (std::thread& t : threads) t.join();
    echo.join();
    for (unsigned i = 0; i < kThreads; i++) {
        ASSERT_EQ(sinks[i].payloads.size(), kFrames) << i;
        for (unsigned n = 0; n < kFrames; n++)
            ASSERT_EQ(sinks[i].payloads[n], std::to_string(i) + "." + std::to_string(n));
    }
    while (rings.size() > 1) rings.pop_back();  // the first one last
}

TEST_P(XdpDeviceTest, InterfaceHasOneHolder) {
    start();
    On host(*hosts, Host::a);
    auto second = open_device(GetParam(), 1, 1500);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, EBUSY);
    EXPECT_NE(second.error().what.find("veth1"), std::string::npos) << second.error().what;
    ring.reset();
    auto third = open_ring(GetParam(), 1, 1500);
    EXPECT_TRUE(third) << third.error().what;
}

TEST_P(XdpDeviceTest, KilledProcessLeavesNothingBehind) {
    make_hosts();
    On host(*hosts, Host::a);
    auto holder = hosts->run(Host::a, [mode = GetParam()] {
        Sink own;
        auto opened = open_ring(mode, 1, 1500);
        if (!opened || !(*opened)->attach(flow(kPort), &own, ring::Share::latest)) return 1;
        while (own.payloads.empty()) (*opened)->poll();
        if (write(STDOUT_FILENO, "received", 8) != 8) return 1;
        for (;;) pause();
    });
    ASSERT_TRUE(hosts->wait_offloaded(Host::a, true));
    // The rule comes a little after the program; until then the kernel's socket takes the frames.
    while (holder.running() && holder.out().empty()) {
        peer_sends("x");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(holder.out(), "received");
    char text[10];
    while (recv(shadow.get(), text, sizeof text, MSG_DONTWAIT) >= 0) {
    }
    holder.kill(SIGKILL);
    EXPECT_EQ(holder.wait().signal, SIGKILL);
    ASSERT_TRUE(hosts->wait_offloaded(Host::a, false));
    peer_sends("for the kernel");
    EXPECT_EQ(receive(shadow), "for the kernel");

    auto opened = open_ring(GetParam(), 1, 1500);
    ASSERT_TRUE(opened) << opened.error().what;
    ring = std::move(*opened);
    attach(flow(kPort), sink);
    peer_sends("for the next");
    ASSERT_TRUE(poll_until([&] { return !sink.payloads.empty(); }));
    EXPECT_EQ(sink.payloads, std::vector<std::string>{"for the next"});
}

INSTANTIATE_TEST_SUITE_P(Modes, XdpDeviceTest, testing::Values(Mode::skb, Mode::drv, Mode::tc),
                         [](auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace vma::verbs::xdp
