// SPDX-License-Identifier: BSD-2-Clause
// Socket options, ioctls, fcntl and shutdown.
#include <linux/filter.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>

#include <set>
#include <thread>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

uint8_t g_buffer[70000];

int listening(const char* address = kHere) {
    peer_opens();
    return bound(address, kPort);
}

void query(int fd, const char* what, int level, int name) {
    unsigned char value[64] = {};
    socklen_t length = 4;
    int r = getsockopt(fd, level, name, value, &length);
    int number;
    memcpy(&number, value, sizeof number);
    if (r < 0)
        say("%s: %s", what, strerrorname_np(errno));
    else
        say("%s: %d (length %u)", what, number, length);
}

void change(int fd, const char* what, int level, int name, int value) {
    SHOW(what, set(fd, level, name, value));
    query(fd, what, level, name);
}

}  // namespace

PARITY_CASE(option, values, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    query(fd, "SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN);
    query(fd, "SO_ERROR", SOL_SOCKET, SO_ERROR);
    query(fd, "SO_RCVBUF", SOL_SOCKET, SO_RCVBUF);
    query(fd, "SO_SNDBUF", SOL_SOCKET, SO_SNDBUF);
    query(fd, "SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT);
    query(fd, "IP_MTU", IPPROTO_IP, IP_MTU);
    query(fd, "IP_TTL", IPPROTO_IP, IP_TTL);
    query(fd, "UDP_CORK", IPPROTO_UDP, UDP_CORK);
    query(fd, "UDP_SEGMENT", IPPROTO_UDP, 103);
    change(fd, "SO_RCVBUF 1", SOL_SOCKET, SO_RCVBUF, 1);
    change(fd, "SO_RCVBUF 100000", SOL_SOCKET, SO_RCVBUF, 100000);
    change(fd, "SO_RCVBUF -1", SOL_SOCKET, SO_RCVBUF, -1);
    change(fd, "SO_SNDBUF 1", SOL_SOCKET, SO_SNDBUF, 1);
    change(fd, "SO_SNDBUF 100000", SOL_SOCKET, SO_SNDBUF, 100000);
    change(fd, "SO_RCVBUFFORCE", SOL_SOCKET, SO_RCVBUFFORCE, 9'000'000);
    query(fd, "SO_RCVBUF", SOL_SOCKET, SO_RCVBUF);
    change(fd, "SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 5);
    change(fd, "SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 5);
    change(fd, "SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 5);
    change(fd, "SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 3);
    change(fd, "SO_MARK", SOL_SOCKET, SO_MARK, 3);
    change(fd, "SO_PEEK_OFF", SOL_SOCKET, SO_PEEK_OFF, -1);
    change(fd, "SO_BUSY_POLL", SOL_SOCKET, SO_BUSY_POLL, 50);
    change(fd, "SO_NO_CHECK", SOL_SOCKET, SO_NO_CHECK, 1);
    change(fd, "SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1);
    change(fd, "SO_RCVLOWAT 10", SOL_SOCKET, SO_RCVLOWAT, 10);
    change(fd, "IP_TTL 5", IPPROTO_IP, IP_TTL, 5);
    change(fd, "IP_TTL -1", IPPROTO_IP, IP_TTL, -1);
    change(fd, "IP_TTL 0", IPPROTO_IP, IP_TTL, 0);
    change(fd, "IP_TTL 256", IPPROTO_IP, IP_TTL, 256);
    change(fd, "IP_TOS 0xb8", IPPROTO_IP, IP_TOS, 0xb8);
    change(fd, "IP_MTU_DISCOVER", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    change(fd, "IP_MTU_DISCOVER 99", IPPROTO_IP, IP_MTU_DISCOVER, 99);
    change(fd, "IP_MULTICAST_TTL", IPPROTO_IP, IP_MULTICAST_TTL, 5);
    change(fd, "IP_MULTICAST_LOOP", IPPROTO_IP, IP_MULTICAST_LOOP, 0);
    change(fd, "IP_FREEBIND", IPPROTO_IP, IP_FREEBIND, 1);
    change(fd, "IP_RECVERR", IPPROTO_IP, IP_RECVERR, 1);
    change(fd, "SO_MAX_PACING_RATE", SOL_SOCKET, SO_MAX_PACING_RATE, 1'000'000);
}

PARITY_CASE(option, errors, Traffic::offloaded) {
    int fd = bound(kHere, kPort), value = 1;
    SHOW("unknown option", set(fd, SOL_SOCKET, 9999, 1));
    SHOW("unknown ip option", set(fd, IPPROTO_IP, 9999, 1));
    SHOW("unknown udp option", set(fd, IPPROTO_UDP, 9999, 1));
    SHOW("unknown level", set(fd, 4711, 1, 1));
    SHOW("tcp level", set(fd, IPPROTO_TCP, 1, 1));
    SHOW("ipv6 level", set(fd, IPPROTO_IPV6, 26, 1));
    SHOW("null", setsockopt(fd, SOL_SOCKET, SO_RCVBUF, nullptr, sizeof value));
    SHOW("short", setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, 2));
    SHOW("ttl of one byte", setsockopt(fd, IPPROTO_IP, IP_TTL, &value, 1));
    SHOW("tos of zero bytes", setsockopt(fd, IPPROTO_IP, IP_TOS, &value, 0));
    SHOW("negative length", setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, static_cast<socklen_t>(-1)));
    SHOW("timeout of wrong size", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value));
    SHOW("set SO_ERROR", set(fd, SOL_SOCKET, SO_ERROR, 1));
    SHOW("set SO_TYPE", set(fd, SOL_SOCKET, SO_TYPE, 1));
    socklen_t length = 2;
    SHOW("get short", getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length));
    say("length %u", length);
    length = 64;
    unsigned char room[64];
    SHOW("get long", getsockopt(fd, SOL_SOCKET, SO_TYPE, room, &length));
    say("length %u", length);
    length = static_cast<socklen_t>(-1);
    SHOW("get negative", getsockopt(fd, SOL_SOCKET, SO_TYPE, room, &length));
    length = 4;
    SHOW("get null", getsockopt(fd, SOL_SOCKET, SO_TYPE, nullptr, &length));
    SHOW("get null length", getsockopt(fd, SOL_SOCKET, SO_TYPE, room, nullptr));
    SHOW("get unknown", getsockopt(fd, SOL_SOCKET, 9999, room, &length));
    length = 4;
    SHOW("IP_MTU unconnected", getsockopt(fd, IPPROTO_IP, IP_MTU, room, &length));
    SHOW("listen", listen(fd, 5));
    SHOW("accept", accept(fd, nullptr, nullptr));
    SHOW("stdin as socket", getsockopt(0, SOL_SOCKET, SO_TYPE, room, &length));
}

// How many fit is the stack's business; that some are lost and the rest is the beginning, in order, is not.
PARITY_CASE(option, receive_buffer_overflow, Traffic::offloaded) {
    int fd = listening();
    SHOW("small buffer", set(fd, SOL_SOCKET, SO_RCVBUF, 4096));
    peer_sends(1400, 1000, 0);
    settle();
    int count = 0, disordered = 0;
    uint32_t last = 0, first = 1;
    ssize_t n;
    while ((n = recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT)) > 0) {
        uint32_t seed = payload::seed_of(g_buffer, static_cast<size_t>(n));
        if (count == 0) first = seed;
        if (count > 0 && seed < last) disordered++;
        last = seed;
        count++;
    }
    say("some came %d, some lost %d, first %u, disordered %d", count > 0, count < 1000, first, disordered);
    peer_sends(100, 1, 77);
    if (wait_in(fd)) show_recv("works on", fd);
    SHOW("big buffer", set(fd, SOL_SOCKET, SO_RCVBUF, 4'000'000));
    peer_sends(1400, 500, 0);
    settle();
    count = 0;
    while (recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT) > 0) count++;
    say("with a big buffer %d", count);
}

PARITY_CASE(option, receive_timeout, Traffic::offloaded) {
    int fd = listening();
    timeval t{0, 120'000}, back{9, 9};
    socklen_t length = sizeof back;
    SHOW("set", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    SHOW("get", getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &length));
    say("%ld.%06ld length %u", back.tv_sec, back.tv_usec / 10'000 * 10'000, length);
    auto timed = [&](const char* what, auto&& call) {
        timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        SHOW(what, call());
        clock_gettime(CLOCK_MONOTONIC, &b);
        long msec = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1'000'000;
        say("waited: %s", msec < 100 ? "not long enough" : "yes");
    };
    iovec iov{g_buffer, 100};
    msghdr m{};
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    mmsghdr mm{m, 0};
    timed("recv", [&] { return recv(fd, g_buffer, 100, 0); });
    timed("read", [&] { return read(fd, g_buffer, 100); });
    timed("recvmsg", [&] { return recvmsg(fd, &m, 0); });
    timed("recvmmsg", [&] { return recvmmsg(fd, &mm, 1, 0, nullptr); });
    SHOW("dontwait", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    peer_sends(30);
    settle();
    SHOW("with data", recv(fd, g_buffer, 100, 0));
    post("sleep 30");
    post(std::string("send p ") + kHere + " 5000 31");
    SHOW("data in time", recv(fd, g_buffer, 100, 0));
    answer(), answer();
    t = {0, 2'000'000};
    SHOW("bad microseconds", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    t = {-1, 0};
    SHOW("negative", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    SHOW("get", getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &length));
    say("%ld.%06ld", back.tv_sec, back.tv_usec);
    t = {0, 120'000};
    SHOW("send timeout", setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    SHOW("get", getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &back, &length));
    say("%ld.%06ld", back.tv_sec, back.tv_usec / 10'000 * 10'000);
}

PARITY_CASE(option, nonblocking, Traffic::offloaded) {
    int fd = listening(), on = 1, off = 0;
    SHOW("fcntl", fcntl(fd, F_SETFL, O_NONBLOCK));
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    SHOW("read", read(fd, g_buffer, 100));
    show_recv("recvmsg", fd);
    say("flags %x", static_cast<unsigned>(fcntl(fd, F_GETFL)));
    SHOW("FIONBIO off", ioctl(fd, FIONBIO, &off));
    say("flags %x", static_cast<unsigned>(fcntl(fd, F_GETFL)));
    SHOW("FIONBIO on", ioctl(fd, FIONBIO, &on));
    say("flags %x", static_cast<unsigned>(fcntl(fd, F_GETFL)));
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    SHOW("recv waitall", recv(fd, g_buffer, 100, MSG_WAITALL));
    int twin = dup(fd);
    SHOW("F_SETFL of the twin", fcntl(twin, F_SETFL, 0));
    say("flags %x", static_cast<unsigned>(fcntl(fd, F_GETFL)));
    post("sleep 30");
    post(std::string("send p ") + kHere + " 5000 31");
    SHOW("blocking again", recv(fd, g_buffer, 100, 0));
    answer(), answer();
    SHOW("FIONBIO null", ioctl(fd, FIONBIO, nullptr));
}

PARITY_CASE(option, queue_sizes, Traffic::offloaded) {
    int fd = listening(), n = -1;
    SHOW("empty", ioctl(fd, FIONREAD, &n));
    say("%d", n);
    peer_sends(123);
    peer_sends(45);
    settle();
    SHOW("first of two", ioctl(fd, FIONREAD, &n));
    say("%d", n);
    ok(recv(fd, g_buffer, 200, 0));
    SHOW("second", ioctl(fd, SIOCINQ, &n));
    say("%d", n);
    ok(recv(fd, g_buffer, 200, 0));
    SHOW("none", ioctl(fd, FIONREAD, &n));
    say("%d", n);
    peer_sends(5000);
    settle();
    SHOW("fragmented", ioctl(fd, FIONREAD, &n));
    say("%d", n);
    SHOW("out", ioctl(fd, SIOCOUTQ, &n));
    say("%d", n);
    SHOW("null", ioctl(fd, FIONREAD, nullptr));
    SHOW("unknown", ioctl(fd, 0x1234, &n));
    ifreq request{};
    strcpy(request.ifr_name, "veth1");
    SHOW("SIOCGIFMTU", ioctl(fd, SIOCGIFMTU, &request));
    say("%d", request.ifr_mtu);
}

PARITY_CASE(option, broadcast, kernel_carries(2)) {
    ask("open p 0.0.0.0 6000");
    int fd = bound(kHere, kPort);
    for (int on : {0, 1, 0}) {
        SHOW("SO_BROADCAST", set(fd, SOL_SOCKET, SO_BROADCAST, on));
        for (const char* to : {"198.18.1.255", "255.255.255.255"}) {
            sockaddr_in a = at(to, kPeerPort);
            if (SHOW(to, sendto(fd, "all", 3, 0, raw(a), sizeof a)) > 0) tell("recv p 1000");
        }
    }
}

PARITY_CASE(option, bind_to_device, kernel_carries(1)) {
    peer_opens();
    int fd = udp();
    auto device = [&](const char* name) {
        return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, static_cast<socklen_t>(strlen(name)));
    };
    SHOW("missing", device("nosuch0"));
    SHOW("veth1", device("veth1"));
    char name[IF_NAMESIZE] = {};
    socklen_t length = sizeof name;
    SHOW("get", getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    say("%s, length %u", name, length);
    sockaddr_in a = at("0.0.0.0", kPort);
    SHOW("bind", bind(fd, raw(a), sizeof a));
    peer_sends(20);
    if (wait_in(fd)) show_recv("veth1", fd);
    SHOW("lo", device("lo"));
    peer_sends(21);
    settle();
    show_recv("wrong device", fd, MSG_DONTWAIT);
    a = at(kThere, kPeerPort);
    SHOW("send over lo", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    SHOW("none", device(""));
    peer_sends(22);
    if (wait_in(fd)) show_recv("any", fd);
}

PARITY_CASE(option, reuse_address, Traffic::offloaded) {
    peer_opens();
    int fds[3];
    sockaddr_in a = at(kHere, kPort);
    for (int i = 0; i < 3; i++) {
        fds[i] = udp();
        if (i < 2) set(fds[i], SOL_SOCKET, SO_REUSEADDR, 1);
        SHOW("bind", bind(fds[i], raw(a), sizeof a));
    }
    peer_sends(20, 4);
    settle();
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 5; k++) say("socket %d: %zd", i, recv(fds[i], g_buffer, 100, MSG_DONTWAIT));
    close(fds[1]);
    peer_sends(21);
    settle();
    show_recv("after close", fds[0], MSG_DONTWAIT);
}

// Each datagram comes exactly once, and a flow stays with one socket; which one is the stack's choice.
PARITY_CASE(option, reuse_port, Traffic::offloaded) {
    int fds[4];
    for (int& fd : fds) {
        fd = udp();
        set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        sockaddr_in a = at(kHere, kPort);
        SHOW("bind", bind(fd, raw(a), sizeof a));
    }
    tell(std::string("fan 20000 32 4 ") + kHere + " 5000 60");
    settle();
    std::set<uint32_t> seen;
    std::set<int> owner[32];
    int total = 0, users = 0;
    for (int i = 0; i < 4; i++) {
        bool used = false;
        while (recv(fds[i], g_buffer, 100, MSG_DONTWAIT) == 60) {
            uint32_t seed = payload::seed_of(g_buffer, 60);
            seen.insert(seed);
            if (seed / 4 < 32) owner[seed / 4].insert(i);
            total++;
            used = true;
        }
        users += used;
    }
    int split = 0;
    for (auto& o : owner) split += o.size() > 1;
    say("total %d, distinct %zu, split flows %d, several sockets used %d", total, seen.size(), split,
        users > 1);
}

PARITY_CASE(option, filter, kernel_carries(5)) {
    int fd = listening();
    // Accepts datagrams whose last payload byte of a 20-byte datagram's seed is odd; the filter sees the UDP
    // header first.
    sock_filter code[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 11),
                          BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, 0xffffffff), BPF_STMT(BPF_RET | BPF_K, 0)};
    sock_fprog program{4, code};
    SHOW("attach", setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    peer_sends(20, 6);
    settle();
    for (int i = 0; i < 4; i++) show_recv("recv", fd, MSG_DONTWAIT);
    SHOW("detach", set(fd, SOL_SOCKET, SO_DETACH_FILTER, 0));
    peer_sends(20, 2);
    settle();
    for (int i = 0; i < 3; i++) show_recv("recv", fd, MSG_DONTWAIT);
}

PARITY_CASE(option, segmentation, kernel_carries(2)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    auto data = payload::make(2500, 4);
    SHOW("UDP_SEGMENT", set(fd, IPPROTO_UDP, 103, 1000));
    SHOW("send", send(fd, data.data(), data.size(), 0));
    for (int i = 0; i < 4; i++) tell("recv p 200");
    SHOW("off", set(fd, IPPROTO_UDP, 103, 0));
    SHOW("send", send(fd, data.data(), data.size(), 0));
    tell("recv p 1000");
}

// The peer sends a super-frame; without UDP_GRO each segment is a datagram of its own.
PARITY_CASE(option, peer_segments, kernel_carries(6)) {
    int fd = listening();
    tell(std::string("gso p ") + kHere + " 5000 5000 1200");
    settle();
    for (int i = 0; i < 6; i++) show_recv("recv", fd, MSG_DONTWAIT);
    SHOW("UDP_GRO", set(fd, IPPROTO_UDP, 104, 1));
    tell(std::string("gso p ") + kHere + " 5000 5000 1200");
    settle();
    long total = 0, n;
    while ((n = recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT)) > 0) total += n;
    say("total %ld", total);
}

PARITY_CASE(option, ip_options, kernel_carries(1)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    unsigned char nops[4] = {1, 1, 1, 0};
    SHOW("IP_OPTIONS", setsockopt(fd, IPPROTO_IP, IP_OPTIONS, nops, sizeof nops));
    SHOW("send", send(fd, "options", 7, 0));
    tell("recv p 1000");
    peer_sends(30);
    if (wait_in(fd)) show_recv("recv", fd);
    SHOW("none", setsockopt(fd, IPPROTO_IP, IP_OPTIONS, nullptr, 0));
    SHOW("send", send(fd, "plain", 5, 0));
    tell("recv p 1000");
}

PARITY_CASE(option, path_mtu, kernel_carries(5)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    std::vector<char> data(3000);
    for (int mode : {IP_PMTUDISC_DO, IP_PMTUDISC_DONT, IP_PMTUDISC_WANT, IP_PMTUDISC_PROBE}) {
        SHOW("mode", set(fd, IPPROTO_IP, IP_MTU_DISCOVER, mode));
        for (size_t length : {size_t{1472}, size_t{1473}, size_t{3000}})
            if (SHOW("send", send(fd, data.data(), length, 0)) > 0) tell("recv p 1000");
        query(fd, "SO_ERROR", SOL_SOCKET, SO_ERROR);
    }
}

PARITY_CASE(option, on_the_wire, Traffic::offloaded) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    auto sends = [&](int count = 1) {
        for (int i = 0; i < count; i++) {
            SHOW("send", send(fd, "wire", 4, 0));
            tell("recv p 1000");
        }
    };
    sends(2);
    SHOW("ttl", set(fd, IPPROTO_IP, IP_TTL, 1));
    sends(2);
    SHOW("tos", set(fd, IPPROTO_IP, IP_TOS, 0xb8));
    sends(2);
    SHOW("default ttl", set(fd, IPPROTO_IP, IP_TTL, -1));
    SHOW("tos 0", set(fd, IPPROTO_IP, IP_TOS, 0));
    sends(2);
    unsigned char byte = 0x40;
    SHOW("tos of one byte", setsockopt(fd, IPPROTO_IP, IP_TOS, &byte, 1));
    byte = 33;
    SHOW("ttl of one byte", setsockopt(fd, IPPROTO_IP, IP_TTL, &byte, 1));
    sends(2);
    SHOW("priority", set(fd, SOL_SOCKET, SO_PRIORITY, 5));
    sends(1);
}

// Whatever else looks at the socket in that moment.
PARITY_CASE(option, port_is_free_after_close, Traffic::offloaded) {
    sockaddr_in here = at(kHere, kPort), there = at(kThere, kPeerPort);
    int taken = 0;
    for (int i = 0; i < 3000; i++) {
        int fd = udp();
        if (bind(fd, raw(here), sizeof here) != 0) taken++;
        ok(connect(fd, raw(there), sizeof there));
        ok(shutdown(fd, SHUT_RDWR));
        close(fd);
    }
    say("taken %d times", taken);
}

PARITY_CASE(option, shutdown_states, Traffic::offloaded) {
    signal(SIGPIPE, SIG_IGN);
    peer_opens();
    for (int how : {0 + SHUT_RD, 0 + SHUT_WR, 0 + SHUT_RDWR, 17}) {
        int fd = bound(kHere, kPort);
        say("how %d", how);
        SHOW("unconnected", shutdown(fd, how));
        timeval brief{0, 50'000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        sockaddr_in a = at(kThere, kPeerPort);
        SHOW("sendto", sendto(fd, "x", 1, 0, raw(a), sizeof a));
        close(fd);
        fd = connected(kThere, kPeerPort, kPort);
        peer_sends(10);
        settle();
        SHOW("connected", shutdown(fd, how));
        pollfd p{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
        say("poll %d events %x", poll(&p, 1, 0), static_cast<unsigned>(p.revents));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        SHOW("recv dontwait", recv(fd, g_buffer, 100, MSG_DONTWAIT));
        SHOW("send", send(fd, "x", 1, 0));
        peer_sends(11);
        settle();
        show_recv("after", fd, MSG_DONTWAIT);
        SHOW("again", shutdown(fd, how));
        close(fd);
    }
    SHOW("bad descriptor", shutdown(-1, SHUT_RD));
}

}  // namespace parity
