// SPDX-License-Identifier: BSD-2-Clause
// The end by SIGINT takes locks and memory, but a handler may have interrupted any code. So the handler only
// wakes the internal thread, which does the work. The backtrace has to happen in the handler, so start()
// loads what the backtrace needs. Looking up names takes the dynamic linker's lock, which only a thread that
// is loading a library holds.
#include "libvma/runtime/fatal_signals.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string_view>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/never_destroyed.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signals.h"
#include "libvma/runtime/wake_fd.h"

namespace vma::runtime::fatal_signals {
namespace {

constexpr int kMaxFrames = 64;
constexpr int kMaxBacktraces = 5;

std::atomic<void (*)() noexcept> g_end{nullptr};

// ---- SIGINT ----

// The internal thread watches it. Never destroyed: a signal may come at any time.
constinit NeverDestroyed<WakeFd> g_wake;
std::atomic<bool> g_watched{false};
std::atomic<long> g_owner{0};  // process whose internal thread watches
std::atomic<int> g_interrupts{0};

bool on_interrupt(int, siginfo_t*, void*, bool program_handles) {
    if (program_handles) return false;
    if (!g_watched.load(std::memory_order_acquire) ||
        os::raw_syscall(SYS_getpid) != g_owner.load(std::memory_order_relaxed))
        return true;
    if (g_interrupts.fetch_add(1, std::memory_order_relaxed) != 0) return true;
    return !g_wake->wake();
}

// Runs on the internal thread.
void end_by_interrupt() {
    unwatch_this();
    log::info("SIGINT ends the process");
    if (auto* end = g_end.load()) end();
    signals::die_of(SIGINT);
}

void watch_interrupts() noexcept {
    WakeFd& wake = *g_wake;
    try {
        wake = WakeFd::make();
        if (!wake) return log::warn("VMA_HANDLE_SIGINTR has no effect: no descriptor");
        g_interrupts.store(0);
        g_owner.store(os::raw_syscall(SYS_getpid));
        g_watched.store(true, std::memory_order_release);
        watch(wake.get(), end_by_interrupt);
        signals::guard(SIGINT, on_interrupt);
    } catch (const std::exception& e) {
        log::warn("VMA_HANDLE_SIGINTR has no effect: {}", e.what());
    }
}

// ---- SIGSEGV ----

std::atomic<int> g_backtraces{0};
constinit thread_local bool t_in_backtrace = false;

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) noexcept {
    char line[512];
    auto end = fmt::format_to_n(line, sizeof line, format, std::forward<Args>(args)...);
    log::write_direct(log::Level::error, {line, std::min(end.size, sizeof line)});
}

std::string_view base_name(const char* path) noexcept {
    std::string_view name = path != nullptr ? path : "?";
    return name.substr(name.rfind('/') + 1);
}

void say_frame(int number, std::uintptr_t address, bool returns_here) noexcept {
    // A return address may be the first address of the next function.
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(address - (returns_here ? 1 : 0)), &info) == 0)
        return say("#{:<2} {:#x}", number, address);
    const auto module = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
    if (info.dli_sname == nullptr)
        return say("#{:<2} {:#x} {}+{:#x}", number, address, base_name(info.dli_fname), address - module);
    say("#{:<2} {:#x} {}+{:#x} {}+{:#x}", number, address, base_name(info.dli_fname), address - module,
        info.dli_sname, address - reinterpret_cast<std::uintptr_t>(info.dli_saddr));
}

bool on_fault(int, siginfo_t* info, void* context, bool) {
    if (t_in_backtrace || g_backtraces.fetch_add(1, std::memory_order_relaxed) >= kMaxBacktraces) return true;
    t_in_backtrace = true;
    const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    const auto at = static_cast<std::uintptr_t>(registers[REG_RIP]);
    if (info->si_code > 0)
        say("SIGSEGV at {:#x}, address {:#x}; backtrace of thread {}:", at,
            reinterpret_cast<std::uintptr_t>(info->si_addr), os::raw_syscall(SYS_gettid));
    else
        say("SIGSEGV sent by process {}; backtrace of thread {}:", info->si_pid, os::raw_syscall(SYS_gettid));
    void* frames[kMaxFrames];
    const int count = backtrace(frames, kMaxFrames);
    // Above the interrupted frame stand this function and its callers.
    int first = 0;
    while (first < count && reinterpret_cast<std::uintptr_t>(frames[first]) != at) first++;
    if (first == count) {  // a jump to an invalid address: the unwinder has no frame to begin at
        say_frame(0, at, false);
        first = 0;
    }
    for (int i = first; i < count; i++)
        say_frame(i - first, reinterpret_cast<std::uintptr_t>(frames[i]), i != first);
    t_in_backtrace = false;
    return true;
}

}  // namespace

void set_end(void (*end)() noexcept) noexcept { g_end.store(end); }

void start(bool interrupt, bool fault) noexcept {
    if (interrupt) watch_interrupts();
    if (fault) {
        // The first call of backtrace() loads the unwinder's library.
        void* frames[1];
        backtrace(frames, 1);
        signals::guard(SIGSEGV, on_fault);
    }
}

}  // namespace vma::runtime::fatal_signals
