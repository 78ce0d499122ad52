// SPDX-License-Identifier: BSD-2-Clause
// Signal handlers set in every way, and what they do to a receive call on a UDP socket.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <thread>

#include "preload_loopback.h"

// The old calls are what is tested.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using namespace loopback;

namespace {

volatile sig_atomic_t g_calls;
int g_pair[2];

void handler(int) { g_calls = g_calls + 1; }
void with_info(int sig, siginfo_t* info, void* context) {
    g_calls = g_calls + (sig == SIGUSR1 && info->si_pid == getpid() && context != nullptr ? 1 : 100);
}

void describe(const char* what, int sig) {
    struct sigaction now {};
    show(what, sigaction(sig, nullptr, &now));
    const char* name = now.sa_handler == SIG_DFL   ? "default"
                       : now.sa_handler == SIG_IGN ? "ignored"
                       : (now.sa_flags & SA_SIGINFO) != 0
                           ? (now.sa_sigaction == with_info ? "with_info" : "other")
                           : (now.sa_handler == handler ? "handler" : "other");
    printf("  %s flags %lx masked %d %d\n", name, static_cast<unsigned long>(now.sa_flags) & ~0x04000000ul,
           sigismember(&now.sa_mask, SIGUSR1), sigismember(&now.sa_mask, SIGUSR2));
}

// A signal arrives in a blocked recv; later a datagram. Shows whether the call restarted.
void interrupted(const char* what, int sig) {
    g_calls = 0;
    pthread_t self = pthread_self();
    std::thread other([&] {
        // This thread must not get process-directed copies; the signal is sent to the other one, which also
        // on a busy host is in the call by then, and sees the signal before the datagram.
        usleep(100000);
        pthread_kill(self, sig);
        usleep(100000);
        send(g_pair[0], "d", 1, 0);
    });
    char c;
    long n = recv(g_pair[1], &c, 1, 0);
    show(what, n);
    other.join();
    if (n < 0) recv(g_pair[1], &c, 1, 0);
    printf("  calls %d\n", static_cast<int>(g_calls));
}

}  // namespace

int main() {
    udp_pair(g_pair);
    signal(SIGUSR1, handler);
    describe("signal", SIGUSR1);
    interrupted("recv under signal()", SIGUSR1);
    show("siginterrupt on", siginterrupt(SIGUSR1, 1));
    describe("siginterrupt", SIGUSR1);
    interrupted("recv under siginterrupt", SIGUSR1);
    signal(SIGUSR1, handler);
    describe("signal again", SIGUSR1);
    show("siginterrupt off", siginterrupt(SIGUSR1, 0));
    describe("siginterrupt", SIGUSR1);
    show("old is handler", sysv_signal(SIGUSR1, handler) == handler);
    describe("sysv_signal", SIGUSR1);
    interrupted("recv under sysv_signal", SIGUSR1);
    describe("after one delivery", SIGUSR1);
    show("sigset", sigset(SIGUSR1, handler) == SIG_DFL);
    describe("sigset", SIGUSR1);
    show("sigset hold", sigset(SIGUSR1, SIG_HOLD) == handler);
    show("sigset back", sigset(SIGUSR1, handler) == SIG_HOLD);
    show("sigignore", sigignore(SIGUSR1));
    describe("sigignore", SIGUSR1);
    struct sigaction act {};
    act.sa_sigaction = with_info;
    act.sa_flags = SA_SIGINFO;
    sigaddset(&act.sa_mask, SIGUSR2);
    show("sigaction", sigaction(SIGUSR1, &act, nullptr));
    describe("sigaction", SIGUSR1);
    interrupted("recv under sigaction", SIGUSR1);
    act.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGUSR1, &act, nullptr);
    interrupted("recv under SA_RESTART", SIGUSR1);
    show("sigaction 0", sigaction(0, &act, nullptr));
    show("sigaction KILL", sigaction(SIGKILL, &act, nullptr));
    show("sigaction 32", sigaction(32, &act, nullptr));
    show("sigaction 65", sigaction(65, &act, nullptr));
    show("signal 65", signal(65, handler) == SIG_ERR ? -1 : 0);
    show("signal ERR", signal(SIGUSR1, SIG_ERR) == SIG_ERR ? -1 : 0);
    show("siginterrupt 0", siginterrupt(0, 1));

    // a timer fires into many small exchanges
    act = {};
    act.sa_handler = handler;
    act.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &act, nullptr);
    itimerval fast{{0, 500}, {0, 500}}, off{};
    setitimer(ITIMER_REAL, &fast, nullptr);
    int good = 0;
    for (int i = 0; i < 2000; i++) {
        char c = 0;
        if (send(g_pair[0], "t", 1, 0) == 1 && recv(g_pair[1], &c, 1, 0) == 1) good++;
    }
    setitimer(ITIMER_REAL, &off, nullptr);
    show("exchanges under a timer", good);
    char c;
    timeval limit{0, 20000};
    setsockopt(g_pair[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    show("recv timeout", recv(g_pair[1], &c, 1, 0));
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
}
