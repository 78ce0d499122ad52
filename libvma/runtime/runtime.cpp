// SPDX-License-Identifier: BSD-2-Clause
// Tells which process this is: a set-uid program, a forked child, a vforked child, or the process that owns
// the library's state.
#include "libvma/runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include <atomic>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/internal_thread.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/signals.h"

// The ends of the array that VMA_RENEW_IN_CHILD fills. Weak: a program of a few of the library's files may
// have none.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern const vma::runtime::Renewal __start_vma_renewals[];
[[gnu::weak, gnu::visibility("hidden")]] extern const vma::runtime::Renewal __stop_vma_renewals[];
}

namespace vma::runtime {
namespace {

pid_t current_pid() noexcept { return static_cast<pid_t>(os::raw_syscall(SYS_getpid)); }

std::atomic<pid_t> g_owner{0};

// The owner is recorded when the library is loaded, because a vforked child might be the first to ask.
__attribute__((constructor(101))) void record_owner() noexcept { g_owner.store(current_pid()); }

// Parent and vforked child share this variable, as they share all memory; the parent is suspended meanwhile.
// It is a count, because a vforked child may call vfork() itself.
constinit thread_local volatile unsigned t_vfork_depth = 0;

constexpr int kMaxHooks = 16;
ForkHooks g_hooks[kMaxHooks];
std::atomic<int> g_hook_count{0};
constinit Lock g_hook_lock;  // registration only; never held around fork
std::atomic<bool> g_installed{false};

}  // namespace

bool inert() noexcept {
    static constinit std::atomic<int> known{-1};
    int value = known.load(std::memory_order_relaxed);
    if (value < 0) {
        value = getauxval(AT_SECURE) != 0;
        known.store(value, std::memory_order_relaxed);
    }
    return value != 0;
}

bool in_foreign_process() noexcept {
    pid_t owner = g_owner.load(std::memory_order_relaxed);
    pid_t self = current_pid();
    if (owner == 0) {  // called by another library's constructor, before the library's own
        g_owner.store(self, std::memory_order_relaxed);
        return false;
    }
    return owner != self;
}

bool in_vfork_child() noexcept { return t_vfork_depth != 0; }
void enter_vfork() noexcept { t_vfork_depth = t_vfork_depth + 1; }
void leave_vfork() noexcept {
    if (t_vfork_depth != 0) t_vfork_depth = t_vfork_depth - 1;
}

// A program's allocator may register fork functions that hold its locks; it does so on its first use.
// malloc() here makes it register before the library, so fork() takes the library's locks first. Threads that
// hold the library's locks allocate, so the order must be this one.
void install_fork_hooks() noexcept {
    if (g_installed.load(std::memory_order_relaxed) || g_installed.exchange(true)) return;
    void* volatile memory = malloc(1);
    free(memory);
    pthread_atfork(run_fork_prepare, run_fork_parent, run_fork_child);
}

void at_fork(const ForkHooks& hooks) noexcept {
    install_fork_hooks();
    g_hook_lock.lock();
    int n = g_hook_count.load(std::memory_order_relaxed);
    if (n < kMaxHooks) {
        g_hooks[n] = hooks;
        g_hook_count.store(n + 1, std::memory_order_release);
    }
    g_hook_lock.unlock();
    if (n >= kMaxHooks) log::error("no room for another fork hook");
}

// From here to run_fork_parent() or run_fork_child(), fork() is a call into the library: its hooks hold locks
// meanwhile.
void run_fork_prepare() noexcept {
    enter_region();
    for (int i = g_hook_count.load(std::memory_order_acquire) - 1; i >= 0; i--)
        if (g_hooks[i].prepare != nullptr) g_hooks[i].prepare();
}

void run_fork_parent() noexcept {
    int n = g_hook_count.load(std::memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (g_hooks[i].parent != nullptr) g_hooks[i].parent();
    leave_region();
}

void run_fork_child() noexcept {
    g_owner.store(current_pid());
    t_vfork_depth = 0;
    new (&g_hook_lock) Lock();  // another thread of the parent may have held the lock
    // Hooks may open descriptors of their own, so the parent's descriptors go first.
    Lock::reset_in_child();
    InternalFd::close_all_in_child();
    internal_thread::forget_in_child();
    for (const Renewal* r = __start_vma_renewals; r != __stop_vma_renewals; ++r) r->renew();
    int n = g_hook_count.load(std::memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (g_hooks[i].child != nullptr) g_hooks[i].child();
    // Last: from here on the program's signal handlers run.
    forget_regions_in_child();
}

}  // namespace vma::runtime
