// SPDX-License-Identifier: BSD-2-Clause
// Handlers that do what signal-safety(7) allows, at instants nobody chooses: they jump out of the call, end
// the process, poll, write, close, fork. Whatever they interrupt, the sockets go on working afterwards.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/parity/harness/harness.h"
#include "tests/parity/harness/jumps.h"

namespace parity {
namespace {

char g_buffer[2000];

void still_works(const char* what, int fd) {
    peer_sends(30);
    say("%s", what);
    if (wait_in(fd)) SHOW("recv", recv(fd, g_buffer, 100, 0));
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("sendto", sendto(fd, "back", 4, 0, raw(a), sizeof a));
    tell("recv p");
}

}  // namespace

PARITY_CASE(handler, jump_out_of_receive, Traffic::offloaded) {
    peer_opens();
    int fd = bound(kHere, kPort);
    jump_out("recv", 150, [&] { (void)!recv(fd, g_buffer, 100, 0); });
    still_works("after recv", fd);
    jump_out("recvmmsg", 50, [&] {
        iovec iov{g_buffer, 100};
        mmsghdr m{};
        m.msg_hdr.msg_iov = &iov;
        m.msg_hdr.msg_iovlen = 1;
        recvmmsg(fd, &m, 1, 0, nullptr);
    });
    still_works("after recvmmsg", fd);
    jump_out("recv without waiting", 150, [&] { (void)!recv(fd, g_buffer, 100, MSG_DONTWAIT); });
    still_works("after recv without waiting", fd);
}

PARITY_CASE(handler, jump_out_of_poll, Traffic::offloaded) {
    peer_opens();
    int fd = bound(kHere, kPort), ep = epoll_create1(0), plain = epoll_create1(0);
    epoll_event add{EPOLLIN, {.u64 = 1}}, got;
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &add);
    jump_out("poll", 80, [&] {
        pollfd p{fd, POLLIN, 0};
        poll(&p, 1, -1);
    });
    jump_out("select", 80, [&] {
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        select(fd + 1, &r, nullptr, nullptr, nullptr);
    });
    jump_out("epoll_wait", 80, [&] { epoll_wait(ep, &got, 1, -1); });
    jump_out("epoll_wait on the kernel's set", 80, [&] { epoll_wait(plain, &got, 1, -1); });
    still_works("after all", fd);
    SHOW("epoll_wait", epoll_wait(ep, &got, 1, 0));
    // What the jumps left behind must not make the set ready when it gets its first socket.
    epoll_ctl(plain, EPOLL_CTL_ADD, fd, &add);
    SHOW("first member", epoll_wait(plain, &got, 1, 50));
    peer_sends(30);
    SHOW("first member", epoll_wait(plain, &got, 1, 3000));
}

// In the midst of sends and receives that do not wait, where locks are held.
PARITY_CASE(handler, jump_out_of_traffic, Traffic::offloaded) {
    peer_opens();
    ask(std::string("open q ") + kThere + " 6001");
    int fd = bound(kHere, kPort);
    sockaddr_in a = at(kThere, 6001);
    jump_out("exchange", 300, [&] {
        (void)!sendto(fd, g_buffer, 100, MSG_DONTWAIT, raw(a), sizeof a);
        (void)!recv(fd, g_buffer, 100, MSG_DONTWAIT);
        pollfd p{fd, POLLIN, 0};
        poll(&p, 1, 0);
    });
    ask("drain q 200");  // more than its host can take, so there may be losses until here
    still_works("after", fd);
}

// pselect's mask lets the signal in, and the program jumps out of it.
PARITY_CASE(handler, jump_out_of_pselect, Traffic::offloaded) {
    peer_opens();
    int fd = bound(kHere, kPort);
    sigset_t blocked, open, now;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    jump_out("pselect", 80, [&] {
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        pselect(fd + 1, &r, nullptr, nullptr, nullptr, &open);
    });
    sigprocmask(SIG_SETMASK, nullptr, &now);
    say("blocked afterwards %d %d", sigismember(&now, SIGALRM), sigismember(&now, SIGUSR1));
    still_works("after", fd);
}

namespace {

int g_pipe[2], g_socket, g_closing;
volatile sig_atomic_t g_ran, g_wrong;

void does_all(int) {
    int saved = errno;
    char c = 'x';
    g_wrong = g_wrong + (write(g_pipe[1], &c, 1) != 1);
    pollfd p{g_pipe[0], POLLIN, 0}, q{g_socket, POLLOUT, 0};
    g_wrong = g_wrong + (poll(&p, 1, 0) != 1) + (poll(&q, 1, 0) != 1);
    g_wrong = g_wrong + (read(g_pipe[0], &c, 1) != 1);
    int copy = dup(g_closing);
    if (copy >= 0) close(copy);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in a = at(kHere, 0);
    g_wrong = g_wrong + (fd < 0 || bind(fd, raw(a), sizeof a) != 0);
    close(fd);
    errno = saved;
    g_ran = g_ran + 1;
}

template <class F>
void exchanges(int fd, int times, F&& every) {
    post("echo p " + std::to_string(times) + " 2000");
    int answered = 0;
    sockaddr_in a = at(kThere, kPeerPort);
    for (uint32_t i = 0; i < static_cast<uint32_t>(times); i++) {
        auto data = payload::make(100, i);
        uint8_t back[200];
        while (sendto(fd, data.data(), 100, 0, raw(a), sizeof a) < 0 && errno == EINTR) continue;
        ssize_t n;
        do n = recv(fd, back, sizeof back, 0);
        while (n < 0 && errno == EINTR);
        answered += n == 100 && memcmp(back, data.data(), 100) == 0;
        every();
    }
    alarm_in(0);
    answer();
    say("answered %d", answered);
}

}  // namespace

PARITY_CASE(handler, does_all, Traffic::offloaded) {
    peer_opens();
    g_socket = bound(kHere, kPort);
    g_closing = udp();
    g_ran = g_wrong = 0;
    SHOW("pipe", pipe(g_pipe));
    handle(does_all, SA_RESTART);
    alarm_in(700, 700);
    exchanges(g_socket, 1000, [] {});
    say("ran %d wrong %d", g_ran > 0, static_cast<int>(g_wrong));
}

namespace {
void forks(int) {
    int saved = errno;
    pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    g_wrong = g_wrong + !(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    g_ran = g_ran + 1;
    errno = saved;
}
}  // namespace

PARITY_CASE(handler, forks, Traffic::offloaded) {
    peer_opens();
    g_socket = bound(kHere, kPort);
    g_ran = g_wrong = 0;
    handle(forks, SA_RESTART);
    exchanges(g_socket, 300, [n = 0]() mutable {
        if (n++ % 20 == 0) alarm_in(instant(n));
    });
    say("ran %d wrong %d", g_ran > 0, static_cast<int>(g_wrong));
}

// The end of the process out of a handler, before this one has a socket: so each child has the device.
PARITY_CASE(handler, ends_process, kernel_carries(10)) {
    for (bool at_once : {true, false}) {
        int good = 0;
        for (int i = 0; i < 6; i++) {
            pid_t child = fork();
            if (child == 0) {
                handle(at_once ? [](int) { _exit(7); } : [](int) { exit(7); });
                int fd = bound(kHere, kPort);
                sockaddr_in a = at(kThere, kPeerPort);
                alarm_in(10'000 + instant(i));
                for (;;) {
                    (void)!sendto(fd, g_buffer, 10, 0, raw(a), sizeof a);
                    if (i % 2 == 0)
                        (void)!recv(fd, g_buffer, 100, MSG_DONTWAIT);
                    else
                        (void)!recv(fd, g_buffer, 100, 0);
                }
            }
            int status = 0;
            waitpid(child, &status, 0);
            good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
        }
        say("%s: %d ended as they should", at_once ? "_exit" : "exit", good);
    }
}

namespace {
siginfo_t g_info;
stack_t g_stack, g_where;
sigset_t g_mask;
std::vector<int> g_order;
void with_info(int, siginfo_t* info, void*) {
    g_info = *info;
    sigaltstack(nullptr, &g_where);
    sigprocmask(SIG_BLOCK, nullptr, &g_mask);
    g_ran = g_ran + 1;
}
void in_order(int, siginfo_t* info, void*) { g_order.push_back(info->si_value.sival_int); }
}  // namespace

// What a handler is told, whatever it interrupted: who sent the signal, its value, its stack, its mask.
PARITY_CASE(handler, sees_all, kernel_carries(20)) {
    peer_opens();
    int fd = bound(kHere, kPort);
    static char stack[65536];
    g_stack.ss_sp = stack;
    g_stack.ss_size = sizeof stack;
    SHOW("sigaltstack", sigaltstack(&g_stack, nullptr));
    for (int flags : {0, int{SA_NODEFER}, int{SA_ONSTACK}, static_cast<int>(SA_RESETHAND),
                      int{SA_RESTART | SA_ONSTACK}}) {
        for (bool waits : {false, true}) {
            // On a busy machine the signal may come before the call.
            bool interrupted = !waits || (flags & SA_RESTART) != 0;
            struct sigaction after {};
            sigset_t now;
            for (int tries = 0; tries == 0 || (!interrupted && tries < 5); tries++) {
                struct sigaction action {};
                action.sa_sigaction = with_info;
                action.sa_flags = flags | SA_SIGINFO;
                sigaddset(&action.sa_mask, SIGUSR2);
                sigaction(SIGUSR1, &action, nullptr);
                g_ran = 0;
                pthread_t self = pthread_self();
                std::thread sender([&] {
                    sigset_t all;
                    sigfillset(&all);
                    pthread_sigmask(SIG_SETMASK, &all, nullptr);
                    usleep(2000);
                    pthread_sigqueue(self, SIGUSR1, sigval{.sival_int = 42});
                    while (g_ran == 0) usleep(100);
                    usleep(1000);
                    sockaddr_in a = at(kHere, kPort);
                    int other = socket(AF_INET, SOCK_DGRAM, 0);
                    (void)!sendto(other, "end", 3, 0, raw(a), sizeof a);
                    close(other);
                });
                ssize_t n = -1;
                do {
                    n = recv(fd, g_buffer, 100, waits ? 0 : MSG_DONTWAIT);
                    if (waits && n < 0) {
                        interrupted = true;
                        say("recv: %s", strerrorname_np(errno));
                    }
                } while (n < 0);
                sender.join();
                while (recv(fd, g_buffer, 100, MSG_DONTWAIT) > 0) {
                }
                sigprocmask(SIG_BLOCK, nullptr, &now);
                sigaction(SIGUSR1, nullptr, &after);
            }
            say("flags %x: ran %d code %d value %d own pid %d on stack %d blocks USR1 %d USR2 %d, afterwards "
                "%d %d, default %d",
                static_cast<unsigned>(flags), static_cast<int>(g_ran), g_info.si_code,
                g_info.si_value.sival_int, g_info.si_pid == getpid(), (g_where.ss_flags & SS_ONSTACK) != 0,
                sigismember(&g_mask, SIGUSR1), sigismember(&g_mask, SIGUSR2), sigismember(&now, SIGUSR1),
                sigismember(&now, SIGUSR2), after.sa_handler == SIG_DFL);
        }
    }
    // Signals of one number come in the order in which they were sent to the process. Of those for a thread
    // each comes once; one that is put off may fall behind one that arrives at that moment.
    struct sigaction action {};
    action.sa_sigaction = in_order;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGRTMIN, &action, nullptr);
    g_order.reserve(4000);
    pthread_t self = pthread_self();
    for (bool to_thread : {false, true}) {
        g_order.clear();
        std::atomic<bool> done{false};
        std::thread sender([&] {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, nullptr);
            for (int i = 0; i < 600; i++) {
                if (to_thread)
                    pthread_sigqueue(self, SIGRTMIN, sigval{.sival_int = i});
                else
                    sigqueue(getpid(), SIGRTMIN, sigval{.sival_int = i});
                if (i % 3 == 2) usleep(100);
            }
            done = true;
        });
        while (!done) (void)!recv(fd, g_buffer, 100, MSG_DONTWAIT);
        sender.join();
        while (g_order.size() < 600) (void)!recv(fd, g_buffer, 100, MSG_DONTWAIT);
        if (!to_thread) say("in order %d", std::is_sorted(g_order.begin(), g_order.end()));
        std::sort(g_order.begin(), g_order.end());
        bool once = g_order.size() == 600;
        for (int i = 0; once && i < 600; i++) once = g_order[static_cast<size_t>(i)] == i;
        say("each once %d", once);
    }
}

// More threads than a list has places: each gets one datagram.
PARITY_CASE(thread, hundred_in_receive, Traffic::offloaded) {
    constexpr int kThreads = 100;
    peer_opens();
    int fd = bound(kHere, kPort);
    std::atomic<int> started{0}, got{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
        threads.emplace_back([&] {
            started++;
            char buffer[100];
            if (recv(fd, buffer, sizeof buffer, 0) == 30) got++;
        });
    while (started < kThreads) usleep(1000);
    for (int i = 0; i < kThreads; i++) peer_sends(30, 1, i);
    for (auto& t : threads) t.join();
    say("got %d", static_cast<int>(got));
}

}  // namespace parity
