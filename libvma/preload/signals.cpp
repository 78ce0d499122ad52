// SPDX-License-Identifier: BSD-2-Clause
// Signal dispositions. The runtime puts a trampoline before the program's handler to know which waits were
// interrupted. So all calls that set or ask for a disposition must go there: libc's signal() and its kin call
// sigaction inside libc.
#include "libvma/runtime/signals.h"

#include <signal.h>

#include "libvma/preload/guard.h"

using namespace vma;
using namespace vma::preload;
namespace signals = vma::runtime::signals;

namespace {

bool refused(int sig, sighandler_t handler) noexcept {
    if (handler != SIG_ERR && sig >= 1 && sig < NSIG && !(sig >= 32 && sig < SIGRTMIN)) return false;
    errno = EINVAL;  // libc keeps its two lowest real-time signals for itself
    return true;
}

}  // namespace

VMA_EXPORT int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
    return signals::sigaction(sig, act, old);
}
VMA_EXPORT int __sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept
    __attribute__((alias("sigaction")));

VMA_EXPORT sighandler_t signal(int sig, sighandler_t handler) noexcept {
    return signals::signal(sig, handler);
}
VMA_EXPORT sighandler_t bsd_signal(int sig, sighandler_t handler) noexcept __attribute__((alias("signal")));

VMA_EXPORT sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept {
    return signals::sysv_signal(sig, handler);
}
VMA_EXPORT sighandler_t __sysv_signal(int sig, sighandler_t handler) noexcept
    __attribute__((alias("sysv_signal")));

VMA_EXPORT int siginterrupt(int sig, int interrupt) noexcept { return signals::siginterrupt(sig, interrupt); }

// The old System V calls, made of the calls above.

VMA_EXPORT sighandler_t sigset(int sig, sighandler_t disposition) noexcept {
    if (refused(sig, disposition)) return SIG_ERR;
    sigset_t one, before;
    sigemptyset(&one);
    sigaddset(&one, sig);
    if (disposition == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &one, &before) < 0) return SIG_ERR;
        if (sigismember(&before, sig)) return SIG_HOLD;
        struct sigaction now {};
        return signals::sigaction(sig, nullptr, &now) < 0 ? SIG_ERR : now.sa_handler;
    }
    struct sigaction act {};
    struct sigaction old {};
    act.sa_handler = disposition;
    sigemptyset(&act.sa_mask);
    if (signals::sigaction(sig, &act, &old) < 0 || sigprocmask(SIG_UNBLOCK, &one, &before) < 0)
        return SIG_ERR;
    return sigismember(&before, sig) ? SIG_HOLD : old.sa_handler;
}

VMA_EXPORT int sigignore(int sig) noexcept {
    struct sigaction act {};
    act.sa_handler = SIG_IGN;
    sigemptyset(&act.sa_mask);
    return signals::sigaction(sig, &act, nullptr);
}
