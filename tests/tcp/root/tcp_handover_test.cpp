// SPDX-License-Identifier: BSD-2-Clause
// A live connection between two kernels is torn out of one of them (its state read in repair mode, its socket
// closed without a packet) and put into a fresh socket by hand_over(), in every state a connection can be in.
// The peer must notice nothing: every byte once and in order, no reset, and the end of the connection as if
// nothing had happened.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/verbs/xdp/xdp_device.h"
#include "tests/support/capabilities.h"
#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/process.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace vma::tcp {
namespace {

using testing_support::Fd;
using testing_support::Host;
using testing_support::On;
using testing_support::patience;
using testing_support::TwoHosts;
using testing_support::WithoutCapabilities;
using OwnFin = KernelState::OwnFin;

constexpr std::uint16_t kPort = 7000;

template <class Condition>
bool eventually(Condition reached) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10) * patience();
    while (!reached()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

sockaddr_in address(Host host, std::uint16_t port) {
    return testing_support::socket_address(TwoHosts::address(host), port);
}
sockaddr* any(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }

std::string text(const sockaddr_in& a) {
    return std::string(inet_ntoa(a.sin_addr)) + ":" + std::to_string(ntohs(a.sin_port));
}
std::string own_address(int fd) {
    sockaddr_in a{};
    socklen_t length = sizeof a;
    getsockname(fd, any(a), &length);
    return text(a);
}
std::string peer_address(int fd) {
    sockaddr_in a{};
    socklen_t length = sizeof a;
    return getpeername(fd, any(a), &length) == 0 ? text(a) : strerror(errno);
}

int option(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) == 0 ? value : -errno;
}
void set_option(int fd, int level, int name, int value) {
    ASSERT_EQ(setsockopt(fd, level, name, &value, sizeof value), 0)
        << level << '/' << name << strerror(errno);
}
tcp_info info(int fd) {
    tcp_info result{};
    socklen_t length = sizeof result;
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &result, &length), 0) << strerror(errno);
    return result;
}
int state_of(int fd) { return info(fd).tcpi_state; }
int queued(int fd, unsigned long request) {
    int n = -1;
    EXPECT_EQ(ioctl(fd, request, &n), 0);
    return n;
}
verbs::MacAddress mac_of(const std::string& interface) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, interface.c_str(), sizeof request.ifr_name - 1);
    if (ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) throw std::runtime_error("SIOCGIFHWADDR");
    verbs::MacAddress mac;
    std::memcpy(mac.data(), request.ifr_hwaddr.sa_data, mac.size());
    return mac;
}
Fd tcp_socket() { return Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// One direction of a connection: bytes that tell their place, and a count at each end.
struct Stream {
    unsigned seed;
    std::size_t written = 0, read = 0;

    char at(std::size_t i) const { return static_cast<char>((i * 2654435761u + seed) >> 13); }
    std::string next(std::size_t length) {
        std::string bytes(length, '\0');
        for (char& c : bytes) c = at(written++);
        return bytes;
    }
    // Writes `length` bytes into `fd` as far as they go; returns how many went.
    std::size_t write(int fd, std::size_t length) {
        const std::size_t before = written;
        std::string bytes = next(length);
        ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        written = before + static_cast<std::size_t>(std::max<ssize_t>(n, 0));
        return written - before;
    }
    // Reads what has been written so far, waiting for it.
    testing::AssertionResult read_all(int fd) {
        std::vector<char> buffer(1 << 16);
        while (read < written) {
            pollfd p{fd, POLLIN, 0};
            if (poll(&p, 1, 10000 * patience()) != 1)
                return testing::AssertionFailure()
                       << "nothing more after " << read << " of " << written << " bytes";
            const ssize_t n = recv(fd, buffer.data(), std::min(buffer.size(), written - read), 0);
            if (n <= 0)
                return testing::AssertionFailure()
                       << "end or error after " << read << ": " << strerror(errno);
            for (ssize_t i = 0; i < n; i++, read++)
                if (buffer[static_cast<std::size_t>(i)] != at(read))
                    return testing::AssertionFailure() << "wrong byte at " << read;
        }
        return testing::AssertionSuccess();
    }
};

// The end of the stream, and no error.
testing::AssertionResult ends(int fd) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, 10000 * patience()) != 1) return testing::AssertionFailure() << "no end";
    char c;
    const ssize_t n = recv(fd, &c, 1, 0);
    if (n == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << (n > 0 ? "data" : strerror(errno));
}

// A connection's state with the memory it points to.
struct Saved {
    KernelState state;
    std::string send, receive;
    std::vector<iovec> send_pieces, receive_pieces;

    // As an engine would have it: in pieces of all sizes, some empty.
    static std::vector<iovec> pieces(std::string& bytes, std::size_t size) {
        std::vector<iovec> result;
        for (std::size_t at = 0; at < bytes.size(); at += size) {
            result.push_back({bytes.data() + at, std::min(size, bytes.size() - at)});
            if (result.size() % 7 == 0) result.push_back({bytes.data() + at, 0});
        }
        return result;
    }
};

std::string peek(int fd, int queue, std::size_t length) {
    set_option(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);
    std::string bytes(length, '\0');
    if (length == 0) return bytes;
    EXPECT_EQ(recv(fd, bytes.data(), length, MSG_PEEK | MSG_DONTWAIT), static_cast<ssize_t>(length))
        << strerror(errno);
    return bytes;
}

// What the engine would know of the connection. The socket is left in repair mode: closing it sends nothing.
Saved tear_out(int fd, int peer) {
    Saved saved;
    KernelState& s = saved.state;
    sockaddr_in local{}, remote{};
    socklen_t length = sizeof local;
    EXPECT_EQ(getsockname(fd, any(local), &length), 0);
    length = sizeof remote;
    if (getpeername(fd, any(remote), &length) != 0) {  // it is gone after both FINs
        EXPECT_EQ(getsockname(peer, any(remote), &length), 0);
    }
    s.ends = {net::Endpoint(local), net::Endpoint(remote)};
    const tcp_info now = info(fd);
    set_option(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);

    const int fin_state = now.tcpi_state;
    s.peer_fin = fin_state == TCP_CLOSE_WAIT || fin_state == TCP_CLOSING || fin_state == TCP_LAST_ACK;
    s.peer_fin_first = fin_state == TCP_CLOSE_WAIT || fin_state == TCP_LAST_ACK;
    const bool fin_queued =
        fin_state == TCP_FIN_WAIT1 || fin_state == TCP_CLOSING || fin_state == TCP_LAST_ACK;
    if (fin_state == TCP_FIN_WAIT2) s.own_fin = OwnFin::acknowledged;

    // The kernel counts a FIN as a byte of the queue.
    auto not_acked = static_cast<std::size_t>(queued(fd, SIOCOUTQ)),
         not_sent = static_cast<std::size_t>(queued(fd, SIOCOUTQNSD));
    set_option(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
    auto end = static_cast<std::uint32_t>(option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ));
    if (fin_queued) {
        s.own_fin = not_sent > 0 ? OwnFin::wanted : OwnFin::sent;
        not_acked--;
        if (not_sent > 0) not_sent--;
    }
    if (fin_queued || s.own_fin == OwnFin::acknowledged) end--;
    s.snd_una = end - static_cast<std::uint32_t>(not_acked);
    s.snd_nxt = end - static_cast<std::uint32_t>(not_sent);
    saved.send = peek(fd, TCP_SEND_QUEUE, not_acked);

    set_option(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE);
    s.rcv_nxt = static_cast<std::uint32_t>(option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ)) - (s.peer_fin ? 1 : 0);
    saved.receive = peek(fd, TCP_RECV_QUEUE, static_cast<std::size_t>(queued(fd, SIOCINQ)));

    s.mss = static_cast<std::uint16_t>(option(fd, IPPROTO_TCP, TCP_MAXSEG));
    s.window_scaling = (now.tcpi_options & TCPI_OPT_WSCALE) != 0;
    s.snd_wscale = now.tcpi_snd_wscale;
    s.rcv_wscale = now.tcpi_rcv_wscale;
    s.sack = (now.tcpi_options & TCPI_OPT_SACK) != 0;
    s.timestamps = (now.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0;
    s.ts_value = static_cast<std::uint32_t>(option(fd, IPPROTO_TCP, TCP_TIMESTAMP));
    s.ts_recent = static_cast<std::uint32_t>(option(peer, IPPROTO_TCP, TCP_TIMESTAMP));

    s.srtt = Usec(now.tcpi_rtt);

    tcp_repair_window window{};
    length = sizeof window;
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, &length), 0) << strerror(errno);
    s.snd_wnd = window.snd_wnd;
    s.snd_wl1 = window.snd_wl1;
    s.max_window = window.max_window;
    s.rcv_wnd = window.rcv_wnd;
    s.rcv_wup = window.rcv_wup;

    saved.send_pieces = Saved::pieces(saved.send, 1000);
    saved.receive_pieces = Saved::pieces(saved.receive, 1447);
    return saved;
}

class TcpHandover : public testing::Test {
  protected:
    enum class Opening { active, passive };

    void SetUp() override { hosts.emplace(); }
    void TearDown() override {
        EXPECT_EQ(segments(Host::a, "OutRsts"), 0) << "host a answered with a reset";
        EXPECT_EQ(segments(Host::b, "OutRsts"), 0) << "host b was surprised";
    }

    void sysctl(const std::string& name, int value) {
        for (Host host : {Host::a, Host::b}) {
            On there(*hosts, host);
            std::ofstream file("/proc/sys/net/ipv4/" + name);
            file << value << std::flush;
            ASSERT_TRUE(file) << name;
        }
    }

    // A counter of the host's TCP: which field that is stands in the line above.
    long segments(Host host, const std::string& which) {
        On there(*hosts, host);
        std::ifstream file("/proc/thread-self/net/snmp");
        std::string name, value, names, values;
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("Tcp:")) (names.empty() ? names : values) = line;
        std::istringstream n(names), v(values);
        while (n >> name && v >> value)
            if (name == which) return std::stol(value);
        return -1;
    }

    // `a` is the end that will move; `prepare` sees each socket before it connects or listens.
    void establish(Opening opening, const std::function<void(Host, int)>& prepare = {}) {
        const Host server = opening == Opening::passive ? Host::a : Host::b;
        const Host client = server == Host::a ? Host::b : Host::a;
        Fd to;
        {
            On there(*hosts, server);
            listener = tcp_socket();
            if (prepare) prepare(server, listener.get());
            sockaddr_in self = address(server, kPort);
            ASSERT_EQ(bind(listener.get(), any(self), sizeof self), 0) << strerror(errno);
            ASSERT_EQ(listen(listener.get(), 10), 0);
        }
        {
            On there(*hosts, client);
            to = tcp_socket();
            if (prepare) prepare(client, to.get());
            sockaddr_in peer = address(server, kPort);
            connect(to.get(), any(peer), sizeof peer);
        }
        pollfd p{listener.get(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 5000 * patience()), 1);
        Fd from(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        ASSERT_TRUE(from);
        ASSERT_TRUE(eventually([&] { return state_of(to.get()) == TCP_ESTABLISHED; }));
        a = server == Host::a ? std::move(from) : std::move(to);
        b = server == Host::a ? std::move(to) : std::move(from);
    }

    // Nothing the host sends arrives any more: its neighbour has moved away.
    void silence(Host host) { peer_is_at(host, "02:00:00:00:00:99"); }
    void unsilence(Host host) {
        On there(*hosts, other(host));
        const verbs::MacAddress mac = mac_of(TwoHosts::interface());
        char text[18];
        std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
                      mac[4], mac[5]);
        peer_is_at(host, text);
    }
    void peer_is_at(Host host, const std::string& mac) {
        hosts->ip(host, {"neigh", "replace", TwoHosts::address(other(host)), "lladdr", mac, "dev",
                         TwoHosts::interface(), "nud", "permanent"});
    }
    static Host other(Host host) { return host == Host::a ? Host::b : Host::a; }

    // The move. While nobody has the connection, host b is not heard: in life the flow rule sees to that.
    void move(const std::function<void(int)>& prepare = {}) {
        silence(Host::b);
        saved = tear_out(a.get(), b.get());
        a.reset();
        {
            On there(*hosts, Host::a);
            a = tcp_socket();
        }
        if (prepare) prepare(a.get());
        install();
    }
    void install() {
        install([&] { unsilence(Host::b); });
    }
    void install(const std::function<void()>& unsteer) {
        saved.state.send_queue = saved.send_pieces;
        saved.state.receive_queue = saved.receive_pieces;
        On there(*hosts, Host::a);
        errno = 4711;
        int calls = 0;
        auto moved = hand_over(a.get(), saved.state, [&] {
            calls++;
            unsteer();
            errno = 4711;
        });
        EXPECT_EQ(errno, 4711);
        EXPECT_EQ(calls, 1);
        ASSERT_TRUE(moved) << moved.error().what << ": " << strerror(moved.error().code);
    }

    void converse() {
        for (std::size_t size : {1u, 1000u, 20000u, 7u}) {
            ASSERT_EQ(up.write(a.get(), size), size) << strerror(errno);
            ASSERT_TRUE(up.read_all(b.get()));
            ASSERT_EQ(down.write(b.get(), size), size) << strerror(errno);
            ASSERT_TRUE(down.read_all(a.get()));
        }
    }
    // More than any window, both ways at a time.
    void bulk(std::size_t length = 4 << 20) {
        const std::size_t up_to = up.written + length, down_to = down.written + length;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20) * patience();
        while (up.written < up_to || down.written < down_to) {
            if (up.written < up_to) up.write(a.get(), std::min<std::size_t>(up_to - up.written, 100000));
            if (down.written < down_to)
                down.write(b.get(), std::min<std::size_t>(down_to - down.written, 100000));
            ASSERT_TRUE(up.read_all(b.get()));
            ASSERT_TRUE(down.read_all(a.get()));
            ASSERT_LT(std::chrono::steady_clock::now(), end);
        }
    }
    // Both ends close; neither is left behind.
    void finish() {
        ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0) << strerror(errno);
        ASSERT_TRUE(ends(b.get()));
        ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0) << strerror(errno);
        ASSERT_TRUE(ends(a.get()));
        EXPECT_TRUE(eventually([&] { return state_of(b.get()) == TCP_CLOSE; }));
        EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_ERROR), 0);
        EXPECT_EQ(option(b.get(), SOL_SOCKET, SO_ERROR), 0);
    }

    std::optional<TwoHosts> hosts;
    Fd listener, a, b;
    Stream up{1}, down{2};  // from a to b, from b to a
    Saved saved;
};

TEST_F(TcpHandover, IsPossibleForRoot) { EXPECT_TRUE(handover_possible()); }

// ---- what was negotiated ----

struct Negotiated {
    const char* name;
    int scaling, timestamps, sack;
};
class TcpHandoverOptions : public TcpHandover, public testing::WithParamInterface<Negotiated> {};

TEST_P(TcpHandoverOptions, AreKept) {
    sysctl("tcp_window_scaling", GetParam().scaling);
    sysctl("tcp_timestamps", GetParam().timestamps);
    sysctl("tcp_sack", GetParam().sack);
    for (Opening opening : {Opening::active, Opening::passive}) {
        SCOPED_TRACE(opening == Opening::active ? "connected" : "accepted");
        up = {1};
        down = {2};
        establish(opening);
        converse();
        const tcp_info before = info(a.get());
        const std::string own = own_address(a.get()), peer = peer_address(a.get());
        // By the time of the move the host would negotiate something else: only the connection's own values
        // count.
        for (const char* name : {"tcp_window_scaling", "tcp_timestamps", "tcp_sack"}) sysctl(name, 1);
        move();
        const tcp_info after = info(a.get());
        EXPECT_EQ(own_address(a.get()), own);
        EXPECT_EQ(peer_address(a.get()), peer);
        EXPECT_EQ(after.tcpi_snd_wscale, before.tcpi_snd_wscale);
        EXPECT_EQ(after.tcpi_rcv_wscale, before.tcpi_rcv_wscale);
        constexpr int kCompared = TCPI_OPT_SACK | TCPI_OPT_TIMESTAMPS;
        EXPECT_EQ(after.tcpi_options & kCompared, before.tcpi_options & kCompared);
        // The report subtracts the time stamp option if the host would use it, whether this connection does
        // or not.
        EXPECT_LE(after.tcpi_snd_mss, before.tcpi_snd_mss);
        EXPECT_GE(after.tcpi_snd_mss + 12, before.tcpi_snd_mss);
        converse();
        ASSERT_NO_FATAL_FAILURE(bulk());
        finish();
        for (auto [name, value] : {std::pair{"tcp_window_scaling", GetParam().scaling},
                                   {"tcp_timestamps", GetParam().timestamps},
                                   {"tcp_sack", GetParam().sack}})
            sysctl(name, value);
        a.reset();
        b.reset();
        listener.reset();
    }
}

INSTANTIATE_TEST_SUITE_P(All, TcpHandoverOptions,
                         testing::Values(Negotiated{"all", 1, 1, 1}, Negotiated{"none", 0, 0, 0},
                                         Negotiated{"scaling", 1, 0, 0}, Negotiated{"timestamps", 0, 1, 0},
                                         Negotiated{"sack", 0, 0, 1}),
                         [](const auto& param) { return param.param.name; });

// ---- queues ----

TEST_F(TcpHandover, UnreadDataIsRead) {
    establish(Opening::passive);
    converse();
    ASSERT_EQ(down.write(b.get(), 60000), 60000u);
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCINQ) == 60000; }));
    move();
    EXPECT_EQ(queued(a.get(), SIOCINQ), 60000);
    ASSERT_EQ(down.write(b.get(), 10), 10u);
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    finish();
}

TEST_F(TcpHandover, DataLostOnItsWayIsSentAgain) {
    establish(Opening::passive);
    converse();
    silence(Host::a);
    ASSERT_EQ(up.write(a.get(), 10000), 10000u);
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCOUTQNSD) == 0; }));
    move();
    EXPECT_EQ(saved.send.size(), 10000u);
    EXPECT_EQ(saved.state.snd_nxt - saved.state.snd_una, 10000u);
    unsilence(Host::a);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCOUTQ) == 0; }));
    converse();
    finish();
}

TEST_F(TcpHandover, DataWhoseAcknowledgementWasLostComesOnce) {
    establish(Opening::active);
    converse();
    silence(Host::b);
    ASSERT_EQ(up.write(a.get(), 10000), 10000u);
    ASSERT_TRUE(eventually([&] { return queued(b.get(), SIOCINQ) == 10000; }));
    move();
    EXPECT_EQ(saved.send.size(), 10000u);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCOUTQ) == 0; }));
    converse();
    finish();
}

// What the peer sends while nobody has the connection is lost, and comes again.
TEST_F(TcpHandover, DataSentInBetweenComesAgain) {
    establish(Opening::active);
    converse();
    silence(Host::b);
    ASSERT_EQ(down.write(b.get(), 30000), 30000u);
    move();
    EXPECT_EQ(saved.receive.size(), 0u);
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    finish();
}

// Acknowledged, sent and never sent data at once, beside unread data; buffers far smaller than the queues.
TEST_F(TcpHandover, LargeQueuesMoveWhole) {
    constexpr int kBuffer = 30000;
    establish(Opening::passive, [](Host host, int fd) {
        if (host == Host::b) set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000);
        if (host == Host::a) set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, 2 << 20);
        if (host == Host::a) set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, 2 << 20);
    });
    converse();
    // The peer does not read: its window fills, the rest is never sent.
    std::size_t queued_up = 0, queued_down = 0;
    while (queued_up < 1300000 && eventually([&] { return up.write(a.get(), 100000) != 0; }))
        queued_up = static_cast<std::size_t>(queued(a.get(), SIOCOUTQNSD));
    while (queued_down < 500000 && eventually([&] { return down.write(b.get(), 100000) != 0; }))
        queued_down = static_cast<std::size_t>(queued(a.get(), SIOCINQ));
    ASSERT_GE(queued_up, 1300000u);
    move([&](int fd) {
        set_option(fd, SOL_SOCKET, SO_SNDBUF, kBuffer);
        set_option(fd, SOL_SOCKET, SO_RCVBUF, kBuffer);
    });
    EXPECT_GE(saved.send.size() - (saved.state.snd_nxt - saved.state.snd_una), 1u << 20);
    EXPECT_GE(saved.receive.size(), 500000u);
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_SNDBUF), 2 * kBuffer);
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_RCVBUF), 2 * kBuffer);
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_BUF_LOCK), 3);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    bulk(1 << 20);
    finish();
}

// As above, where the program chose no sizes: what was needed for the move must not end the kernel's own
// tuning.
TEST_F(TcpHandover, BuffersNotChosenStayTheKernels) {
    establish(Opening::active);
    set_option(a.get(), SOL_SOCKET, SO_SNDBUFFORCE, 2 << 20);
    while (up.write(a.get(), 100000) != 0) continue;
    move();
    EXPECT_GT(saved.send.size(), 1u << 20);
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_BUF_LOCK), 0);
    EXPECT_LT(option(a.get(), SOL_SOCKET, SO_SNDBUF), 1 << 20);
    ASSERT_TRUE(up.read_all(b.get()));
    bulk(1 << 20);
    finish();
}

TEST_F(TcpHandover, UnsentDataStartsWithOrWithoutNagle) {
    for (int nodelay : {0, 1}) {
        SCOPED_TRACE(nodelay);
        establish(Opening::active);
        converse();
        // Corked, a small piece stays unsent. The kernel would send it on its own only after 200 ms.
        set_option(a.get(), IPPROTO_TCP, TCP_CORK, 1);
        ASSERT_EQ(up.write(a.get(), 100), 100u);
        EXPECT_EQ(queued(a.get(), SIOCOUTQNSD), 100);
        move([&](int fd) { set_option(fd, IPPROTO_TCP, TCP_NODELAY, nodelay); });
        EXPECT_EQ(option(a.get(), IPPROTO_TCP, TCP_NODELAY), nodelay);
        ASSERT_TRUE(up.read_all(b.get()));
        converse();
        finish();
        a.reset();
        b.reset();
        listener.reset();
        up = {1};
        down = {2};
    }
}

// ---- ends ----

TEST_F(TcpHandover, PeerHasFinished) {
    for (const char* device : {"", "veth1"}) {
        SCOPED_TRACE(device);
        establish(Opening::passive);
        converse();
        ASSERT_EQ(down.write(b.get(), 5000), 5000u);
        ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
        ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE_WAIT; }));
        ASSERT_TRUE(eventually([&] { return state_of(b.get()) == TCP_FIN_WAIT2; }));
        move([&](int fd) {
            ASSERT_EQ(
                setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, static_cast<socklen_t>(strlen(device))),
                0);
        });
        EXPECT_EQ(state_of(a.get()), TCP_CLOSE_WAIT);
        char name[IFNAMSIZ] = {};
        socklen_t length = sizeof name;
        EXPECT_EQ(getsockopt(a.get(), SOL_SOCKET, SO_BINDTODEVICE, name, &length), 0);
        EXPECT_STREQ(name, device);
        ASSERT_TRUE(down.read_all(a.get()));
        ASSERT_TRUE(ends(a.get()));
        ASSERT_EQ(up.write(a.get(), 50000), 50000u);
        ASSERT_TRUE(up.read_all(b.get()));
        ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
        ASSERT_TRUE(ends(b.get()));
        EXPECT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE; }));
        a.reset();
        b.reset();
        listener.reset();
        up = {1};
        down = {2};
    }
}

// The peer has finished and its window is full: CLOSE-WAIT with data of all kinds.
TEST_F(TcpHandover, PeerHasFinishedAndWaitsForMuch) {
    establish(Opening::passive, [](Host host, int fd) {
        if (host == Host::b) set_option(fd, SOL_SOCKET, SO_RCVBUF, 50000);
        if (host == Host::a) set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, 2 << 20);
    });
    ASSERT_EQ(down.write(b.get(), 5000), 5000u);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    while (queued(a.get(), SIOCOUTQNSD) < 1000000) up.write(a.get(), 100000);
    ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE_WAIT; }));
    move();
    EXPECT_EQ(state_of(a.get()), TCP_CLOSE_WAIT);
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(ends(b.get()));
    ASSERT_TRUE(down.read_all(a.get()));
    ASSERT_TRUE(ends(a.get()));
    EXPECT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE; }));
}

TEST_F(TcpHandover, OwnFinWaitsBehindTheData) {
    establish(Opening::active, [](Host host, int fd) {
        if (host == Host::b) set_option(fd, SOL_SOCKET, SO_RCVBUF, 50000);
        if (host == Host::a) set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, 2 << 20);
    });
    while (queued(a.get(), SIOCOUTQNSD) < 1000000) up.write(a.get(), 100000);
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    move();
    EXPECT_EQ(saved.state.own_fin, OwnFin::wanted);
    EXPECT_EQ(state_of(a.get()), TCP_FIN_WAIT1);
    EXPECT_EQ(send(a.get(), "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(ends(b.get()));
    ASSERT_EQ(down.write(b.get(), 50000), 50000u);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(down.read_all(a.get()));
    ASSERT_TRUE(ends(a.get()));
}

TEST_F(TcpHandover, OwnFinLostOnItsWay) {
    establish(Opening::active);
    converse();
    silence(Host::a);
    ASSERT_EQ(up.write(a.get(), 5000), 5000u);
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    move();
    EXPECT_EQ(saved.state.own_fin, OwnFin::sent);
    EXPECT_EQ(state_of(a.get()), TCP_FIN_WAIT1);
    unsilence(Host::a);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_TRUE(ends(b.get()));
    ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_FIN_WAIT2; }));
    ASSERT_EQ(down.write(b.get(), 5000), 5000u);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(down.read_all(a.get()));
    ASSERT_TRUE(ends(a.get()));
}

TEST_F(TcpHandover, OwnFinAcknowledged) {
    establish(Opening::passive);
    converse();
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_FIN_WAIT2; }));
    ASSERT_EQ(down.write(b.get(), 5000), 5000u);
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCINQ) == 5000; }));
    move();
    EXPECT_EQ(saved.state.own_fin, OwnFin::acknowledged);
    EXPECT_TRUE(eventually([&] { return state_of(a.get()) == TCP_FIN_WAIT2; }));
    ASSERT_TRUE(ends(b.get()));
    ASSERT_EQ(down.write(b.get(), 50000), 50000u);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(down.read_all(a.get()));
    ASSERT_TRUE(ends(a.get()));
    EXPECT_TRUE(eventually([&] { return state_of(b.get()) == TCP_CLOSE; }));
}

TEST_F(TcpHandover, LastAck) {
    establish(Opening::passive);
    converse();
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(ends(a.get()));
    silence(Host::a);
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    ASSERT_EQ(state_of(a.get()), TCP_LAST_ACK);
    move();
    EXPECT_EQ(state_of(a.get()), TCP_LAST_ACK);
    ASSERT_TRUE(ends(a.get()));
    unsilence(Host::a);
    ASSERT_TRUE(ends(b.get()));
    EXPECT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE; }));
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_ERROR), 0);
}

TEST_F(TcpHandover, BothFinsAtTheSameTime) {
    establish(Opening::active);
    converse();
    silence(Host::a);
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSING; }));
    move();
    EXPECT_EQ(state_of(a.get()), TCP_CLOSING);
    ASSERT_TRUE(ends(a.get()));
    unsilence(Host::a);
    ASSERT_TRUE(ends(b.get()));
    EXPECT_TRUE(
        eventually([&] { return state_of(a.get()) == TCP_CLOSE; }));  // in TIME-WAIT, which no socket shows
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_ERROR), 0);
}

TEST_F(TcpHandover, ReadingWasShut) {
    establish(Opening::active);
    silence(Host::b);
    saved = tear_out(a.get(), b.get());
    a.reset();
    {
        On there(*hosts, Host::a);
        a = tcp_socket();
    }
    saved.state.read_shut = true;
    install();
    ASSERT_TRUE(ends(a.get()));
    ASSERT_EQ(up.write(a.get(), 5000), 5000u);
    ASSERT_TRUE(up.read_all(b.get()));
}

// Of a connection that is over the kernel's socket has what the program may still ask for. Its numbers are
// made up, so the peer, whose kernel would answer them, must not hear of it: not even where the segments on
// loopback are late.
TEST_F(TcpHandover, WhatIsOverSaysNothingToThePeer) {
    for (const bool late : {false, true}) {
        SCOPED_TRACE(late);
        up = {1};
        down = {2};
        establish(Opening::passive);
        ASSERT_EQ(down.write(b.get(), 5000), 5000u);
        ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
        ASSERT_TRUE(eventually([&] { return state_of(b.get()) == TCP_FIN_WAIT2; }));
        saved = tear_out(a.get(), b.get());
        a.reset();
        {
            On there(*hosts, Host::a);
            a = tcp_socket();
        }
        int interface = 0;
        {
            On there(*hosts, Host::a);
            interface = static_cast<int>(if_nametoindex(TwoHosts::interface().c_str()));
        }
        set_option(a.get(), SOL_SOCKET, SO_BINDTOIFINDEX, interface);
        KernelState& s = saved.state;
        s.over = true;
        s.snd_una = s.snd_nxt = 1;
        s.rcv_nxt = s.rcv_wup = s.snd_wl1 = 5001;
        s.rcv_wnd = s.snd_wnd = s.max_window = 0xffff;
        s.timestamps = false;
        // The second segment, a reset, comes some ticks of the kernel's clock after the first one, a FIN.
        const auto queue = [&](std::vector<std::string> how) {
            how.insert(how.begin(), {"tc", "-n", hosts->netns(Host::a), "qdisc"});
            how.insert(how.begin() + 5, {"dev", "lo", "root"});
            testing_support::tool(how);
        };
        if (late) queue({"add", "tbf", "rate", "40kbit", "burst", "64", "limit", "2000"});
        const long before = segments(Host::b, "InSegs");
        install([] {});
        EXPECT_EQ(segments(Host::b, "InSegs"), before);
        if (late) queue({"del"});
        EXPECT_EQ(state_of(a.get()), TCP_CLOSE);
        EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_ERROR), 0);
        EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_BINDTOIFINDEX), interface);
        ASSERT_TRUE(down.read_all(a.get()));
        ASSERT_TRUE(ends(a.get()));
        EXPECT_EQ(state_of(b.get()), TCP_FIN_WAIT2);
        a.reset();
        b.reset();
        listener.reset();
    }
}

// Without loopback the kernel cannot be shown segments of the past: less exact, but nothing is lost.
TEST_F(TcpHandover, WithoutLoopback) {
    establish(Opening::passive);
    converse();
    ASSERT_EQ(down.write(b.get(), 5000), 5000u);
    ASSERT_EQ(shutdown(b.get(), SHUT_WR), 0);
    ASSERT_TRUE(eventually([&] { return state_of(a.get()) == TCP_CLOSE_WAIT; }));
    silence(Host::b);
    ASSERT_EQ(up.write(a.get(), 10000), 10000u);
    ASSERT_TRUE(eventually([&] { return queued(b.get(), SIOCINQ) == 10000; }));
    hosts->ip(Host::a, {"link", "set", "lo", "down"});
    move();
    ASSERT_TRUE(down.read_all(a.get()));
    ASSERT_TRUE(ends(a.get()));
    ASSERT_EQ(up.write(a.get(), 5000), 5000u);
    ASSERT_TRUE(up.read_all(b.get()));
    ASSERT_EQ(shutdown(a.get(), SHUT_WR), 0);
    ASSERT_TRUE(ends(b.get()));
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_ERROR), 0);
}

// ---- what the socket brings along ----

TEST_F(TcpHandover, TheSocketsOwnOptionsStay) {
    establish(Opening::active);
    converse();
    move([&](int fd) {
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
        set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 12345);
        set_option(fd, IPPROTO_IP, IP_TOS, 0x10);
        sockaddr_in self = net::ipv4_name(saved.state.ends.local.address.v4(), saved.state.ends.local.port);
        ASSERT_EQ(bind(fd, any(self), sizeof self), 0) << strerror(errno);
    });
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_REUSEADDR), 1);
    EXPECT_EQ(option(a.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(a.get(), IPPROTO_TCP, TCP_KEEPIDLE), 77);
    EXPECT_EQ(option(a.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 12345);
    EXPECT_EQ(option(a.get(), IPPROTO_IP, IP_TOS), 0x10);
    converse();
    finish();
}

TEST_F(TcpHandover, BoundToAnyAddress) {
    establish(Opening::active);
    converse();
    move([&](int fd) {
        sockaddr_in self = net::ipv4_name(saved.state.ends.local.address.v4(), saved.state.ends.local.port);
        self.sin_addr.s_addr = INADDR_ANY;
        ASSERT_EQ(bind(fd, any(self), sizeof self), 0) << strerror(errno);
    });
    converse();
    finish();
}

// ---- refusals: the socket is as it was, the connection can go on ----

class TcpHandoverRefused : public TcpHandover {
  protected:
    void expect_refused(int fd, int code) {
        On there(*hosts, Host::a);
        errno = 4711;
        auto moved = hand_over(fd, saved.state, [] { ADD_FAILURE() << "steering must stay"; });
        EXPECT_EQ(errno, 4711);
        ASSERT_FALSE(moved);
        EXPECT_EQ(moved.error().code, code) << moved.error().what;
        EXPECT_NE(moved.error().what, "");
    }
    void expect_untouched(int fd) {
        EXPECT_EQ(state_of(fd), TCP_CLOSE);
        EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
        EXPECT_EQ(option(fd, SOL_SOCKET, SO_REUSEADDR), 1);
        EXPECT_EQ(option(fd, SOL_SOCKET, SO_BUF_LOCK), 0);
        char c;
        EXPECT_EQ(recv(fd, &c, 1, MSG_DONTWAIT), -1);
        EXPECT_EQ(errno, ENOTCONN);
    }
};

TEST_F(TcpHandoverRefused, WhileTheKernelHasThisConnection) {
    establish(Opening::active);
    converse();
    ASSERT_EQ(down.write(b.get(), 10000), 10000u);
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCINQ) == 10000; }));
    silence(Host::b);
    saved = tear_out(a.get(), b.get());
    Fd fresh;
    {
        On there(*hosts, Host::a);
        fresh = tcp_socket();
    }
    set_option(fresh.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    expect_refused(fresh.get(), EADDRNOTAVAIL);
    expect_untouched(fresh.get());
    expect_refused(a.get(), EISCONN);
    // The second attempt, once the way is free.
    a = std::move(fresh);
    install();
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    finish();
}

TEST_F(TcpHandoverRefused, AfterTheConnectionWasMade) {
    establish(Opening::active);
    converse();
    ASSERT_EQ(down.write(b.get(), 10000), 10000u);
    ASSERT_TRUE(eventually([&] { return queued(a.get(), SIOCINQ) == 10000; }));
    silence(Host::b);
    saved = tear_out(a.get(), b.get());
    a.reset();
    {
        On there(*hosts, Host::a);
        a = tcp_socket();
    }
    set_option(a.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    const std::string before = saved.receive;
    saved.receive_pieces.assign(1, {reinterpret_cast<void*>(16), saved.receive.size()});  // no memory there
    saved.state.receive_queue = saved.receive_pieces;
    expect_refused(a.get(), EFAULT);
    expect_untouched(a.get());
    saved.receive_pieces = Saved::pieces(saved.receive, 1000);
    // And while queueing what was never sent.
    std::vector<iovec> nowhere(1, {reinterpret_cast<void*>(16), 1000});
    saved.state.receive_queue = saved.receive_pieces;
    saved.state.send_queue = nowhere;
    expect_refused(a.get(), EFAULT);
    expect_untouched(a.get());
    install();
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    finish();
}

TEST_F(TcpHandoverRefused, StatesThatContradictThemselves) {
    establish(Opening::active);
    silence(Host::b);
    saved = tear_out(a.get(), b.get());
    a.reset();
    {
        On there(*hosts, Host::a);
        a = tcp_socket();
    }
    set_option(a.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    const KernelState good = saved.state;
    char byte = 'x';
    iovec one{&byte, 1};
    const std::function<void(KernelState&)> mistakes[] = {
        [](KernelState& s) { s.snd_nxt += 1; },
        [](KernelState& s) { s.snd_nxt -= 1; },
        [](KernelState& s) { s.snd_wscale = 15, s.window_scaling = true; },
        [&](KernelState& s) { s.send_queue = {one}, s.own_fin = OwnFin::sent; },
        [&](KernelState& s) { s.send_queue = {one}, s.snd_nxt += 1, s.own_fin = OwnFin::acknowledged; },
        [](KernelState& s) { s.snd_wl1 = s.rcv_nxt + s.rcv_wnd + 100000; },
    };
    for (const auto& mistake : mistakes) {
        SCOPED_TRACE(&mistake - mistakes);
        saved.state = good;
        mistake(saved.state);
        expect_refused(a.get(), EINVAL);
        expect_untouched(a.get());
    }
    saved.state = good;
    install();
    converse();
    finish();
}

TEST_F(TcpHandoverRefused, WithoutCapability) {
    establish(Opening::active);
    silence(Host::b);
    saved = tear_out(a.get(), b.get());
    a.reset();
    {
        On there(*hosts, Host::a);
        a = tcp_socket();
    }
    set_option(a.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    std::thread([&] {  // capabilities are a thread's own
        On there(*hosts, Host::a);
        const WithoutCapabilities fewer({CAP_NET_ADMIN});
        auto moved = hand_over(a.get(), saved.state, [] { ADD_FAILURE(); });
        EXPECT_FALSE(moved);
        EXPECT_EQ(moved.error().code, EPERM);
    })
        .join();
    expect_untouched(a.get());
    install();
    converse();
    finish();
}

// ---- steering ----

// The order that handover.h asks for, with a real flow rule: the peer talks all the time and never meets a
// kernel that does not know the connection.
TEST_F(TcpHandover, TheRuleGoesLast) {
    establish(Opening::passive);
    converse();
    struct Drop final : ring::FrameSink {
        int frames = 0;
        bool deliver(ring::RxBuffer*) noexcept override { return frames++, false; }
    } sink;
    std::unique_ptr<ring::Ring> ring;
    {
        On there(*hosts, Host::a);
        verbs::xdp::XdpConfig config;
        config.name = TwoHosts::interface();
        config.ifindex = static_cast<int>(if_nametoindex(config.name.c_str()));
        config.mac = mac_of(config.name);
        config.mtu = 1500;
        config.modes = {verbs::xdp::Mode::drv};
        auto device = verbs::xdp::XdpDevice::open(std::move(config));
        ASSERT_TRUE(device) << device.error().what;
        auto made = ring::Ring::create(std::move(*device), {.huge_pages = false});
        ASSERT_TRUE(made) << made.error().what;
        ring = std::move(*made);
    }
    converse();
    const sockaddr_in local = address(Host::a, kPort);
    sockaddr_in remote{};
    socklen_t length = sizeof remote;
    ASSERT_EQ(getsockname(b.get(), any(remote), &length), 0);
    const verbs::FlowSpec flow{IPPROTO_TCP, local.sin_addr.s_addr, local.sin_port, remote.sin_addr.s_addr,
                               remote.sin_port};
    auto attached = ring->attach(flow, &sink, ring::Share::latest);
    ASSERT_TRUE(attached) << attached.error().what;

    ASSERT_EQ(down.write(b.get(), 20000), 20000u);
    saved = tear_out(a.get(), b.get());
    a.reset();
    {
        On there(*hosts, Host::a);
        a = tcp_socket();
    }
    ASSERT_EQ(down.write(b.get(), 10), 10u);
    ASSERT_TRUE(eventually([&] { return ring->poll(), sink.frames != 0; }));
    install([&] {
        ASSERT_EQ(down.write(b.get(), 10), 10u);
        ring->detach(flow, &sink);
    });
    ASSERT_TRUE(down.read_all(a.get()));
    converse();
    finish();
}

}  // namespace
}  // namespace vma::tcp
