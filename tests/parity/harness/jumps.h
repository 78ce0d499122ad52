// SPDX-License-Identifier: BSD-2-Clause
// Handlers at instants nobody chooses, and calls that end because their handler jumps out of them.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

#include "harness.h"

namespace parity {

inline sigjmp_buf g_back;
inline volatile sig_atomic_t g_may_jump;  // the next alarm jumps to g_back

inline void handle(void (*handler)(int), int flags = 0, int sig = SIGALRM) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(sig, &action, nullptr);
}
inline void jump(int) {
    if (!g_may_jump) return;
    g_may_jump = 0;
    siglongjmp(g_back, 1);
}
// After so many microseconds, and then again and again in such a distance; 0: no more.
inline void alarm_in(long usec, long again = 0) {
    itimerval t{{0, again}, {0, usec}};
    setitimer(ITIMER_REAL, &t, nullptr);
}
// The same instants in each run.
inline long instant(int i) { return 20 + static_cast<long>(static_cast<unsigned>(i) * 2654435761u % 2500u); }

// Makes the call again and again, each ended by a jump.
template <class F>
void jump_out(const char* what, int times, F&& call) {
    handle(jump);
    volatile int jumps = 0;
    for (volatile int i = 0; i < times;) {
        if (sigsetjmp(g_back, 1) == 0) {
            g_may_jump = 1;
            alarm_in(instant(i));
            for (;;) call();
        }
        jumps = jumps + 1;
        i = i + 1;
    }
    alarm_in(0);
    say("%s: %d jumps", what, static_cast<int>(jumps));
}

}  // namespace parity
