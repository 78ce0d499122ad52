// SPDX-License-Identifier: BSD-2-Clause
// What tests/bench/call_cost.py counts: calls of the socket API, from the program's side of the preloaded
// library down to the queues of the simulated adapter. Counted are the measured_ functions below and what
// they call. The adapter and the peer run in the same process, and move only between the measured calls, so
// that a run executes the same instructions each time.
//
//   socket_instructions udp|tcp|extra|extra-tcp|poll BURST COUNT
// makes at least COUNT calls of each kind, in rounds: BURST sends of 100 bytes, then BURST receives, and over
// UDP as many receives that find nothing and waits by epoll. "extra" uses the extra API in their place: one
// sendmany(), zero-copy receives, and receives in which a callback judges what has come. "poll" is a program
// with VMA_SOCKETXTREME=1: it polls its ring for BURST datagrams and frees each one, and polls as often in
// vain. Prints the number of
// calls of each kind.
// LD_PRELOAD names the library; SYSFS_PATH has an adapter for the netdev of 198.18.0.1; 198.18.0.2 is a
// permanent neighbour.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "include/mellanox/vma_extra.h"
#include "include/mellanox/vma_extra2.h"
#include "tests/support/attacker/segment.h"
#include "tests/support/mlx5_sim/sim.h"
#include "tests/support/wire/udp_frames.h"

namespace {

constexpr const char* kHere = "198.18.0.1";
constexpr const char* kThere = "198.18.0.2";
constexpr std::uint16_t kPort = 7, kPeerPort = 12345;
constexpr attacker::Mac kMac{2, 0, 0, 0, 0, 1}, kPeerMac{2, 0, 0, 0, 0, 2};
constexpr std::size_t kSize = 100;  // bytes of a message
constexpr unsigned kTurns = 2000;   // milliseconds until a frame is missing

char message[kSize];
constexpr std::size_t kLong = 1400;  // bytes of a long datagram
char long_message[kLong];
vma_api_t* api;
vma_api2_t* api2;
unsigned judged;  // packets that the callback has seen

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}

sockaddr_in address_of(const char* address, std::uint16_t port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(port);
    name.sin_addr.s_addr = inet_addr(address);
    return name;
}
const sockaddr* plain(const sockaddr_in& name) { return reinterpret_cast<const sockaddr*>(&name); }

}  // namespace

// Names for --toggle-collect. Each answers how many of its calls did what they should.
extern "C" {
[[gnu::noinline]] unsigned measured_sendto(int fd, unsigned count, const sockaddr_in* to) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++)
        good += sendto(fd, message, kSize, 0, plain(*to), sizeof *to) == ssize_t{kSize};
    return good;
}
[[gnu::noinline]] unsigned measured_recvfrom(int fd, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        sockaddr_in from;
        socklen_t length = sizeof from;
        good +=
            recvfrom(fd, message, kSize, 0, reinterpret_cast<sockaddr*>(&from), &length) == ssize_t{kSize};
    }
    return good;
}
[[gnu::noinline]] unsigned measured_nothing(int fd, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) good += recv(fd, message, kSize, MSG_DONTWAIT) == -1;
    return good;
}
[[gnu::noinline]] unsigned measured_epoll(int set, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        epoll_event event;
        good += epoll_wait(set, &event, 1, -1) == 1;
    }
    return good;
}
[[gnu::noinline]] unsigned measured_poll(int ring, unsigned count) {
    unsigned good = 0;
    for (unsigned turn = 0; good < count && turn < count; turn++) {
        vma_completion_t some[64];
        const int n = api->socketxtreme_poll(ring, some, 64, 0);
        for (int i = 0; i < n; i++) {
            if (some[i].packet.total_len != kSize) continue;
            good += api->socketxtreme_free_vma_packets(&some[i].packet, 1) == 0;
        }
    }
    return good;
}
[[gnu::noinline]] unsigned measured_poll_nothing(int ring, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        vma_completion_t one;
        good += api->socketxtreme_poll(ring, &one, 1, 0) == 0;
    }
    return good;
}
[[gnu::noinline]] unsigned measured_send(int fd, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) good += send(fd, message, kSize, 0) == ssize_t{kSize};
    return good;
}
// The internal thread may just have the connection, for one of its timers: then there is nothing yet.
[[gnu::noinline]] unsigned measured_recv(int fd, unsigned count) {
    unsigned good = 0;
    for (unsigned i = 0, vain = 0; i < count; i++) {
        ssize_t n = recv(fd, message, kSize, 0);
        for (; n == -1 && errno == EAGAIN && vain < kTurns; vain++) {
            usleep(1000);
            n = recv(fd, message, kSize, 0);
        }
        good += n == ssize_t{kSize};
    }
    return good;
}
[[gnu::noinline]] unsigned measured_zcopy(int fd, unsigned count) {
    alignas(16) static char buffer[256];
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        sockaddr_in from;
        socklen_t length = sizeof from;
        int flags = 0;
        good += api->recvfrom_zcopy(fd, buffer, sizeof buffer, &flags, reinterpret_cast<sockaddr*>(&from),
                                    &length) == int{kSize} &&
                api->free_packets(fd, reinterpret_cast<vma_packets_t*>(buffer)->pkts, 1) == 0;
    }
    return good;
}
// A receive for each packet that has come, though the first one may have all of them judged.
[[gnu::noinline]] unsigned measured_callback(int fd, unsigned count) {
    judged = 0;
    while (judged < count)
        if (recv(fd, message, kSize, MSG_DONTWAIT) != -1) return 0;
    return judged;
}
[[gnu::noinline]] unsigned measured_sendmany(int fd, unsigned count, const sockaddr_in* to) {
    static iovec pieces[64];
    for (unsigned i = 0; i < count; i++) pieces[i] = {message, kSize};
    const int sent = to != nullptr ? api2->sendmany(fd, pieces, count, 0, plain(*to), sizeof *to)
                                   : api2->sendmany(fd, pieces, count, 0, nullptr, 0) / int{kSize};
    return static_cast<unsigned>(sent);
}
[[gnu::noinline]] unsigned measured_sendto_long(int fd, unsigned count, const sockaddr_in* to) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++)
        good += sendto(fd, long_message, kLong, 0, plain(*to), sizeof *to) == ssize_t{kLong};
    return good;
}
// A program writes its message once, for either of the two: that is not part of it.
[[gnu::noinline]] unsigned measured_send_zcopy(int fd, unsigned count, const sockaddr_in* to) {
    static vma_send_buffer_t buffers[VMA_SEND_BUFFERS_MOST];
    if (api2->get_send_buffers(fd, buffers, count, plain(*to), sizeof *to) != 0) return 0;
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++)
        good += api2->send_zcopy(fd, buffers[i].id, kLong, 0, plain(*to), sizeof *to) == int{kLong};
    return good;
}
}

namespace {

mlx5_sim::Nic& adapter() { return mlx5_sim::nic("mlx5_0"); }

void arrives(const std::vector<std::uint8_t>& frame) {
    if (!adapter().receive(frame)) die("a frame was not steered: the socket is not offloaded");
}

void all_of(unsigned good, unsigned count, const char* what) {
    if (good != count) die(what);
}

// Steps the adapter until `done`; the library's own threads may have to do something for it.
template <class Done>
void step_until(Done done, const char* what) {
    for (unsigned turn = 0; turn < kTurns; turn++) {
        mlx5_sim::settle();
        if (done()) return;
        usleep(1000);
    }
    die(what);
}

// A bound UDP socket and its peer.
struct UdpEnds {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in to = address_of(kThere, kPeerPort);
    const std::vector<std::uint8_t> frame = udp_frames::make({.src_mac = kPeerMac,
                                                              .dst_mac = kMac,
                                                              .src = kThere,
                                                              .dst = kHere,
                                                              .src_port = kPeerPort,
                                                              .dst_port = kPort,
                                                              .payload = std::string(kSize, 'x')});
    unsigned long left = 0;  // datagrams that left the adapter

    UdpEnds() {
        if (fd < 0 || bind(fd, plain(address_of(kHere, kPort)), sizeof(sockaddr_in)) != 0) die("bind");
        adapter().on_transmit([this](const mlx5_sim::Frame&) { left++; });
    }
    void arrive(unsigned count) const {
        for (unsigned i = 0; i < count; i++) arrives(frame);
        mlx5_sim::settle();
    }
    void wait_for(unsigned long count) const {
        step_until([&] { return left == count; }, "a datagram did not leave by the adapter");
    }
};

unsigned long poll_ring(unsigned burst, unsigned long count) {
    UdpEnds ends;
    int ring = -1;
    if (api->get_socket_rings_fds(ends.fd, &ring, 1) != 1) die("no ring");
    unsigned long counted = 0;
    for (; counted < count; counted += burst) {
        ends.arrive(burst);
        all_of(measured_poll(ring, burst), burst, "socketxtreme_poll");
        all_of(measured_poll_nothing(ring, burst), burst, "socketxtreme_poll without a datagram");
    }
    return counted;
}

unsigned long udp(unsigned burst, unsigned long count) {
    UdpEnds ends;
    const int fd = ends.fd, set = epoll_create1(0);
    epoll_event wanted{.events = EPOLLIN, .data = {}};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted) != 0) die("epoll_ctl");
    unsigned long counted = 0;
    for (; counted < count; counted += burst) {
        all_of(measured_sendto(fd, burst, &ends.to), burst, "sendto");
        ends.wait_for(counted + burst);
        ends.arrive(burst);
        all_of(measured_recvfrom(fd, burst), burst, "recvfrom");
        all_of(measured_nothing(fd, burst), burst, "recv without a datagram");
        ends.arrive(burst);
        all_of(measured_epoll(set, burst), burst, "epoll_wait");
        for (unsigned i = 0; i < burst; i++)
            if (recv(fd, message, kSize, 0) != ssize_t{kSize}) die("recv");
    }
    return counted;
}

vma_recv_callback_retval_t judge(int, size_t, iovec[], vma_info_t*, void*) {
    judged++;
    return VMA_PACKET_DROP;
}

unsigned long extra(unsigned burst, unsigned long count) {
    UdpEnds ends;
    unsigned long counted = 0;
    for (; counted < count; counted += burst) {
        all_of(measured_sendmany(ends.fd, burst, &ends.to), burst, "sendmany");
        ends.wait_for(counted + burst);
        ends.arrive(burst);
        all_of(measured_zcopy(ends.fd, burst), burst, "recvfrom_zcopy");
        if (api->register_recv_callback(ends.fd, &judge, nullptr) != 0) die("register_recv_callback");
        ends.arrive(burst);
        all_of(measured_callback(ends.fd, burst), burst, "a callback");
        if (api->register_recv_callback(ends.fd, nullptr, nullptr) != 0) die("register_recv_callback");
    }
    return counted;
}

unsigned long buffers(unsigned burst, unsigned long count) {
    UdpEnds ends;
    unsigned long counted = 0;
    for (; counted < count; counted += burst) {
        all_of(measured_sendto_long(ends.fd, burst, &ends.to), burst, "sendto");
        ends.wait_for(2 * counted + burst);
        all_of(measured_send_zcopy(ends.fd, burst, &ends.to), burst, "send_zcopy");
        ends.wait_for(2 * (counted + burst));
    }
    return counted;
}

// The peer of a connection: acknowledges what it has seen.
struct TcpPeer {
    attacker::Segment reply{
        .from = inet_addr(kThere), .to = inet_addr(kHere), .from_port = kPeerPort, .seq = 1000};
    std::uint32_t echo = 0;  // the last time stamp of the other side
    bool connecting = false;

    void sees(const mlx5_sim::Frame& frame) {
        const auto segment = attacker::parse(frame);
        if (!segment || segment->to_port != kPeerPort) return;
        connecting = connecting || (segment->flags & attacker::kSyn) != 0;
        reply.to_port = segment->from_port;
        if (static_cast<std::int32_t>(segment->end() - reply.ack) > 0 || reply.ack == 0)
            reply.ack = segment->end();
        if (const auto stamp = attacker::said(*segment).stamp) echo = *stamp;
    }
    void sends(std::uint8_t flags, std::string options, std::string payload) {
        reply.flags = flags;
        reply.options = std::move(options) + attacker::option::stamps(reply.seq, echo);
        reply.payload = std::move(payload);
        arrives(attacker::build(reply, kPeerMac, kMac));
        reply.seq = reply.end();
    }
};

// `by_extra`: by functions of the extra API.
unsigned long tcp(unsigned burst, unsigned long count, bool by_extra) {
    TcpPeer peer;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("socket");
    // The rules exist before the SYN leaves, so the adapter has its wire from the start.
    adapter().on_transmit([&](const mlx5_sim::Frame& frame) { peer.sees(frame); });
    if (connect(fd, plain(address_of(kThere, kPeerPort)), sizeof(sockaddr_in)) == 0 || errno != EINPROGRESS)
        die("connect");
    step_until([&] { return peer.connecting; }, "no SYN left by the adapter");
    using namespace attacker;
    peer.sends(kSyn | kAck, option::mss(1460) + option::scale(7) + option::sack_allowed(), "");
    pollfd waits{fd, POLLOUT, 0};
    step_until([&] { return ::poll(&waits, 1, 0) == 1; }, "the connection is not established");
    mlx5_sim::settle();
    const std::uint32_t first = peer.reply.ack;
    unsigned long counted = 0;
    for (; counted < count; counted += burst) {
        if (by_extra)
            all_of(measured_sendmany(fd, burst, nullptr), burst, "sendmany");
        else
            all_of(measured_send(fd, burst), burst, "send");
        const auto end = static_cast<std::uint32_t>((counted + burst) * kSize);
        step_until([&] { return peer.reply.ack - first == end; }, "bytes did not leave by the adapter");
        for (unsigned i = 0; i < burst; i++) peer.sends(kAck | kPsh, "", std::string(kSize, 'x'));
        mlx5_sim::settle();
        all_of(measured_recv(fd, burst), burst, "recv");
    }
    return counted;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc == 4 ? argv[1] : "";
    const unsigned long burst = argc == 4 ? std::strtoul(argv[2], nullptr, 10) : 0,
                        count = argc == 4 ? std::strtoul(argv[3], nullptr, 10) : 0;
    const bool known = what == "udp" || what == "tcp" || what == "extra" || what == "extra-tcp" ||
                       what == "poll" || what == "buffers";
    if (!known || burst < 1 || burst > 64 || count == 0) {
        std::fprintf(
            stderr,
            "usage: socket_instructions udp|tcp|extra|extra-tcp|poll|buffers BURST COUNT (BURST 1 to 64)\n");
        return 2;
    }
    api = vma_get_api();
    api2 = vma_get_api2();
    if (api == nullptr || api2 == nullptr) die("the library is not loaded");
    const auto at_once = static_cast<unsigned>(burst);
    const unsigned long counted = what == "udp"       ? udp(at_once, count)
                                  : what == "poll"    ? poll_ring(at_once, count)
                                  : what == "buffers" ? buffers(at_once, count)
                                  : what == "extra"   ? extra(at_once, count)
                                                      : tcp(at_once, count, what == "extra-tcp");
    std::printf("%lu\n", counted);
}
