// SPDX-License-Identifier: BSD-2-Clause
// The process's parameters, and what their first use starts: the log and its first lines.
//
// Opening the log needs parameters, and reading parameters needs the log for complaints. So the log takes
// plain settings (runtime/log.h), and the parameters, a layer above, pass them here.
#include <stdlib.h>
#include <sys/single_threaded.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>

#include "libvma/config/log_callback.h"
#include "libvma/config/params.h"
#include "libvma/os/proc_file.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/spin.h"

namespace vma::config {
namespace {

constexpr std::string_view kRule =
    "---------------------------------------------------------------------------";

std::string command_line() {
    std::string text = os::read_proc_file("/proc/self/cmdline", 256);
    while (!text.empty() && text.back() == '\0') text.pop_back();
    for (char& c : text)
        if (c == '\0') c = ' ';
    return text;
}

// At level debug the print shows more of the surroundings, and every parameter.
void print(const Params& params) {
    if (!log::enabled(log::Level::info)) return;
    const bool all = log::enabled(log::Level::debug);
    log::info("{}", kRule);
    log::info("VMA_VERSION: {}", VMA_VERSION);
    log::info("Cmd Line: {}", command_line());
    if (all) {
        char now[64] = "";
        const time_t seconds = time(nullptr);
        tm parts;
        if (localtime_r(&seconds, &parts) != nullptr)
            strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", &parts);
        log::debug("Current Time: {}", std::string_view(now));
        log::debug("Pid: {}", getpid());
        utsname system;
        if (uname(&system) == 0) {
            log::debug("System: {}", std::string_view(system.release));
            log::debug("Architecture: {}", std::string_view(system.machine));
            log::debug("Node: {}", std::string_view(system.nodename));
        }
    }
    log::info("{}", kRule);
    for (const std::string& line : parameter_lines(params, all)) log::info("{}", line);
    log::info("{}", kRule);
    if (all)
        log::warn(
            "log level {} makes the program slow: VMA_TRACELEVEL=info is for production and measurements",
            params.tracelevel);
}

}  // namespace

void print_start() noexcept {
    static constinit std::atomic<bool> done{false};
    if (done.exchange(true)) return;
    try {
        print(get());
    } catch (const std::exception&) {  // no memory for some text
    }
}

// Takes no lock, so neither fork nor a signal handler can meet a held one. Threads that come at the same time
// each read the environment, and the first to finish wins. Never freed, because other threads outlive exit().
const Params& internal::read_process() noexcept {
    Complaints complaints;
    std::unique_ptr<const Params> mine;
    try {
        mine = std::make_unique<const Params>(
            read([](const char* name) -> const char* { return getenv(name); }, complaints));
        if (environ != nullptr) check_names(environ, complaints);
    } catch (const std::exception&) {  // no memory for some text: go on without it
        if (mine == nullptr) mine.reset(new (std::nothrow) Params());
        if (mine == nullptr) std::terminate();
    }
    const Params* expected = nullptr;
    if (!internal::g_known.compare_exchange_strong(expected, mine.get(), std::memory_order_acq_rel))
        return *expected;
    const Params& params = *mine.release();
    // With other threads running, one may be waiting for a lock now, and mode `single` would never wake that
    // thread.
    const auto mode = static_cast<LockMode>(params.thread_mode);
    Lock::set_mode(mode == LockMode::single && !__libc_single_threaded ? LockMode::spin : mode);
    if (params.cpu_usage_stats != 0) PollTime::enable();
    try {
        runtime::set_internal_thread({params.internal_thread_affinity, params.internal_thread_cpuset,
                                      clock::Msec(params.timer_resolution_msec)});
    } catch (const std::exception&) {  // no memory for some text
    }
    log::start();  // calls get() again, which answers from here on
    for (const std::string& text : complaints) log::warn("{}", text);
    return params;
}

}  // namespace vma::config

namespace vma::log {

void start() noexcept {
    static constinit std::atomic<bool> done{false};
    const config::Params& params =
        config::get();  // the process's first get() calls start() again, which then does the work
    if (done.exchange(true)) return;
    std::string refused;
    Callback callback = nullptr;
    try {
        if (!params.log_cb_func_ptr.empty()) callback = config::log_callback(params.log_cb_func_ptr, refused);
    } catch (const std::exception&) {  // no memory to find out
    }
    configure({.level = parse_level(params.tracelevel).value_or(Level::info),
               .details = static_cast<int>(params.log_details),
               .colors = params.log_colors != 0,
               .file = params.log_file,
               .callback = callback});
    if (!refused.empty()) warn("VMA_LOG_CB_FUNC_PTR={} is not used: {}", params.log_cb_func_ptr, refused);
}

}  // namespace vma::log
