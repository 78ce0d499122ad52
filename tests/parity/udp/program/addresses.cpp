// SPDX-License-Identifier: BSD-2-Clause
// Several addresses, several interfaces, loopback, broadcast and multicast on one socket.
#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

// Receives one datagram and sends its length back; the agent prints from where that came.
void reply(int fd, const char* what) {
    if (!wait_in(fd)) return;
    char buffer[2000];
    sockaddr_in from{};
    socklen_t length = sizeof from;
    ssize_t n = recvfrom(fd, buffer, sizeof buffer, 0, raw(from), &length);
    say("%s: %zd from %s", what, n, text(&from, length).c_str());
    SHOW("reply", sendto(fd, buffer, static_cast<size_t>(n), 0, raw(from), length));
}

}  // namespace

PARITY_CASE(address, any_and_second, Traffic::offloaded) {
    peer_opens();
    int fd = bound("0.0.0.0", kPort);
    for (const char* to : {kHere, kHereSecond}) {
        peer_sends(30, 1, 1, to);
        reply(fd, to);
        tell("recv p 1000");
    }
}

PARITY_CASE(address, specific_only, Traffic::offloaded) {
    peer_opens();
    int first = bound(kHere, kPort), second = bound(kHereSecond, kPort);
    peer_sends(31, 1, 1, kHere);
    peer_sends(32, 1, 1, kHereSecond);
    settle();
    show_recv("first", first, MSG_DONTWAIT);
    show_recv("first", first, MSG_DONTWAIT);
    show_recv("second", second, MSG_DONTWAIT);
    show_recv("second", second, MSG_DONTWAIT);
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("from the second", sendto(second, "abc", 3, 0, raw(a), sizeof a));
    tell("recv p 1000");
}

PARITY_CASE(address, specific_beside_any, Traffic::offloaded) {
    peer_opens();
    int any = udp(), specific = udp();
    sockaddr_in a = at("0.0.0.0", kPort), s = at(kHereSecond, kPort);
    for (int fd : {any, specific}) set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    SHOW("any", bind(any, raw(a), sizeof a));
    SHOW("specific", bind(specific, raw(s), sizeof s));
    peer_sends(31, 1, 1, kHere);
    peer_sends(32, 1, 1, kHereSecond);
    settle();
    show_recv("any", any, MSG_DONTWAIT);
    show_recv("any", any, MSG_DONTWAIT);
    show_recv("specific", specific, MSG_DONTWAIT);
    show_recv("specific", specific, MSG_DONTWAIT);
    close(specific);
    peer_sends(33, 1, 1, kHereSecond);
    if (wait_in(any)) show_recv("any", any);
}

PARITY_CASE(address, loopback_and_wire, kernel_carries(14)) {
    peer_opens();
    int any = bound("0.0.0.0", kPort), local = bound("127.0.0.1", kPort + 1);
    sockaddr_in to = at("127.0.0.1", kPort);
    for (int round = 0; round < 3; round++) {
        SHOW("local sendto", sendto(local, "local", 5, 0, raw(to), sizeof to));
        reply(any, "loopback");
        if (wait_in(local)) show_recv("local", local);
        peer_sends(30, 1, 1 + round);
        reply(any, "wire");
        tell("recv p 1000");
    }
    // Both waiting at once: neither starves.
    ok(sendto(local, "local", 5, 0, raw(to), sizeof to));
    peer_sends(30, 1, 9);
    settle();
    char buffer[100];
    int small = 0, big = 0;
    for (int i = 0; i < 2; i++) {
        ssize_t n = recv(any, buffer, sizeof buffer, MSG_DONTWAIT);
        small += n == 5;
        big += n == 30;
    }
    say("loopback %d wire %d", small, big);
}

PARITY_CASE(address, two_interfaces, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThereLink2 + " 6000");
    int fd = bound("0.0.0.0", kPort);
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    for (int i = 0; i < 2; i++) {
        peer_sends(30, 1, 1, kHere);
        if (wait_in(fd)) show_recv("link 1", fd);
        say("q: %s", ask(std::string("send q ") + kHereLink2 + " 5000 31").c_str());
        if (wait_in(fd)) show_recv("link 2", fd);
    }
    sockaddr_in a = at(kThere, kPeerPort), b = at(kThereLink2, kPeerPort);
    for (int i = 0; i < 2; i++) {
        SHOW("link 1", sendto(fd, "abc", 3, 0, raw(a), sizeof a));
        tell("recv p 1000");
        SHOW("link 2", sendto(fd, "abcd", 4, 0, raw(b), sizeof b));
        tell("recv q 1000");
    }
    SHOW("connect", connect(fd, raw(b), sizeof b));
    show_name("connected", fd);
    SHOW("send", send(fd, "abcde", 5, 0));
    tell("recv q 1000");
}

PARITY_CASE(address, loopback_only, kernel_carries(5)) {
    int a = bound("127.0.0.1", kPort), b = bound("127.0.0.1", kPort + 1);
    sockaddr_in to = at("127.0.0.1", kPort);
    SHOW("connect", connect(b, raw(to), sizeof to));
    auto data = payload::make(30000, 2);
    SHOW("send", send(b, data.data(), data.size(), 0));
    reply(a, "a");
    if (wait_in(b)) show_recv("b", b);
    SHOW("close", close(a));
    SHOW("send", send(b, "x", 1, 0));
    SHOW("recv", recv(b, data.data(), 10, 0));
}

PARITY_CASE(address, broadcast_receive, kernel_carries(3)) {
    peer_opens("broadcast");
    int any = bound("0.0.0.0", kPort), specific = bound(kHere, kPort + 1),
        exact = bound("198.18.1.255", kPort + 2);
    set(any, IPPROTO_IP, IP_PKTINFO, 1);
    for (const char* to : {"198.18.1.255", "255.255.255.255"}) {
        peer_sends(30, 1, 1, to, kPort);
        peer_sends(31, 1, 1, to, kPort + 1);
        peer_sends(32, 1, 1, to, kPort + 2);
        settle();
        show_recv("any", any, MSG_DONTWAIT);
        show_recv("specific", specific, MSG_DONTWAIT);
        show_recv("exact", exact, MSG_DONTWAIT);
    }
}

PARITY_CASE(address, multicast, kernel_carries(7)) {
    peer_opens();
    ask(std::string("set p multicast_if ") + kThere);
    int fd = udp();
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_in a = at("0.0.0.0", kPort), group = at("239.1.2.3", kPeerPort);
    SHOW("bind", bind(fd, raw(a), sizeof a));
    ip_mreq request{group.sin_addr, at(kHere, 0).sin_addr};
    SHOW("join", setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request));
    SHOW("join again", setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request));
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    peer_sends(30, 1, 1, "239.1.2.3");
    if (wait_in(fd)) show_recv("group", fd);
    peer_sends(31);
    if (wait_in(fd)) show_recv("unicast", fd);
    peer_sends(4000, 1, 1, "239.1.2.3");
    if (wait_in(fd)) show_recv("fragmented", fd);
    SHOW("leave", setsockopt(fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof request));
    peer_sends(30, 1, 1, "239.1.2.3");
    settle();
    show_recv("left", fd, MSG_DONTWAIT);
    // Sending, with and without the local loop.
    SHOW("interface",
         setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &request.imr_interface, sizeof request.imr_interface));
    ask("open g 0.0.0.0 6002");
    say("join: %s", ask(std::string("join g 239.1.2.3 ") + kThere).c_str());
    group.sin_port = htons(6002);
    SHOW("send", sendto(fd, "group", 5, 0, raw(group), sizeof group));
    tell("recv g 1000");
    SHOW("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, 4));
    SHOW("send", sendto(fd, "group", 5, 0, raw(group), sizeof group));
    tell("recv g 1000");
    request.imr_multiaddr = group.sin_addr;
    SHOW("join", setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request));
    group.sin_port = htons(kPort);
    for (int loop : {1, 0}) {
        SHOW("loop", set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, loop));
        SHOW("send", sendto(fd, "myself", 6, 0, raw(group), sizeof group));
        settle();
        show_recv("own", fd, MSG_DONTWAIT);
    }
}

// Sockets the library has no business with.
PARITY_CASE(address, other_kinds, Traffic::offloaded) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = at("127.0.0.1", kPort);
    set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    SHOW("bind", bind(listener, raw(a), sizeof a));
    SHOW("listen", listen(listener, 5));
    SHOW("connect", connect(client, raw(a), sizeof a));
    int server = accept(listener, nullptr, nullptr);
    SHOW("send", send(client, "stream", 6, 0));
    char buffer[100];
    SHOW("recv", recv(server, buffer, sizeof buffer, 0));
    int pair[2];
    SHOW("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    SHOW("write", write(pair[0], "unix", 4));
    SHOW("read", read(pair[1], buffer, sizeof buffer));
    int p[2];
    SHOW("pipe", pipe(p));
    SHOW("recv on a pipe", recv(p[0], buffer, 10, 0));
    SHOW("sendto on a pipe", sendto(p[1], "x", 1, 0, raw(a), sizeof a));
    SHOW("bind on a pipe", bind(p[0], raw(a), sizeof a));
    int raw_socket = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    SHOW("raw", raw_socket < 0 ? -1 : 0);
    int six = socket(AF_INET6, SOCK_DGRAM, 0);
    SHOW("inet6", six < 0 ? -1 : 0);
}

}  // namespace parity
