// SPDX-License-Identifier: BSD-2-Clause
// Every way to send, with every flag and every wrong argument; the agent reports what arrived.
#include <netinet/udp.h>
#include <signal.h>
#include <sys/mman.h>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

void arrives(int count = 1) {
    for (int i = 0; i < count; i++) tell("recv p 1500");
}

msghdr message(iovec* iov, size_t count, sockaddr_in* to = nullptr) {
    msghdr m{};
    m.msg_iov = iov;
    m.msg_iovlen = count;
    if (to != nullptr) {
        m.msg_name = to;
        m.msg_namelen = sizeof *to;
    }
    return m;
}

}  // namespace

PARITY_CASE(send, connected_calls, Traffic::offloaded) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    char text[] = "0123456789abcdef";
    iovec iov[3] = {{text, 4}, {text + 4, 0}, {text + 8, 8}};
    SHOW("send", send(fd, text, 5, 0));
    SHOW("write", write(fd, text, 6));
    SHOW("writev", writev(fd, iov, 3));
    SHOW("sendto without address", sendto(fd, text, 7, 0, nullptr, 0));
    msghdr m = message(iov, 3);
    SHOW("sendmsg", sendmsg(fd, &m, 0));
    mmsghdr many[3] = {{message(iov, 1), 99}, {message(iov, 2), 99}, {message(iov, 3), 99}};
    SHOW("sendmmsg", sendmmsg(fd, many, 3, 0));
    say("lengths %u %u %u", many[0].msg_len, many[1].msg_len, many[2].msg_len);
    arrives(8);
}

PARITY_CASE(send, unconnected_calls, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    int fd = bound(kHere, kPort);
    sockaddr_in p = at(kThere, kPeerPort), q = at(kThere, 6001);
    char text[] = "0123456789abcdef";
    iovec iov[2] = {{text, 4}, {text + 8, 8}};
    SHOW("sendto", sendto(fd, text, 5, 0, raw(p), sizeof p));
    msghdr m = message(iov, 2, &p);
    SHOW("sendmsg", sendmsg(fd, &m, 0));
    mmsghdr many[4] = {{message(iov, 1, &p), 0},
                       {message(iov, 1, &q), 0},
                       {message(iov, 2, &p), 0},
                       {message(iov, 2, &q), 0}};
    SHOW("sendmmsg", sendmmsg(fd, many, 4, 0));
    arrives(4);
    tell("recv q 1500");
    tell("recv q 1500");
    // A connected socket may still name another receiver.
    SHOW("connect", connect(fd, raw(p), sizeof p));
    SHOW("sendto elsewhere", sendto(fd, text, 6, 0, raw(q), sizeof q));
    SHOW("send", send(fd, text, 7, 0));
    tell("recv q 1500");
    arrives();
}

PARITY_CASE(send, unbound, kernel_carries(2)) {
    peer_opens();
    int fd = udp();
    sockaddr_in p = at(kThere, kPeerPort);
    SHOW("sendto", sendto(fd, "abc", 3, 0, raw(p), sizeof p));
    show_name("after sendto", fd);
    arrives();
    sockaddr_in name{};
    socklen_t length = sizeof name;
    ok(getsockname(fd, raw(name), &length));
    for (int i = 0; i < 5; i++) {
        peer_sends(60, 1, 1, kHere, ntohs(name.sin_port));
        if (wait_in(fd)) show_recv("answer", fd);
        SHOW("sendto", sendto(fd, "abc", 3, 0, raw(p), sizeof p));
        arrives();
    }
}

PARITY_CASE(send, flags, kernel_carries(7)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    struct {
        const char* name;
        int flag;
    } flags[] = {{"DONTWAIT", MSG_DONTWAIT},   {"NOSIGNAL", MSG_NOSIGNAL}, {"CONFIRM", MSG_CONFIRM},
                 {"DONTROUTE", MSG_DONTROUTE}, {"EOR", MSG_EOR},           {"OOB", MSG_OOB},
                 {"PEEK", MSG_PEEK},           {"TRUNC", MSG_TRUNC},       {"ERRQUEUE", MSG_ERRQUEUE},
                 {"WAITALL", MSG_WAITALL}};
    for (auto& f : flags) {
        char text[16] = {};
        snprintf(text, sizeof text, "%s", f.name);
        SHOW(f.name, send(fd, text, 5, f.flag));
        arrives();
    }
}

// MSG_MORE and UDP_CORK gather several calls into one datagram.
PARITY_CASE(send, more, kernel_carries(2)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    SHOW("more", send(fd, "abc", 3, MSG_MORE));
    SHOW("more", send(fd, "defg", 4, MSG_MORE));
    tell("recv p 50");
    SHOW("last", send(fd, "hi", 2, 0));
    arrives();
    SHOW("cork", set(fd, IPPROTO_UDP, UDP_CORK, 1));
    SHOW("send", send(fd, "jkl", 3, 0));
    SHOW("send", send(fd, "mn", 2, 0));
    SHOW("uncork", set(fd, IPPROTO_UDP, UDP_CORK, 0));
    arrives();
    SHOW("plain", send(fd, "opq", 3, 0));
    arrives();
}

PARITY_CASE(send, bad_addresses, kernel_carries(2)) {
    peer_opens();
    int fd = bound(kHere, kPort);
    sockaddr_in p = at(kThere, kPeerPort);
    SHOW("no destination", send(fd, "x", 1, 0));
    SHOW("write without destination", write(fd, "x", 1));
    SHOW("sendto null", sendto(fd, "x", 1, 0, nullptr, 0));
    SHOW("sendto null with length", sendto(fd, "x", 1, 0, nullptr, sizeof p));
    SHOW("short", sendto(fd, "x", 1, 0, raw(p), 8));
    SHOW("length 15", sendto(fd, "x", 1, 0, raw(p), 15));
    SHOW("length -1", sendto(fd, "x", 1, 0, raw(p), static_cast<socklen_t>(-1)));
    sockaddr_in a = at(kThere, 0);
    SHOW("port 0", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = p;
    a.sin_family = AF_INET6;
    SHOW("inet6", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a.sin_family = AF_UNIX;
    SHOW("unix", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = at("203.0.113.9", 80);
    SHOW("no route", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = at("198.18.1.255", kPeerPort);
    SHOW("broadcast", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = at("255.255.255.255", kPeerPort);
    SHOW("limited broadcast", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = at("127.0.0.1", kPeerPort);
    SHOW("loopback", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    a = p;
    a.sin_family = AF_UNSPEC;
    SHOW("unspecified family", sendto(fd, "xy", 2, 0, raw(a), sizeof a));
    arrives();
    char room[128] = {};
    memcpy(room, &p, sizeof p);
    SHOW("long address", sendto(fd, "xyz", 3, 0, reinterpret_cast<sockaddr*>(room), sizeof room));
    arrives();
    SHOW("good", sendto(fd, "x", 1, 0, raw(p), sizeof p));
    arrives();
}

PARITY_CASE(send, bad_buffers, kernel_carries(1)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    std::vector<char> big(70000);
    void* hole = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHOW("null", send(fd, nullptr, 10, 0));
    SHOW("null, zero length", send(fd, nullptr, 0, 0));
    arrives();
    SHOW("hole", send(fd, hole, 10, 0));
    SHOW("hole, big", send(fd, hole, 5000, 0));
    SHOW("write null", write(fd, nullptr, 10));
    SHOW("65507", send(fd, big.data(), 65507, 0));
    arrives();
    SHOW("65508", send(fd, big.data(), 65508, 0));
    SHOW("65536", send(fd, big.data(), 65536, 0));
    SHOW("70000", send(fd, big.data(), 70000, 0));
    SHOW("huge", send(fd, big.data(), SIZE_MAX, 0));
    iovec iov[2] = {{big.data(), 4}, {nullptr, 10}};
    SHOW("writev with null", writev(fd, iov, 2));
    SHOW("writev null vector", writev(fd, nullptr, 2));
    SHOW("writev count 0", writev(fd, iov, 0));
    SHOW("writev count -1", writev(fd, iov, -1));
    SHOW("sendmsg null", sendmsg(fd, nullptr, 0));
    msghdr m = message(nullptr, 2);
    SHOW("sendmsg null vector", sendmsg(fd, &m, 0));
    m = message(iov, 2);
    SHOW("sendmsg with null", sendmsg(fd, &m, 0));
    m = message(iov, 0);
    SHOW("sendmsg empty vector", sendmsg(fd, &m, 0));
    arrives();
    iov[1] = {big.data(), SIZE_MAX};
    SHOW("writev overflow", writev(fd, iov, 2));
    tell("recv p 50");
}

PARITY_CASE(send, many_vectors, Traffic::offloaded) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    std::vector<uint8_t> data = payload::make(2048, 3);
    std::vector<iovec> iov(1025);
    for (size_t i = 0; i < iov.size(); i++) iov[i] = {data.data() + i, 1};
    for (size_t count : {size_t{3}, size_t{17}, size_t{300}, size_t{1024}}) {
        SHOW("writev", writev(fd, iov.data(), static_cast<int>(count)));
        arrives();
    }
    SHOW("writev 1025", writev(fd, iov.data(), 1025));
    msghdr m = message(iov.data(), 1024);
    SHOW("sendmsg 1024", sendmsg(fd, &m, 0));
    arrives();
    m = message(iov.data(), 1025);
    SHOW("sendmsg 1025", sendmsg(fd, &m, 0));
}

PARITY_CASE(send, many_messages, Traffic::offloaded) {
    peer_opens();
    ask("set p rcvbuf 4000000");
    int fd = connected(kThere, kPeerPort, kPort);
    std::vector<std::vector<uint8_t>> data;
    std::vector<iovec> iov(1100);
    std::vector<mmsghdr> many(1100);
    for (size_t i = 0; i < many.size(); i++) {
        data.push_back(payload::make(100, static_cast<uint32_t>(i)));
        iov[i] = {data[i].data(), data[i].size()};
        many[i].msg_hdr = message(&iov[i], 1);
    }
    SHOW("0 messages", sendmmsg(fd, many.data(), 0, 0));
    SHOW("64 messages", sendmmsg(fd, many.data(), 64, 0));
    tell("drain p 300");
    SHOW("1100 messages", sendmmsg(fd, many.data(), 1100, 0));
    tell("drain p 300");
    iov[2].iov_len = 70000;
    SHOW("third too long", sendmmsg(fd, many.data(), 5, 0));
    iov[0].iov_base = nullptr;
    SHOW("first bad", sendmmsg(fd, many.data(), 5, 0));
    SHOW("null", sendmmsg(fd, nullptr, 5, 0));
    tell("drain p 100");
}

// Fragments too, both ways, content checked by hash.
PARITY_CASE(send, sizes, kernel_carries(5)) {
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    for (int length : {0, 1, 2, 100, 1471, 1472, 1473, 4000, 9000, 20000, 65507}) {
        auto data = payload::make(static_cast<size_t>(length), 5);
        SHOW("send", send(fd, data.data(), data.size(), 0));
        arrives();
    }
}

// Nothing overtakes, although fragmented datagrams take another way.
PARITY_CASE(send, burst_in_order, Traffic::offloaded) {
    peer_opens();
    ask("set p rcvbuf 4000000");
    int fd = connected(kThere, kPeerPort, kPort);
    for (uint32_t i = 0; i < 1000; i++) {
        auto data = payload::make(40 + i, i);
        if (send(fd, data.data(), data.size(), 0) != static_cast<ssize_t>(data.size()))
            say("send %u failed", i);
    }
    tell("drain p 300");
}

PARITY_CASE(send, control_messages, kernel_carries(4)) {
    peer_opens();
    int fd = bound("0.0.0.0", kPort);
    sockaddr_in p = at(kThere, kPeerPort);
    char body[] = "hello";
    iovec iov{body, 5};
    auto with = [&](const char* what, int level, int type, const void* data, size_t length) {
        alignas(cmsghdr) char control[128] = {};
        msghdr m = message(&iov, 1, &p);
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(length);
        cmsghdr* c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = level;
        c->cmsg_type = type;
        c->cmsg_len = CMSG_LEN(length);
        memcpy(CMSG_DATA(c), data, length);
        if (SHOW(what, sendmsg(fd, &m, 0)) >= 0) arrives();
    };
    in_pktinfo info{};
    info.ipi_spec_dst = at(kHereSecond, 0).sin_addr;
    with("source address", IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    info.ipi_spec_dst = at("198.18.1.77", 0).sin_addr;
    with("foreign source", IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    int ttl = 9, tos = 0x20, bad = 300;
    with("ttl", IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
    with("bad ttl", IPPROTO_IP, IP_TTL, &bad, sizeof bad);
    with("tos", IPPROTO_IP, IP_TOS, &tos, sizeof tos);
    with("unknown", IPPROTO_IP, 9999, &tos, sizeof tos);
    with("other level", 4711, 1, &tos, sizeof tos);
    msghdr m = message(&iov, 1, &p);
    m.msg_control = nullptr;
    m.msg_controllen = 64;
    SHOW("null control", sendmsg(fd, &m, 0));
    char junk[64];
    memset(junk, 0xff, sizeof junk);
    m.msg_control = junk;
    SHOW("junk control", sendmsg(fd, &m, 0));
}

PARITY_CASE(send, broken_pipe_signal, Traffic::offloaded) {
    signal(SIGPIPE, [](int) { say("SIGPIPE"); });
    peer_opens();
    int fd = connected(kThere, kPeerPort, kPort);
    SHOW("shutdown", shutdown(fd, SHUT_WR));
    SHOW("send", send(fd, "x", 1, 0));
    SHOW("send nosignal", send(fd, "x", 1, MSG_NOSIGNAL));
    SHOW("write", write(fd, "x", 1));
    sockaddr_in p = at(kThere, kPeerPort);
    SHOW("sendto", sendto(fd, "x", 1, MSG_NOSIGNAL, raw(p), sizeof p));
}

PARITY_CASE(send, to_self, kernel_carries(10)) {
    int fd = bound("0.0.0.0", kPort);
    for (const char* to : {kHere, kHereSecond, "127.0.0.1", "127.9.9.9", "0.0.0.0"}) {
        sockaddr_in a = at(to, kPort);
        SHOW(to, sendto(fd, "self", 4, 0, raw(a), sizeof a));
        if (wait_in(fd)) show_recv("recv", fd);
    }
}

}  // namespace parity
