// SPDX-License-Identifier: BSD-2-Clause
// See stop.h. The signals are blocked except during the sleep, so none is missed between looking and
// sleeping.
#include "tools/vma_stats/stop.h"

#include <poll.h>
#include <signal.h>
#include <time.h>

#include "tools/common/clock.h"
#include "tools/common/signals.h"

namespace vma_stats {
namespace {

volatile sig_atomic_t g_stopped = 0;
sigset_t g_before;  // the mask while sleeping

}  // namespace

void catch_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { g_stopped = 1; };
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : tools::kEndSignals)
        if (tools::handle_unless_ignored(signal, action)) sigaddset(&blocked, signal);
    sigprocmask(SIG_BLOCK, &blocked, &g_before);
}

bool stopped() {
    // A signal that came while the program worked is still pending.
    sigset_t pending;
    sigpending(&pending);
    for (const int signal : tools::kEndSignals)
        if (sigismember(&pending, signal) == 1) return true;
    return g_stopped != 0;
}

void wait_until(std::int64_t until_ns, const std::vector<int>& descriptors) {
    std::vector<pollfd> waits;
    waits.reserve(descriptors.size());
    for (const int fd : descriptors) waits.push_back({fd, POLLIN, 0});
    const std::int64_t left = until_ns - tools::now_ns(CLOCK_MONOTONIC);
    if (left <= 0 || stopped()) return;
    const timespec limit{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    ppoll(waits.data(), waits.size(), &limit, &g_before);
}

}  // namespace vma_stats
