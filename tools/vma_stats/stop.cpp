// SPDX-License-Identifier: BSD-2-Clause
// See stop.h. The signals are blocked except while we sleep, so none is missed between looking and sleeping.
#include "tools/vma_stats/stop.h"

#include <poll.h>
#include <signal.h>
#include <time.h>

namespace vma_stats {
namespace {

volatile sig_atomic_t g_stopped = 0;
sigset_t g_before;  // the mask while sleeping
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

void catch_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { g_stopped = 1; };
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : kSignals) {
        struct sigaction old {};
        sigaction(signal, nullptr, &old);
        // nohup and background jobs of old shells ask us to ignore some.
        if (old.sa_handler == SIG_IGN) continue;
        sigaction(signal, &action, nullptr);
        sigaddset(&blocked, signal);
    }
    sigprocmask(SIG_BLOCK, &blocked, &g_before);
}

bool stopped() {
    // A signal that came while we worked is still pending.
    sigset_t pending;
    sigpending(&pending);
    for (const int signal : kSignals)
        if (sigismember(&pending, signal) == 1) return true;
    return g_stopped != 0;
}

long long monotonic_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void wait_until(long long until_ns, const std::vector<int>& descriptors) {
    std::vector<pollfd> waits;
    waits.reserve(descriptors.size());
    for (const int fd : descriptors) waits.push_back({fd, POLLIN, 0});
    const long long left = until_ns - monotonic_ns();
    if (left <= 0 || stopped()) return;
    const timespec limit{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    ppoll(waits.data(), waits.size(), &limit, &g_before);
}

}  // namespace vma_stats
