// SPDX-License-Identifier: BSD-2-Clause
// epoll: triggering modes, set operations, nesting, duplicates, mixed descriptors.
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

char g_buffer[2000];

int listening(int port = kPort) { return bound(kHere, port); }

void show_wait(const char* what, int epfd, int timeout = 0, int room = 16) {
    std::vector<epoll_event> events(16);
    errno = 0;
    int n = epoll_wait(epfd, events.data(), room, timeout), error = errno;
    std::string s;
    auto end = events.begin() + std::max(n, 0);
    std::sort(events.begin(), end, [](auto& a, auto& b) { return a.data.u64 < b.data.u64; });
    for (auto e = events.begin(); e != end; ++e) {
        char one[64];
        snprintf(one, sizeof one, " %lx:%x", static_cast<unsigned long>(e->data.u64), e->events);
        s += one;
    }
    say("%s: %d%s%s%s", what, n, n < 0 ? " " : "", n < 0 ? strerrorname_np(error) : "", s.c_str());
}

int control(int epfd, int op, int fd, uint32_t events, uint64_t data = 0x123456789abcdef0) {
    epoll_event e{events, {.u64 = data}};
    return epoll_ctl(epfd, op, fd, &e);
}

void drain(int fd) {
    int n = 0;
    while (recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT) >= 0) n++;
    say("drained %d", n);
}

void arrive(int count = 1, int port = kPort) {
    peer_sends(30, count, 1, kHere, port);
    settle();
}

}  // namespace

PARITY_CASE(epoll, level_triggered, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), ep = epoll_create1(0);
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN));
    show_wait("empty", ep);
    show_wait("empty, 20", ep, 20);
    arrive(2);
    show_wait("two", ep, 1000);
    show_wait("still", ep);
    ok(recv(fd, g_buffer, 100, 0));
    show_wait("one left", ep);
    drain(fd);
    show_wait("none", ep);
    SHOW("modify", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 5));
    show_wait("out", ep, 1000);
    arrive();
    show_wait("in and out", ep);
    SHOW("no events", control(ep, EPOLL_CTL_MOD, fd, 0));
    show_wait("silent", ep, 20);
    SHOW("rdnorm", control(ep, EPOLL_CTL_MOD, fd, EPOLLRDNORM | EPOLLWRNORM));
    show_wait("rdnorm", ep);
    SHOW("delete", epoll_ctl(ep, EPOLL_CTL_DEL, fd, nullptr));
    show_wait("deleted", ep, 20);
    SHOW("add again", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 6));
    show_wait("added with data", ep);
}

PARITY_CASE(epoll, edge_triggered, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), ep = epoll_create1(0);
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET));
    arrive(2);
    show_wait("edge", ep, 1000);
    show_wait("no edge", ep, 20);
    arrive();
    show_wait("new edge", ep, 1000);
    show_wait("no edge", ep);
    ok(recv(fd, g_buffer, 100, 0));
    show_wait("reading is no edge", ep, 20);
    SHOW("modify", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 7));
    show_wait("modified", ep);
    show_wait("no edge", ep);
    drain(fd);
    show_wait("empty", ep);
    arrive();
    show_wait("edge", ep, 1000);
    drain(fd);
    SHOW("with out", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 8));
    show_wait("out", ep, 1000);
    show_wait("no edge", ep, 20);
    arrive();
    show_wait("edge has both", ep, 1000);
    int late = epoll_create1(0);
    SHOW("late add", control(late, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 9));
    show_wait("late", late, 1000);
    show_wait("late again", late);
}

PARITY_CASE(epoll, one_shot, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), ep = epoll_create1(0);
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT));
    arrive();
    show_wait("shot", ep, 1000);
    show_wait("disarmed", ep, 20);
    arrive();
    show_wait("still disarmed", ep, 20);
    SHOW("rearm", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 3));
    show_wait("shot", ep, 1000);
    show_wait("disarmed", ep, 20);
    drain(fd);
    SHOW("rearm", control(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 4));
    show_wait("empty", ep, 20);
    arrive();
    show_wait("shot", ep, 1000);
    SHOW("add again", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN));
}

PARITY_CASE(epoll, errors, Traffic::offloaded) {
    int fd = listening(), ep = epoll_create1(0), p[2];
    ok(pipe(p));
    SHOW("create 0", epoll_create(0));
    SHOW("create -1", epoll_create(-1));
    SHOW("create1 bad", epoll_create1(12345));
    int other = epoll_create1(EPOLL_CLOEXEC);
    say("cloexec %d", fcntl(other, F_GETFD));
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN));
    SHOW("add twice", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN));
    SHOW("modify unknown", control(ep, EPOLL_CTL_MOD, p[0], EPOLLIN));
    SHOW("delete unknown", control(ep, EPOLL_CTL_DEL, p[0], EPOLLIN));
    SHOW("bad operation", control(ep, 9, fd, EPOLLIN));
    SHOW("null event", epoll_ctl(ep, EPOLL_CTL_MOD, fd, nullptr));
    SHOW("closed fd", control(ep, EPOLL_CTL_ADD, 999, EPOLLIN));
    SHOW("closed set", control(998, EPOLL_CTL_ADD, fd, EPOLLIN));
    SHOW("not a set", control(p[0], EPOLL_CTL_ADD, fd, EPOLLIN));
    SHOW("socket as set", control(fd, EPOLL_CTL_ADD, p[0], EPOLLIN));
    SHOW("itself", control(ep, EPOLL_CTL_ADD, ep, EPOLLIN));
    int file = open("/etc/hostname", O_RDONLY | O_CREAT, 0644);
    SHOW("file", control(ep, EPOLL_CTL_ADD, file, EPOLLIN));
    epoll_event e;
    SHOW("room 0", epoll_wait(ep, &e, 0, 0));
    SHOW("room -1", epoll_wait(ep, &e, -1, 0));
    SHOW("wait on a pipe", epoll_wait(p[0], &e, 1, 0));
    SHOW("wait on a socket", epoll_wait(fd, &e, 1, 0));
    SHOW("wait on a closed set", epoll_wait(998, &e, 1, 0));
    SHOW("exclusive", control(other, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE));
    SHOW("exclusive cannot be modified", control(other, EPOLL_CTL_MOD, fd, EPOLLIN));
    SHOW("delete", control(ep, EPOLL_CTL_DEL, fd, 0));
    SHOW("delete twice", control(ep, EPOLL_CTL_DEL, fd, 0));
    SHOW("close", close(ep));
    SHOW("wait on a closed set", epoll_wait(ep, &e, 1, 0));
}

PARITY_CASE(epoll, mixed_descriptors, Traffic::offloaded) {
    peer_opens();
    int a = listening(), b = listening(kPort + 1), ep = epoll_create1(0), p[2];
    ok(pipe(p));
    control(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
    control(ep, EPOLL_CTL_ADD, b, EPOLLIN, 2);
    control(ep, EPOLL_CTL_ADD, p[0], EPOLLIN, 3);
    show_wait("empty", ep);
    arrive();
    show_wait("a", ep);
    ok(write(p[1], "x", 1));
    show_wait("a, pipe", ep);
    arrive(1, kPort + 1);
    show_wait("all", ep);
    // With less room than events every descriptor gets its turn.
    bool seen[4] = {};
    for (int i = 0; i < 6; i++) {
        epoll_event e{};
        if (epoll_wait(ep, &e, 1, 0) == 1 && e.data.u64 < 4) seen[e.data.u64] = true;
    }
    say("turns %d %d %d", seen[1], seen[2], seen[3]);
    show_wait("room for two", ep, 0, 2);
    drain(a), drain(b);
    show_wait("pipe", ep);
    close(p[1]);
    ok(read(p[0], g_buffer, 10));
    show_wait("hang-up", ep);
    close(p[0]);
    show_wait("closed pipe", ep, 20);
    close(a);
    arrive(1, kPort + 1);
    show_wait("b", ep);
    close(b);
    show_wait("all closed", ep, 20);
}

PARITY_CASE(epoll, waiting, kernel_carries(1)) {
    peer_opens();
    int fd = listening(), ep = epoll_create1(0), p[2];
    ok(pipe(p));
    control(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    control(ep, EPOLL_CTL_ADD, p[0], EPOLLIN, 2);
    for (int delay : {5, 200}) {
        post("sleep " + std::to_string(delay));
        post(std::string("send p ") + kHere + " 5000 30");
        show_wait("datagram", ep, delay == 5 ? -1 : 5000);
        answer(), answer();
        drain(fd);
    }
    if (fork() == 0) {
        usleep(150'000);
        ok(write(p[1], "x", 1));
        _exit(0);
    }
    show_wait("pipe", ep, 5000);
    ok(read(p[0], g_buffer, 1));
    post("sleep 150");
    post(std::string("send p ") + kHere + " 5000 3000");
    show_wait("fragmented", ep, 5000);
    answer(), answer();
    timespec t{0, 20'000'000};
    drain(fd);
    epoll_event e;
    SHOW("pwait2", epoll_pwait2(ep, &e, 1, &t, nullptr));
    t = {0, 1000};
    SHOW("pwait2, 1 us", epoll_pwait2(ep, &e, 1, &t, nullptr));
    t = {0, 1'000'000'000};
    SHOW("pwait2 bad", epoll_pwait2(ep, &e, 1, &t, nullptr));
    SHOW("pwait", epoll_pwait(ep, &e, 1, 10, nullptr));
    arrive();
    SHOW("pwait2, for ever", epoll_pwait2(ep, &e, 1, nullptr, nullptr));
}

PARITY_CASE(epoll, nested, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), inner = epoll_create1(0), outer = epoll_create1(0);
    SHOW("inner", control(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    SHOW("outer", control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
    SHOW("loop", control(inner, EPOLL_CTL_ADD, outer, EPOLLIN, 3));
    show_wait("empty", outer, 20);
    arrive();
    show_wait("outer", outer, 2000);
    show_wait("inner", inner, 2000);
    pollfd p{inner, POLLIN, 0};
    SHOW("poll of the set", poll(&p, 1, 1000));
    say("events %x", static_cast<unsigned>(p.revents));
    drain(fd);
    show_wait("outer empty", outer, 20);
    SHOW("poll of the empty set", poll(&p, 1, 20));
    post("sleep 100");
    post(std::string("send p ") + kHere + " 5000 30");
    p.revents = 0;
    SHOW("poll wakes", poll(&p, 1, 3000));
    answer(), answer();
    drain(fd);
    post("sleep 100");
    post(std::string("send p ") + kHere + " 5000 30");
    show_wait("outer wakes", outer, 3000);
    answer(), answer();
}

PARITY_CASE(epoll, several_sets, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), a = epoll_create1(0), b = epoll_create1(0), twin = dup(a);
    SHOW("a", control(a, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    SHOW("b", control(b, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 2));
    SHOW("duplicate set has it", control(twin, EPOLL_CTL_ADD, fd, EPOLLIN, 3));
    arrive();
    show_wait("a", a), show_wait("b", b), show_wait("b", b), show_wait("twin", twin);
    close(a);
    show_wait("twin after close", twin);
    SHOW("delete through twin", control(twin, EPOLL_CTL_DEL, fd, 0));
    show_wait("twin empty", twin, 20);
}

// The set holds the open file, not the number.
PARITY_CASE(epoll, duplicated_socket, Traffic::offloaded) {
    peer_opens();
    int fd = listening(), ep = epoll_create1(0), twin = dup(fd);
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    SHOW("add twin", control(ep, EPOLL_CTL_ADD, twin, EPOLLIN, 2));
    arrive();
    show_wait("both", ep);
    SHOW("close", close(fd));
    show_wait("one closed", ep);
    drain(twin);
    arrive();
    show_wait("data for the closed number too", ep);
    SHOW("delete closed", control(ep, EPOLL_CTL_DEL, fd, 0));
    SHOW("close twin", close(twin));
    show_wait("none", ep, 20);
    int again = listening();
    say("number reused: %d", again == fd);
    arrive();
    show_wait("not in the set", ep, 20);
    SHOW("add", control(ep, EPOLL_CTL_ADD, again, EPOLLIN, 3));
    show_wait("added", ep);
}

// A socket becomes offloadable by bind or connect after it was added.
PARITY_CASE(epoll, added_before_bind, Traffic::offloaded) {
    peer_opens();
    int fd = udp(), ep = epoll_create1(0);
    SHOW("add", control(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1));
    show_wait("unbound", ep, 20);
    sockaddr_in a = at(kHere, kPort), p = at(kThere, kPeerPort);
    SHOW("bind", bind(fd, raw(a), sizeof a));
    arrive();
    show_wait("bound", ep, 1000);
    drain(fd);
    SHOW("connect", connect(fd, raw(p), sizeof p));
    arrive();
    show_wait("connected", ep, 1000);
    drain(fd);
    SHOW("option that may leave the fast path", set(fd, SOL_SOCKET, SO_TIMESTAMP, 1));
    arrive();
    show_wait("after option", ep, 1000);
    show_recv("recv", fd, MSG_DONTWAIT);
}

}  // namespace parity
