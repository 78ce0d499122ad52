// SPDX-License-Identifier: BSD-2-Clause
// Signals while waiting: whom they interrupt, what the masks of the p-calls do.
#include <atomic>
#include <utility>

#include "mux.h"

namespace parity::mux {
namespace {

volatile sig_atomic_t g_handled;

void handle(int number, int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) { g_handled = g_handled + 1; };
    action.sa_flags = flags;
    sigaction(number, &action, nullptr);
}

sigset_t only(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

bool has_mask(How how) {
    return how == How::pselect || how == How::ppoll || how == How::pwait || how == How::pwait2 ||
           is_opaque(how);
}

// Makes a call, and signals its thread until the call has ended: on a busy machine one signal may come before
// the call.
template <class Call>
void interrupted(Call&& call) {
    const pthread_t self = pthread_self();
    std::atomic<bool> done{false};
    std::thread other = soon([&] {
        while (!done.load()) {
            pthread_kill(self, SIGUSR1);
            for (int i = 0; i < 20 && !done.load(); i++) usleep(1000);
        }
    });
    call();
    done.store(true);
    other.join();
}

void one(How how, const Company& friends) {
    int two[2];
    ok(pipe(two));
    Watch w(how);
    friends.join(w);
    w.add(two[0], POLLIN);
    pthread_t self = pthread_self();
    char c;
    for (int flags : {0, SA_RESTART}) {
        scenario("%s: a handler%s", name_of(how), flags != 0 ? " with SA_RESTART" : "");
        handle(SIGUSR1, flags);
        for (auto [what, limit] : {std::pair{"for ever", kForEver}, std::pair{"for long", kLong}}) {
            g_handled = 0;
            interrupted([&] { w.show(what, limit); });
            say("handled %d", g_handled > 0);
        }
    }
    scenario("%s: signals that do not interrupt", name_of(how));
    {
        signal(SIGUSR1, SIG_IGN);
        std::thread other = soon([&] {
            pthread_kill(self, SIGUSR1);
            pthread_kill(self, SIGCHLD);  // ignored by default
            usleep(1000);
            ok(write(two[1], "x", 1));
        });
        w.show("ignored ones", kForEver);
        other.join();
        ok(read(two[0], &c, 1));
        if (how == How::one_shot) epoll_mod(w.set(), two[0], EPOLLIN | EPOLLONESHOT, 0x5a17'c0de'0000'0002);
    }
    handle(SIGUSR1, 0);
    sigset_t usr1 = only(SIGUSR1), old, none;
    sigemptyset(&none);
    pthread_sigmask(SIG_BLOCK, &usr1, &old);
    auto pending = [&] {
        g_handled = 0;
        pthread_kill(self, SIGUSR1);
    };
    auto taken = [&] {  // whether the call has let it through, and away with it if not
        say("handled %d", g_handled);
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
        pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
    };
    constexpr long kSome = 5 * kMsec;
    scenario("%s: blocked by the thread", name_of(how));
    pending();
    w.show("pending before", kSome);
    taken();
    if (has_mask(how)) {
        pending();
        w.show("blocked by the call too", kSome, &usr1);
        taken();
        pending();
        w.show("let through by the call, time 0", 0, &none);
        taken();
        pending();
        w.show("let through by the call", kLong, &none);
        taken();
        scenario("%s: ready and pending", name_of(how));
        ok(write(two[1], "x", 1));
        pending();
        w.show("readiness goes first", kLong, &none);
        taken();
        ok(read(two[0], &c, 1));
        if (how == How::one_shot) epoll_mod(w.set(), two[0], EPOLLIN | EPOLLONESHOT, 0x5a17'c0de'0000'0002);
        scenario("%s: arrives during, let through", name_of(how));
        g_handled = 0;
        interrupted([&] { w.show("let through", kLong, &none); });
        say("handled %d", g_handled > 0);
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
        scenario("%s: blocked by the call only", name_of(how));
        g_handled = 0;
        // The call has to begin before, on a busy machine, too.
        std::thread other = soon([&] { pthread_kill(self, SIGUSR1); }, 20'000);
        w.show("blocked", 60 * kMsec, &usr1);
        other.join();
        say("handled afterwards %d", g_handled);
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    say("handled at last %d", g_handled);
    scenario("%s: alive", name_of(how));
    ok(write(two[1], "x", 1));
    w.show("works", kLong);
    close(two[0]);
    close(two[1]);
}

}  // namespace

TCP_CASE(signals, ways) {
    auto friends = company();
    if (server())
        for (How how : kHows) one(how, *friends);
    sync();
}

// The peer's data and a handler at once, again and again: every byte is seen, every call ends.
TCP_CASE(signals, storm) {
    auto friends = company();
    constexpr int kBytes = 300;
    if (server()) {
        handle(SIGALRM, 0);
        itimerval often{{0, 300}, {0, 300}}, never{};
        int got = 0, wrong = 0;
        for (How how : {How::poll, How::select, How::level, How::edge, How::pwait2}) {
            Watch w(how);
            friends->join(w);
            setitimer(ITIMER_REAL, &often, nullptr);
            sync();
            int before = got;
            while (got - before < kBytes) {
                int n = w.wait(kLong);
                if (n == 0 || (n < 0 && w.result() != "-1 EINTR")) {
                    wrong++;
                    break;
                }
                char block[64];
                for (long k; n > 0 && (k = recv(friends->tcp, block, sizeof block, MSG_DONTWAIT)) > 0;)
                    got += static_cast<int>(k);
            }
            setitimer(ITIMER_REAL, &never, nullptr);
            sync();
        }
        say("got %d, wrong %d", got, wrong);
    } else {
        for (int round = 0; round < 5; round++) {
            sync();
            for (int i = 0; i < kBytes; i++) {
                put(friends->tcp, "x");
                if (i % 3 == 0) usleep(100);
            }
            sync();
        }
    }
    sync();
}

}  // namespace parity::mux
