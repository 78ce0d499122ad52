// SPDX-License-Identifier: BSD-2-Clause
// Signals that interrupt waiting calls, early (a library may still be spinning) and late (it sleeps).
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

volatile sig_atomic_t g_handled;
char g_buffer[2000];

void count(int) { g_handled = g_handled + 1; }

void handle(int flags, void (*handler)(int) = count) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(SIGALRM, &action, nullptr);
}

void alarm_in(long usec, long again = 0) {
    itimerval t{{0, again}, {0, usec}};
    setitimer(ITIMER_REAL, &t, nullptr);
}

int listening() {
    peer_opens();
    return bound(kHere, kPort);
}

constexpr long kEarly = 5'000, kLate = 250'000;

}  // namespace

PARITY_CASE(signal, interrupts_receive, Traffic::offloaded) {
    int fd = listening();
    iovec iov{g_buffer, 100};
    msghdr m{};
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    mmsghdr mm{m, 0};
    handle(0);
    for (long delay : {kEarly, kLate}) {
        g_handled = 0;
        alarm_in(delay);
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        alarm_in(delay);
        SHOW("recvfrom", recvfrom(fd, g_buffer, 100, 0, nullptr, nullptr));
        alarm_in(delay);
        SHOW("recvmsg", recvmsg(fd, &m, 0));
        alarm_in(delay);
        SHOW("recvmmsg", recvmmsg(fd, &mm, 1, 0, nullptr));
        alarm_in(delay);
        SHOW("read", read(fd, g_buffer, 100));
        say("handled %d", static_cast<int>(g_handled));
    }
}

PARITY_CASE(signal, restarts_receive, Traffic::offloaded) {
    int fd = listening();
    handle(SA_RESTART);
    for (long delay : {kEarly, kLate}) {
        g_handled = 0;
        alarm_in(delay);
        post("sleep " + std::to_string(delay / 1000 + 150));
        post(std::string("send p ") + kHere + " 5000 30");
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        answer(), answer();
        say("handled %d", static_cast<int>(g_handled));
    }
    // With a time-out the call ends even so.
    timeval t{3, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    for (long delay : {kEarly, kLate}) {
        alarm_in(delay);
        SHOW("recv with timeout", recv(fd, g_buffer, 100, 0));
    }
}

PARITY_CASE(signal, interrupts_poll, Traffic::offloaded) {
    int fd = listening(), ep = epoll_create1(0);
    epoll_event add{EPOLLIN, {.u64 = 1}}, got;
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &add);
    for (int flags : {0, int{SA_RESTART}}) {
        handle(flags);
        for (long delay : {kEarly, kLate}) {
            say("flags %x delay %ld", static_cast<unsigned>(flags), delay);
            pollfd p{fd, POLLIN, 0};
            alarm_in(delay);
            SHOW("poll", poll(&p, 1, 3000));
            fd_set r;
            FD_ZERO(&r);
            FD_SET(fd, &r);
            timeval t{3, 0};
            alarm_in(delay);
            SHOW("select", select(fd + 1, &r, nullptr, nullptr, &t));
            alarm_in(delay);
            SHOW("epoll_wait", epoll_wait(ep, &got, 1, 3000));
            alarm_in(delay);
            SHOW("epoll_wait for ever", epoll_wait(ep, &got, 1, -1));
        }
    }
}

// A signal blocked outside and let in by the call's mask; one that stays out must not end the call.
PARITY_CASE(signal, masks, Traffic::offloaded) {
    int fd = listening(), ep = epoll_create1(0);
    epoll_event add{EPOLLIN, {.u64 = 1}}, got;
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &add);
    handle(0);
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    timespec t{1, 0}, brief{0, 50'000'000};
    pollfd p{fd, POLLIN, 0};
    fd_set r;
    g_handled = 0;
    raise(SIGALRM);
    SHOW("ppoll blocked", ppoll(&p, 1, &brief, &blocked));
    say("handled %d", static_cast<int>(g_handled));
    SHOW("ppoll open", ppoll(&p, 1, &t, &open));
    say("handled %d", static_cast<int>(g_handled));
    raise(SIGALRM);
    FD_ZERO(&r);
    FD_SET(fd, &r);
    SHOW("pselect open", pselect(fd + 1, &r, nullptr, nullptr, &t, &open));
    raise(SIGALRM);
    SHOW("epoll_pwait open", epoll_pwait(ep, &got, 1, 1000, &open));
    say("handled %d", static_cast<int>(g_handled));
    alarm_in(100'000);
    SHOW("ppoll late", ppoll(&p, 1, &t, &open));
    alarm_in(100'000);
    SHOW("epoll_pwait late", epoll_pwait(ep, &got, 1, 1000, &open));
    // Data beats the pending signal, which stays pending.
    peer_sends(30);
    settle();
    raise(SIGALRM);
    SHOW("epoll_pwait blocked with data", epoll_pwait(ep, &got, 1, 1000, &blocked));
    say("handled %d", static_cast<int>(g_handled));
}

PARITY_CASE(signal, ignored_ones, Traffic::offloaded) {
    int fd = listening();
    signal(SIGALRM, SIG_IGN);
    for (long delay : {kEarly, kLate}) {
        alarm_in(delay);
        post("sleep " + std::to_string(delay / 1000 + 100));
        post(std::string("send p ") + kHere + " 5000 30");
        SHOW("recv", recv(fd, g_buffer, 100, 0));
        answer(), answer();
    }
}

namespace {
int g_socket;
volatile sig_atomic_t g_sent;
constexpr int kFromHandler = 200;  // datagrams; each may go through the kernel
void send_from_handler(int) {
    if (g_sent == kFromHandler) return;
    int saved = errno;
    sockaddr_in a = at(kThere, 6001);
    if (sendto(g_socket, "from the handler", 16, 0, raw(a), sizeof a) == 16) g_sent = g_sent + 1;
    errno = saved;
}
}  // namespace

// A handler uses the socket its own thread is just using.
PARITY_CASE(signal, handler_sends, kernel_carries(kFromHandler)) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    ask("set q rcvbuf 4000000");
    g_socket = bound(kHere, kPort);
    handle(SA_RESTART, send_from_handler);
    post("echo p 2000 1000");
    int answered = 0;
    sockaddr_in a = at(kThere, kPeerPort);
    timeval t{3, 0};
    setsockopt(g_socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    alarm_in(500, 500);
    for (uint32_t i = 0; i < 2000; i++) {
        auto data = payload::make(100, i);
        uint8_t back[200];
        while (sendto(g_socket, data.data(), 100, 0, raw(a), sizeof a) < 0 && errno == EINTR) {
        }
        ssize_t n;
        do n = recv(g_socket, back, sizeof back, 0);
        while (n < 0 && errno == EINTR);
        if (n == 100 && memcmp(back, data.data(), 100) == 0) answered++;
    }
    alarm_in(0);
    std::string echoed = answer();
    std::string all = ask("drain q 300");
    say("answered %d, %s, handler ran %d, all its datagrams arrived %d", answered, echoed.c_str(), g_sent > 0,
        all.find("count=" + std::to_string(static_cast<int>(g_sent)) + " ") == 0);
}

}  // namespace parity
