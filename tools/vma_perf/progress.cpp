// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/progress.h"

#include <stdio.h>
#include <unistd.h>

namespace vma_perf {

Progress::Progress(bool quiet) : active_(!quiet && isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& text, bool now) {
    const auto time = std::chrono::steady_clock::now();
    if (!active_ || (!now && time - last_ < std::chrono::milliseconds(250))) return;
    last_ = time;
    shown_ = true;
    fprintf(stderr, "\r\x1b[K%s", text.c_str());
    fflush(stderr);
}

void Progress::clear() {
    if (!shown_) return;
    shown_ = false;
    fputs("\r\x1b[K", stderr);
    fflush(stderr);
}

}  // namespace vma_perf
