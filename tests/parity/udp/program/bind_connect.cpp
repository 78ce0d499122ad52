// SPDX-License-Identifier: BSD-2-Clause
// Naming a socket: creation flags, bind, connect and its undoing, getsockname and getpeername at each stage.
#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

int bind_to(int fd, const char* address, int port) {
    sockaddr_in a = at(address, port);
    return bind(fd, raw(a), sizeof a);
}
int connect_to(int fd, const char* address, int port) {
    sockaddr_in a = at(address, port);
    return connect(fd, raw(a), sizeof a);
}
int disconnect(int fd) {
    sockaddr a{};
    a.sa_family = AF_UNSPEC;
    return connect(fd, &a, sizeof a);
}
void bind_family(const char* what, sa_family_t family, const char* address) {
    int fd = udp();
    sockaddr_in a = at(address, kPort);
    a.sin_family = family;
    SHOW(what, bind(fd, raw(a), sizeof a));
    show_name(what, fd);
    close(fd);
}

}  // namespace

PARITY_CASE(name, socket_flags, Traffic::offloaded) {
    for (int flags : {0, int{SOCK_NONBLOCK}, int{SOCK_CLOEXEC}, SOCK_NONBLOCK | SOCK_CLOEXEC}) {
        int fd = udp(flags);
        say("flags %x: nonblock=%d cloexec=%d access=%d", static_cast<unsigned>(flags),
            (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL) & O_ACCMODE);
        say("type %d domain %d protocol %d", get(fd, SOL_SOCKET, SO_TYPE), get(fd, SOL_SOCKET, SO_DOMAIN),
            get(fd, SOL_SOCKET, SO_PROTOCOL));
        SHOW("fcntl cloexec", fcntl(fd, F_SETFD, FD_CLOEXEC));
        say("cloexec=%d", fcntl(fd, F_GETFD));
        SHOW("close", close(fd));
        SHOW("close again", close(fd));
    }
    int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    say("explicit protocol: %d", get(fd, SOL_SOCKET, SO_PROTOCOL));
    SHOW("wrong protocol", socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
    SHOW("wrong type", socket(AF_INET, 77, 0));
    SHOW("wrong family", socket(12345, SOCK_DGRAM, 0));
    SHOW("wrong flag", socket(AF_INET, SOCK_DGRAM | 0x100000, 0));
}

// Programs rely on the lowest free number.
PARITY_CASE(name, descriptor_numbers, Traffic::offloaded) {
    int a = bound(kHere, kPort), b = udp(), c = connected(kThere, kPeerPort);
    say("numbers %d %d %d", a, b, c);
    close(b);
    say("freed number comes back: %d", udp());
    int p[2];
    ok(pipe(p));
    say("pipe %d %d", p[0], p[1]);
}

PARITY_CASE(name, bind_errors, Traffic::offloaded) {
    int first = bound(kHere, kPort), fd = udp();
    SHOW("in use", bind_to(fd, kHere, kPort));
    SHOW("any in use", bind_to(fd, "0.0.0.0", kPort));
    SHOW("not ours", bind_to(fd, "198.18.1.77", kPort));
    SHOW("other address, same port", bind_to(fd, kHereSecond, kPort));
    SHOW("twice", bind_to(fd, kHere, kPort + 1));
    show_name("twice", fd);
    sockaddr_in a = at(kHere, kPort + 2);
    int other = udp();
    SHOW("short address", bind(other, raw(a), 8));
    SHOW("zero length", bind(other, raw(a), 0));
    SHOW("length -1", bind(other, raw(a), static_cast<socklen_t>(-1)));
    SHOW("no address", bind(other, nullptr, sizeof a));
    char room[128] = {};
    memcpy(room, &a, sizeof a);
    SHOW("long address", bind(other, reinterpret_cast<sockaddr*>(room), sizeof room));
    show_name("long address", other);
    SHOW("bad descriptor", bind(-1, raw(a), sizeof a));
    close(first);
    SHOW("free again", close(bound(kHere, kPort)));
}

PARITY_CASE(name, bind_families, Traffic::offloaded) {
    bind_family("inet6", AF_INET6, kHere);
    bind_family("unspecified family, any", AF_UNSPEC, "0.0.0.0");
    bind_family("unspecified family, address", AF_UNSPEC, kHere);
    bind_family("unix", AF_UNIX, kHere);
    bind_family("limited broadcast", AF_INET, "255.255.255.255");
    bind_family("network broadcast", AF_INET, "198.18.1.255");
    bind_family("multicast", AF_INET, "239.1.2.3");
    bind_family("loopback", AF_INET, "127.0.0.5");
}

PARITY_CASE(name, bind_port_zero, Traffic::offloaded) {
    int fd = bound(kHere, 0);
    show_name("bound", fd);
    sockaddr_in a{};
    socklen_t length = sizeof a;
    ok(getsockname(fd, raw(a), &length));
    peer_opens();
    peer_sends(50, 2, 1, kHere, ntohs(a.sin_port));
    if (wait_in(fd)) show_recv("first", fd);
    if (wait_in(fd)) show_recv("second", fd);
    int any = bound("0.0.0.0", 0);
    show_name("any", any);
}

PARITY_CASE(name, stages, Traffic::offloaded) {
    peer_opens();
    int fd = udp();
    show_name("new", fd), show_peer("new", fd);
    SHOW("bind", bind_to(fd, "0.0.0.0", kPort));
    show_name("bound", fd), show_peer("bound", fd);
    SHOW("connect", connect_to(fd, kThere, kPeerPort));
    show_name("connected", fd), show_peer("connected", fd);
    SHOW("send", send(fd, "x", 1, 0));
    tell("recv p 1000");
    peer_sends(20);
    if (wait_in(fd)) show_recv("recv", fd);
    SHOW("reconnect", connect_to(fd, kThereSecond, kPeerPort + 1));
    show_name("reconnected", fd), show_peer("reconnected", fd);
    SHOW("disconnect", disconnect(fd));
    show_name("disconnected", fd), show_peer("disconnected", fd);
    SHOW("send disconnected", send(fd, "x", 1, 0));
    peer_sends(21);
    if (wait_in(fd)) show_recv("recv", fd);
    SHOW("disconnect again", disconnect(fd));
}

PARITY_CASE(name, unbound_disconnect, kernel_carries(1)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort);
    show_name("connected", fd);
    SHOW("send", send(fd, "abc", 3, 0));
    tell("recv p 1000");
    SHOW("disconnect", disconnect(fd));
    show_name("disconnected", fd), show_peer("disconnected", fd);
    sockaddr_in to = at(kThere, kPeerPort);
    SHOW("sendto", sendto(fd, "abcd", 4, 0, raw(to), sizeof to));
    show_name("sent", fd);
    tell("recv p 1000");
    tell("echo p 0 1");
}

PARITY_CASE(name, name_buffers, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    for (int room : {0, 1, 2, 8, 15, 16, 17, 128, -1}) {
        char buffer[129];
        memset(buffer, 0x77, sizeof buffer);
        socklen_t length = static_cast<socklen_t>(room);
        int r = getsockname(fd, reinterpret_cast<sockaddr*>(buffer), &length);
        say("name room %d: %d %s length %d, byte 7 %02x, byte 16 %02x", room, r,
            r < 0 ? strerrorname_np(errno) : "", static_cast<int>(length),
            static_cast<unsigned char>(buffer[7]), static_cast<unsigned char>(buffer[16]));
        length = static_cast<socklen_t>(room);
        r = getpeername(fd, reinterpret_cast<sockaddr*>(buffer), &length);
        say("peer room %d: %d %s length %d", room, r, r < 0 ? strerrorname_np(errno) : "",
            static_cast<int>(length));
    }
    socklen_t length = 16;
    sockaddr_in a;
    SHOW("no name", getsockname(fd, nullptr, &length));
    SHOW("no length", getsockname(fd, raw(a), nullptr));
    SHOW("no peer", getpeername(fd, nullptr, &length));
}

PARITY_CASE(name, connect_errors, kernel_carries(1)) {
    int fd = udp();
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("short", connect(fd, raw(a), 8));
    SHOW("one byte", connect(fd, raw(a), 1));
    SHOW("zero", connect(fd, raw(a), 0));
    SHOW("null", connect(fd, nullptr, sizeof a));
    a.sin_family = AF_INET6;
    SHOW("inet6", connect(fd, raw(a), sizeof a));
    show_peer("after errors", fd);
    SHOW("no route", connect_to(fd, "203.0.113.9", 80));
    show_name("after no route", fd);
    SHOW("broadcast", connect_to(fd, "198.18.1.255", 80));
    SHOW("limited broadcast", connect_to(fd, "255.255.255.255", 80));
    SHOW("port 0", connect_to(fd, kThere, 0));
    show_peer("port 0", fd);
    SHOW("send to port 0", send(fd, "x", 1, 0));
    SHOW("any", connect_to(fd, "0.0.0.0", kPeerPort));
    show_name("any", fd), show_peer("any", fd);
    SHOW("own address", connect_to(fd, kHere, kPeerPort));
    show_name("own address", fd);
    SHOW("loopback", connect_to(fd, "127.0.0.1", kPeerPort));
    show_name("loopback", fd);
    int local = bound("127.0.0.1", kPort);
    SHOW("from loopback to the wire", connect_to(local, kThere, kPeerPort));
}

// A connected socket hears its peer only; on disconnecting it hears everybody again.
PARITY_CASE(name, connected_hears_peer_only, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    int fd = connected(kThere, kPeerPort, kPort);
    auto both = [&](int seed) {
        say("q: %s", ask(std::string("send q ") + kHere + " 5000 30 1 " + std::to_string(seed)).c_str());
        peer_sends(30, 1, seed + 1);
        if (wait_in(fd)) show_recv("recv", fd);
        settle();
        show_recv("next", fd, MSG_DONTWAIT);
    };
    both(10);
    SHOW("reconnect", connect_to(fd, kThere, 6001));
    both(20);
    SHOW("disconnect", disconnect(fd));
    SHOW("bind again", bind_to(fd, kHere, kPort));
    both(30);
}

// What was queued before connect() is still delivered, whoever sent it.
PARITY_CASE(name, queued_before_connect, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    int fd = bound(kHere, kPort);
    say("q: %s", ask(std::string("send q ") + kHere + " 5000 30 1 7").c_str());
    if (!wait_in(fd)) return;
    SHOW("connect", connect_to(fd, kThere, kPeerPort));
    peer_sends(40);
    settle();
    show_recv("first", fd, MSG_DONTWAIT);
    show_recv("second", fd, MSG_DONTWAIT);
    show_recv("third", fd, MSG_DONTWAIT);
}

// A connected socket beside an unconnected one on the same port: the more exact match wins.
PARITY_CASE(name, connected_beside_unconnected, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    int listener = udp(), session = udp();
    for (int fd : {listener, session}) {
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        SHOW("bind", bind_to(fd, kHere, kPort));
    }
    SHOW("connect", connect_to(session, kThere, kPeerPort));
    peer_sends(30, 2, 1);
    ask(std::string("send q ") + kHere + " 5000 30 1 9");
    settle();
    for (int i = 0; i < 3; i++) show_recv("session", session, MSG_DONTWAIT);
    for (int i = 0; i < 2; i++) show_recv("listener", listener, MSG_DONTWAIT);
    close(session);
    peer_sends(30, 1, 4);
    settle();
    show_recv("listener after close", listener, MSG_DONTWAIT);
}

}  // namespace parity
