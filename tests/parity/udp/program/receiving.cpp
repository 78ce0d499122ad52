// SPDX-License-Identifier: BSD-2-Clause
// Every way to receive, with every flag, size and wrong argument.
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

uint8_t g_buffer[70000];

int ready_socket() {
    peer_opens();
    return bound(kHere, kPort);
}

mmsghdr one(iovec* iov, sockaddr_in* from = nullptr) {
    mmsghdr m{};
    m.msg_hdr.msg_iov = iov;
    m.msg_hdr.msg_iovlen = 1;
    m.msg_hdr.msg_name = from;
    m.msg_hdr.msg_namelen = from == nullptr ? 0 : sizeof *from;
    m.msg_len = 4711;
    return m;
}

}  // namespace

PARITY_CASE(recv, calls, Traffic::offloaded) {
    int fd = ready_socket();
    peer_sends(50, 6);
    settle();
    long n = SHOW("recv", recv(fd, g_buffer, sizeof g_buffer, 0));
    say("%s", digest(g_buffer, n).c_str());
    sockaddr_in from{};
    socklen_t length = sizeof from;
    n = SHOW("recvfrom", recvfrom(fd, g_buffer, sizeof g_buffer, 0, raw(from), &length));
    say("%s from %s", digest(g_buffer, n).c_str(), text(&from, length).c_str());
    n = SHOW("read", read(fd, g_buffer, sizeof g_buffer));
    say("%s", digest(g_buffer, n).c_str());
    iovec iov[3] = {{g_buffer, 10}, {g_buffer + 100, 0}, {g_buffer + 10, 100}};
    n = SHOW("readv", readv(fd, iov, 3));
    say("%s", digest(g_buffer, n).c_str());
    show_recv("recvmsg", fd);
    iovec single{g_buffer, sizeof g_buffer};
    mmsghdr m = one(&single, &from);
    SHOW("recvmmsg", recvmmsg(fd, &m, 1, 0, nullptr));
    say("%s from %s", digest(g_buffer, m.msg_len).c_str(), text(&from, m.msg_hdr.msg_namelen).c_str());
    SHOW("empty", recv(fd, g_buffer, 10, MSG_DONTWAIT));
}

PARITY_CASE(recv, blocking, Traffic::offloaded) {
    int fd = ready_socket();
    for (int delay : {0, 5, 150}) {
        post("sleep " + std::to_string(delay));
        post(std::string("send p ") + kHere + " 5000 77 1 3");
        show_recv("recv", fd);
        answer(), answer();
    }
}

PARITY_CASE(recv, flags, Traffic::offloaded) {
    int fd = ready_socket();
    peer_sends(60, 8);
    settle();
    show_recv("peek", fd, MSG_PEEK);
    show_recv("peek again", fd, MSG_PEEK);
    show_recv("peek dontwait", fd, MSG_PEEK | MSG_DONTWAIT);
    show_recv("plain", fd);
    show_recv("trunc with room", fd, MSG_TRUNC);
    show_recv("trunc", fd, MSG_TRUNC, 20);
    show_recv("peek trunc", fd, MSG_PEEK | MSG_TRUNC, 20);
    show_recv("waitall", fd, MSG_WAITALL);
    show_recv("oob", fd, MSG_OOB);
    show_recv("nosignal", fd, MSG_NOSIGNAL);
    show_recv("cloexec", fd, MSG_CMSG_CLOEXEC);
    show_recv("errqueue", fd, MSG_ERRQUEUE);
    show_recv("errqueue dontwait", fd, MSG_ERRQUEUE | MSG_DONTWAIT);
    show_recv("dontwait", fd, MSG_DONTWAIT);
    for (int i = 0; i < 3; i++) show_recv("rest", fd, MSG_DONTWAIT);
}

PARITY_CASE(recv, truncation, kernel_carries(2)) {
    int fd = ready_socket();
    peer_sends(1000, 5);
    settle();
    SHOW("recv 10", recv(fd, g_buffer, 10, 0));
    say("%s", digest(g_buffer, 10).c_str());
    SHOW("recv 10 trunc", recv(fd, g_buffer, 10, MSG_TRUNC));
    SHOW("read 10", read(fd, g_buffer, 10));
    iovec iov[2] = {{g_buffer, 3}, {g_buffer + 3, 4}};
    SHOW("readv 7", readv(fd, iov, 2));
    say("%s", digest(g_buffer, 7).c_str());
    show_recv("recvmsg 100", fd, 0, 100);
    show_recv("empty", fd, MSG_DONTWAIT);
    peer_sends(5000, 2);
    settle();
    show_recv("fragmented, room 100", fd, MSG_DONTWAIT, 100);
    show_recv("fragmented, trunc", fd, MSG_DONTWAIT | MSG_TRUNC, 100);
}

PARITY_CASE(recv, zero_lengths, Traffic::offloaded) {
    int fd = ready_socket();
    peer_sends(0, 5);
    settle();
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    SHOW("read", read(fd, g_buffer, 100));
    show_recv("recvmsg", fd);
    iovec iov{g_buffer, 100};
    mmsghdr m = one(&iov);
    SHOW("recvmmsg", recvmmsg(fd, &m, 1, 0, nullptr));
    say("length %u", m.msg_len);
    int pending = -1;
    SHOW("FIONREAD", ioctl(fd, FIONREAD, &pending));
    say("pending %d", pending);
    SHOW("recv into nothing", recv(fd, nullptr, 0, 0));
    peer_sends(10, 6);
    settle();
    SHOW("room 0", recv(fd, g_buffer, 0, 0));
    SHOW("room 0 trunc", recv(fd, g_buffer, 0, MSG_TRUNC));
    SHOW("read 0", read(fd, g_buffer, 0));
    SHOW("readv 0", readv(fd, &iov, 0));
    show_recv("recvmsg room 0", fd, MSG_DONTWAIT, 0);
    for (int i = 0; i < 6; i++) show_recv("rest", fd, MSG_DONTWAIT);
}

PARITY_CASE(recv, sender_names, Traffic::offloaded) {
    int fd = ready_socket();
    peer_sends(20, 11);
    settle();
    for (int room : {0, 1, 4, 8, 15, 16, 17, 100}) {
        char name[101];
        memset(name, 0x55, sizeof name);
        socklen_t length = static_cast<socklen_t>(room);
        long n = SHOW("recvfrom",
                      recvfrom(fd, g_buffer, 100, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(name), &length));
        int kept = 0;
        while (kept < 101 && name[100 - kept] == 0x55) kept++;
        say("room %d: %ld, length %d, untouched tail %d", room, n, static_cast<int>(length), kept);
    }
    SHOW("no length",
         recvfrom(fd, g_buffer, 100, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(g_buffer), nullptr));
    socklen_t length = static_cast<socklen_t>(-1);
    SHOW("length -1",
         recvfrom(fd, g_buffer, 100, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(g_buffer), &length));
    length = 77;
    SHOW("no name", recvfrom(fd, g_buffer, 100, MSG_DONTWAIT, nullptr, &length));
    say("length stays %u", length);
    show_recv("rest", fd, MSG_DONTWAIT);
    iovec iov{g_buffer, 100};
    peer_sends(20, 2);
    settle();
    for (socklen_t room : {socklen_t{6}, socklen_t{64}}) {
        char name[64];
        msghdr m{};
        m.msg_name = name;
        m.msg_namelen = room;
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        SHOW("recvmsg", recvmsg(fd, &m, MSG_DONTWAIT));
        say("namelen %u", m.msg_namelen);
    }
}

PARITY_CASE(recv, bad_memory, Traffic::offloaded) {
    int fd = ready_socket();
    void* hole = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHOW("null, queue empty", recv(fd, nullptr, 100, MSG_DONTWAIT));
    SHOW("recvmsg null", recvmsg(fd, nullptr, MSG_DONTWAIT));
    SHOW("recvmmsg null", recvmmsg(fd, nullptr, 2, MSG_DONTWAIT, nullptr));
    peer_sends(30, 8);
    settle();
    SHOW("null", recv(fd, nullptr, 100, MSG_DONTWAIT));
    SHOW("hole", recv(fd, hole, 100, MSG_DONTWAIT));
    SHOW("read hole", read(fd, hole, 100));
    iovec iov[2] = {{g_buffer, 10}, {hole, 100}};
    SHOW("readv half good", readv(fd, iov, 2));
    SHOW("readv null vector", readv(fd, nullptr, 2));
    SHOW("readv count -1", readv(fd, iov, -1));
    std::vector<iovec> many(1025, iovec{g_buffer, 1});
    SHOW("readv 1025", readv(fd, many.data(), 1025));
    msghdr m{};
    m.msg_iov = many.data();
    m.msg_iovlen = 1025;
    SHOW("recvmsg 1025", recvmsg(fd, &m, MSG_DONTWAIT));
    m.msg_iov = nullptr;
    m.msg_iovlen = 1;
    SHOW("recvmsg null vector", recvmsg(fd, &m, MSG_DONTWAIT));
    long left = 0;
    while (recv(fd, g_buffer, 100, MSG_DONTWAIT) == 30) left++;
    say("left in the queue: %ld", left);
}

PARITY_CASE(recv, vectors, kernel_carries(2)) {
    int fd = ready_socket();
    std::vector<iovec> iov(1024);
    for (size_t i = 0; i < iov.size(); i++) iov[i] = {g_buffer + 2 * i, 2};
    peer_sends(1400, 1, 5);
    if (!wait_in(fd)) return;
    long n = SHOW("readv", readv(fd, iov.data(), 1024));
    say("%s", digest(g_buffer, n).c_str());
    peer_sends(9000, 1, 6);
    if (!wait_in(fd)) return;
    n = SHOW("readv truncating", readv(fd, iov.data(), 1024));
    say("%s", digest(g_buffer, n).c_str());
    for (size_t i = 0; i < iov.size(); i++) iov[i] = {g_buffer + 9 * i, 9};
    peer_sends(9000, 1, 7);
    if (!wait_in(fd)) return;
    n = SHOW("readv fragmented", readv(fd, iov.data(), 1024));
    say("%s", digest(g_buffer, n).c_str());
}

PARITY_CASE(recv, sizes, kernel_carries(5)) {
    int fd = ready_socket();
    for (int length : {0, 1, 2, 100, 1471, 1472, 1473, 4000, 9000, 20000, 65507}) {
        peer_sends(length, 1, 9);
        if (wait_in(fd)) show_recv("recv", fd);
    }
}

PARITY_CASE(recv, order, Traffic::offloaded) {
    int fd = ready_socket();
    set(fd, SOL_SOCKET, SO_RCVBUF, 2'000'000);
    post(std::string("send p ") + kHere + " 5000 200 1500 0 20");
    uint32_t expected = 0;
    while (expected < 1500 && wait_in(fd, 1000)) {
        ssize_t n = recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT);
        uint32_t seed = payload::seed_of(g_buffer, 200);
        if (n != 200 || seed != expected || !payload::intact(g_buffer, 200)) {
            say("expected %u, got %u of %zd bytes", expected, seed, n);
            break;
        }
        expected++;
    }
    say("%u in order; %s", expected, answer().c_str());
}

// Bursts of whole and fragmented datagrams: all arrive, each once.
PARITY_CASE(recv, mixed_sizes, kernel_carries(35)) {
    int fd = ready_socket();
    set(fd, SOL_SOCKET, SO_RCVBUF, 2'000'000);
    for (int i = 0; i < 20; i++) peer_sends(i % 3 == 0 ? 3000 : 300, 5, 1 + i * 5);
    std::vector<bool> seen(101);
    int good = 0;
    while (good < 100 && wait_in(fd, 1000)) {
        ssize_t n = recv(fd, g_buffer, sizeof g_buffer, 0);
        uint32_t seed = payload::seed_of(g_buffer, static_cast<size_t>(n));
        if (seed == 0 || seed > 100 || seen[seed] || !payload::intact(g_buffer, static_cast<size_t>(n))) {
            say("datagram %u of %zd bytes is wrong or came twice", seed, n);
            break;
        }
        seen[seed] = true;
        good++;
    }
    say("%d arrived", good);
}

PARITY_CASE(recv, several_at_once, Traffic::offloaded) {
    int fd = ready_socket();
    iovec iov[8];
    sockaddr_in from[8];
    mmsghdr m[8];
    static uint8_t rooms[8][200];
    auto prepare = [&] {
        for (int i = 0; i < 8; i++) {
            iov[i] = {rooms[i], 200};
            m[i] = one(&iov[i], &from[i]);
        }
    };
    auto report = [&](long n) {
        for (long i = 0; i < n; i++)
            say("  %s from %s flags %s", digest(rooms[i], m[i].msg_len < 200 ? m[i].msg_len : 200).c_str(),
                text(&from[i], m[i].msg_hdr.msg_namelen).c_str(), flags_text(m[i].msg_hdr.msg_flags).c_str());
    };
    prepare();
    SHOW("empty", recvmmsg(fd, m, 8, MSG_DONTWAIT, nullptr));
    SHOW("count 0", recvmmsg(fd, m, 0, 0, nullptr));
    peer_sends(50, 3);
    settle();
    report(SHOW("dontwait", recvmmsg(fd, m, 8, MSG_DONTWAIT, nullptr)));
    peer_sends(500, 3);
    settle();
    prepare();
    report(SHOW("waitforone", recvmmsg(fd, m, 8, MSG_WAITFORONE, nullptr)));
    peer_sends(40, 4);
    settle();
    prepare();
    timespec brief{0, 100'000'000};
    // The kernel looks at the time-out only after a datagram has come: a fifth one ends the call.
    post("sleep 200");
    post(std::string("send p ") + kHere + " 5000 41 1 9");
    report(SHOW("timeout", recvmmsg(fd, m, 8, 0, &brief)));
    answer(), answer();
    timespec wrong{0, 2'000'000'000};
    SHOW("bad timeout", recvmmsg(fd, m, 8, 0, &wrong));
    wrong = {-1, 0};
    SHOW("negative timeout", recvmmsg(fd, m, 8, 0, &wrong));
    peer_sends(30, 2);
    settle();
    prepare();
    m[1].msg_hdr.msg_iov = nullptr;
    report(SHOW("second bad", recvmmsg(fd, m, 2, MSG_DONTWAIT, nullptr)));
    prepare();
    report(SHOW("peek", recvmmsg(fd, m, 3, MSG_DONTWAIT | MSG_PEEK, nullptr)));
    prepare();
    report(SHOW("rest", recvmmsg(fd, m, 3, MSG_DONTWAIT, nullptr)));
    post("sleep 50");
    post(std::string("send p ") + kHere + " 5000 42 3 1 20000");
    prepare();
    report(SHOW("three, blocking", recvmmsg(fd, m, 3, 0, nullptr)));
    answer(), answer();
}

PARITY_CASE(recv, unbound, Traffic::offloaded) {
    int fd = udp();
    SHOW("dontwait", recv(fd, g_buffer, 10, MSG_DONTWAIT));
    set(fd, SOL_SOCKET, SO_RCVTIMEO, 0);
    timeval brief{0, 50'000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    SHOW("with timeout", recv(fd, g_buffer, 10, 0));
    show_name("after", fd);
}

}  // namespace parity
