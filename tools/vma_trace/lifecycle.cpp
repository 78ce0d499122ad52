// SPDX-License-Identifier: BSD-2-Clause
// See lifecycle.h.
#include "tools/vma_trace/lifecycle.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/pid_name.h"
#include "tools/common/fd.h"
#include "tools/vma_trace/report.h"

namespace vma_trace {
namespace {

using vma::clock::monotonic_ns;
using vma::clock::ticks;

// Signals that are sent to end a process, and do so by default.
constexpr int kEnding[] = {SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGTERM};

std::atomic<pid_t> owner{0};
std::uint64_t begin_ticks, begin_ns;

void complain(const char* what, const char* name) noexcept {
    Output out(STDERR_FILENO);
    out.print("vma_trace: {}: {}\n", name, what);
}

void write_file(const std::string& name, void (*write)(Registry&, const TimeScale&, Output&),
                const TimeScale& time) {
    if (name.empty()) return;
    char path[PATH_MAX];
    if (!vma::expand_pid(name, getpid(), path, sizeof path))
        return complain("the name is too long", name.c_str());
    const tools::Fd fd(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0644));
    if (!fd) return complain(strerrordesc_np(errno), path);
    Output out(fd.get());
    write(registry(), time, out);
}

void on_signal(int number) {
    finish();
    ::signal(number, SIG_DFL);
    ::raise(number);
}

void watch_signals() noexcept {
    for (const int number : kEnding) {
        struct sigaction now {};
        if (sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
            now.sa_handler != SIG_DFL)
            continue;
        struct sigaction ours {};
        ours.sa_handler = on_signal;
        sigfillset(&ours.sa_mask);
        // The handler raises the signal again, so the mask must let it through.
        sigdelset(&ours.sa_mask, number);
        ours.sa_flags = SA_NODEFER;
        sigaction(number, &ours, nullptr);
    }
}

}  // namespace

void start() noexcept {
    static std::once_flag once;
    std::call_once(once, [] {
        begin_ns = monotonic_ns();
        begin_ticks = ticks();
        owner = getpid();
        try {
            std::vector<std::string> complaints;
            registry().options =
                read_options([](const char* name) -> const char* { return secure_getenv(name); }, complaints);
            for (const std::string& text : complaints)
                dprintf(STDERR_FILENO, "vma_trace: %s\n", text.c_str());
        } catch (const std::exception&) {  // no memory for some text: the defaults
        }
        if (registry().options.signals) watch_signals();
        at_quick_exit(finish);
    });
}

void finish() noexcept {
    static std::atomic<bool> done{false};
    if (owner != getpid() || done.exchange(true)) return;
    TimeScale time{begin_ticks, 1};
    const std::uint64_t passed = monotonic_ns() - begin_ns;
    // A short life is too short to tell the clock's rate.
    time.ticks_per_ns = passed > 10'000'000
                            ? static_cast<double>(ticks() - begin_ticks) / static_cast<double>(passed)
                            : static_cast<double>(vma::clock::ticks_per_usec()) / 1000;
    const Options& options = registry().options;
    try {
        if (!options.quiet) {
            if (!options.file.empty()) {
                write_file(options.file, write_text, time);
            } else {
                Output out(STDERR_FILENO);
                write_text(registry(), time, out);
            }
        }
        write_file(options.json, write_json, time);
        write_file(options.csv, write_csv, time);
    } catch (const std::exception&) {  // a text that cannot be formatted
    }
}

}  // namespace vma_trace
