// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/signals.h"

#include <errno.h>
#include <time.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signal_hold.h"

namespace vma::runtime {
namespace {

// Lock-free and in the thread's static TLS block, so a handler can use them. Atomic, because a handler can
// interrupt the increment of another one.
constinit thread_local std::atomic<std::uint32_t> t_interruptions{0};
constinit thread_local std::atomic<std::uint32_t> t_restarts{0};

}  // namespace

std::uint32_t interruptions() noexcept { return t_interruptions.load(std::memory_order_relaxed); }
std::uint32_t restarts() noexcept { return t_restarts.load(std::memory_order_relaxed); }

namespace signals {
namespace {

using Handler = void (*)(int, siginfo_t*, void*);

constexpr int kSignals = 65;  // 1..64

// rt_sigaction(2) without libc, which would put its own restorer in place of the program's.
struct KernelAction {
    Handler handler;
    unsigned long flags;
    void* restorer;
    std::uint64_t mask;
};
bool exchange(int sig, const KernelAction* act, KernelAction* old) noexcept {
    return os::raw_syscall(SYS_rt_sigaction, sig, act, old, sizeof(std::uint64_t)) == 0;
}

struct Row {
    std::atomic<Handler> slot[2];
    // The installed action of a handler with SA_RESETHAND: the kernel has removed it when the handler runs.
    std::atomic<bool> once[2];
    KernelAction action[2];
};
Row g_table[kSignals];

std::atomic<Hook> g_hooks[kSignals];

std::atomic<bool> g_started{false};
Lock g_lock;  // for writers; they block all signals, so that a handler cannot meet its own thread's lock

// Is the signal raised by a fault of the thread, or by its abort()? The code after the fault must not run
// before the handler.
bool raised_by_itself(int sig, const siginfo_t* info) noexcept {
    switch (sig) {
        case SIGSEGV:
        case SIGFPE:
        case SIGILL:
        case SIGTRAP:
        case SIGSYS:
            return info->si_code > 0;
        case SIGBUS:
            return info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
        case SIGABRT:
            return info->si_code == SI_TKILL && info->si_pid == os::raw_syscall(SYS_getpid);
        default:
            return false;
    }
}

void queue_again(long process, long thread, int sig, const siginfo_t* info) noexcept {
    // Too many signals are queued (RLIMIT_SIGPENDING). As in the kernel, the signal then comes without its
    // information.
    if (os::raw_syscall(SYS_rt_tgsigqueueinfo, process, thread, sig, info) != 0)
        os::raw_syscall(SYS_tgkill, process, thread, sig);
}

// The thread is inside the library (region.h). The signal goes back into its queue, blocked until the region
// ends.
void put_off(int sig, int slot, siginfo_t* info, void* context) noexcept {
    Deferral& t = t_deferral;
    const std::uint64_t all = ~0ull, one = 1ull << (sig - 1);
    os::raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, nullptr, sizeof all);
    Row& row = g_table[sig];
    if (row.once[slot].load(std::memory_order_acquire)) {
        // The handler has not run yet. Unless another thread has installed another action meanwhile, the
        // handler stays due.
        KernelAction now{};
        if (exchange(sig, nullptr, &now) && now.handler == nullptr) exchange(sig, &row.action[slot], nullptr);
    }
    const long process = os::raw_syscall(SYS_getpid), thread = os::raw_syscall(SYS_gettid);
    // Queued signals of one number arrive in the order of sending, and this one was first. A signal that
    // arrives between the last look and the requeueing overtakes it, so nothing else happens between the two.
    constexpr int kMost = 6;
    siginfo_t later[kMost];
    int count = 0;
    if (sig >= 34) {
        timespec now{};
        while (count < kMost &&
               os::raw_syscall(SYS_rt_sigtimedwait, &one, &later[count], &now, sizeof one) == sig)
            count++;
    }
    queue_again(process, thread, sig, info);
    for (int i = 0; i < count; i++) queue_again(process, thread, sig, &later[i]);
    // A signal frame holds only the kernel's part of the set.
    SignalSet& mask = as_kernel_set(static_cast<ucontext_t*>(context)->uc_sigmask);
    if (!t.pending) {
        t.program_mask = mask;
        t.pending = true;
    }
    if (t.admitting != nullptr && !t.admitted) {
        t.admit_mask = as_kernel_set(*t.admitting);
        t.admitted = true;
    }
    mask |= kSignalsToHold | one;
}

// The kernel calls this function. It passes on all three arguments whether the program asked for SA_SIGINFO
// or not, as the kernel does. Not noexcept: a handler may throw (-fnon-call-exceptions) or jump out, and this
// function then has nothing left to do.
template <int slot, bool restart>
void trampoline(int sig, siginfo_t* info, void* context) {
    Deferral& t = t_deferral;
    const unsigned depth = t.depth;
    if (__builtin_expect(depth != 0, 0)) {
        if (!raised_by_itself(sig, info)) return put_off(sig, slot, info, context);
        // The handler runs outside the region, wherever the fault was: it may return, or jump out for good.
        t.depth = 0;
    }
    (restart ? t_restarts : t_interruptions).fetch_add(1, std::memory_order_relaxed);
    if (Hook hook = g_hooks[sig].load(std::memory_order_relaxed)) hook(sig, info, context, true);
    g_table[sig].slot[slot].load(std::memory_order_relaxed)(sig, info, context);
    t.depth = depth;
}

constexpr Handler kTrampolines[2][2] = {{trampoline<0, false>, trampoline<0, true>},
                                        {trampoline<1, false>, trampoline<1, true>}};

// Stands in place of SIG_DFL for a signal that has a hook.
void guarded_default(int sig, siginfo_t* info, void* context) noexcept;

bool is_default(const struct sigaction& action) noexcept { return action.sa_handler == SIG_DFL; }

// The action that the kernel gets for SIG_DFL when there is a hook. SA_RESTART lets system calls go on after
// a hook that changes nothing for them.
struct sigaction default_action() noexcept {
    struct sigaction action {};
    action.sa_sigaction = guarded_default;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    return action;
}

// Reads and writes the one pointer of a struct sigaction that SA_SIGINFO gives two names.
Handler handler_of(const struct sigaction& action) noexcept {
    return reinterpret_cast<Handler>(action.sa_sigaction);
}
void set_handler(struct sigaction& action, Handler handler) noexcept { action.sa_sigaction = handler; }

bool is_function(const struct sigaction& action) noexcept {
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

std::optional<int> slot_of(Handler handler) noexcept {
    for (int slot = 0; slot < 2; slot++)
        if (handler == kTrampolines[slot][0] || handler == kTrampolines[slot][1]) return slot;
    return std::nullopt;
}

// Puts the program's handler in the place of the library's trampoline.
void translate(int sig, struct sigaction& action) noexcept {
    if (handler_of(action) == guarded_default) action = {};
    if (auto slot = slot_of(handler_of(action)))
        set_handler(action, g_table[sig].slot[*slot].load(std::memory_order_relaxed));
}

// Gives one thread at a time the table, with all signals blocked.
class Exclusive {
  public:
    Exclusive() noexcept {
        std::uint64_t all = ~0ull;  // blocks libc's own signals too, for a short time only
        os::raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof all);
        g_lock.lock();
    }
    ~Exclusive() {
        g_lock.unlock();
        os::raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
    }

  private:
    std::uint64_t before_ = 0;
};

void remember_once(int sig, int slot, const KernelAction& action) noexcept {
    g_table[sig].action[slot] = action;
    g_table[sig].once[slot].store(true, std::memory_order_release);
}

// Installs `action`, a function of the program, behind a trampoline. `old` becomes the previous action, not
// yet translated. The caller holds an Exclusive.
int install(int sig, struct sigaction action, struct sigaction& old) noexcept {
    struct sigaction now {};
    if (int error = os::sigaction(sig, nullptr, &now); error != 0) return error;
    int slot = 1 - slot_of(handler_of(now)).value_or(1);
    g_table[sig].slot[slot].store(handler_of(action), std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    set_handler(action, kTrampolines[slot][(action.sa_flags & SA_RESTART) != 0]);
    const bool once = (static_cast<unsigned>(action.sa_flags) & static_cast<unsigned>(SA_RESETHAND)) != 0;
    g_table[sig].once[slot].store(false, std::memory_order_relaxed);
    if (int error = os::sigaction(sig, &action, &old); error != 0 || !once) return error;
    KernelAction installed{};
    if (exchange(sig, nullptr, &installed) && installed.handler == handler_of(action))
        remember_once(sig, slot, installed);
    return 0;
}

bool is_foreign_function(const KernelAction& action) noexcept {
    auto value = reinterpret_cast<std::uintptr_t>(action.handler);
    return value != reinterpret_cast<std::uintptr_t>(SIG_DFL) &&
           value != reinterpret_cast<std::uintptr_t>(SIG_IGN) && !slot_of(action.handler) &&
           action.handler != guarded_default;
}

// Puts a trampoline before the installed handler. The caller holds an Exclusive.
void adopt(int sig) noexcept {
    KernelAction now{}, replaced{};
    if (!exchange(sig, nullptr, &now)) return;
    int slot = 0;
    // A thread that does not see start() yet can install a handler between the two calls. That handler shows
    // up in `replaced`, and the next round adopts it.
    while (is_foreign_function(now)) {
        g_table[sig].slot[slot].store(now.handler, std::memory_order_relaxed);
        KernelAction ours = now;
        ours.handler = kTrampolines[slot][(now.flags & SA_RESTART) != 0];
        if ((now.flags & static_cast<unsigned>(SA_RESETHAND)) != 0)
            remember_once(sig, slot, ours);
        else
            g_table[sig].once[slot].store(false, std::memory_order_relaxed);
        if (!exchange(sig, &ours, &replaced) || replaced.handler == now.handler || slot_of(replaced.handler))
            return;
        if (!is_foreign_function(replaced)) {
            exchange(sig, &replaced, nullptr);
            return;
        }
        now = replaced;
        slot = 1 - slot;
    }
}

void guarded_default(int sig, siginfo_t* info, void* context) noexcept {
    const int saved = errno;
    Hook hook = g_hooks[sig].load(std::memory_order_relaxed);
    if (hook == nullptr || hook(sig, info, context, false)) {
        // A fault happens again after the return, now without a handler; so the core dump shows where. A sent
        // signal is sent again.
        if (info->si_code > 0 && sig != SIGINT) {
            KernelAction standard{};
            exchange(sig, &standard, nullptr);
        } else {
            die_of(sig);
        }
    }
    errno = saved;
}

// The signals for which the program called siginterrupt(); signal() looks at them.
std::atomic<std::uint64_t> g_interrupting{0};

bool valid(int sig) noexcept { return sig > 0 && sig < kSignals; }

sighandler_t install_simple(int sig, sighandler_t handler, int flags, bool block_itself) noexcept {
    if (handler == SIG_ERR || !valid(sig)) {
        errno = EINVAL;
        return SIG_ERR;
    }
    struct sigaction action {
    }, old{};
    action.sa_handler = handler;
    action.sa_flags = flags;
    if (block_itself) sigaddset(&action.sa_mask, sig);
    if (signals::sigaction(sig, &action, &old) != 0) return SIG_ERR;
    return old.sa_handler;
}

}  // namespace

void start() noexcept {
    if (inert() || in_vfork_child() || g_started.exchange(true)) return;
    install_fork_hooks();
    Exclusive exclusive;  // once for all signals: an Exclusive for each would triple the system calls
    for (int sig = 1; sig < kSignals; sig++)
        if (sig != 32 && sig != 33) adopt(sig);  // libc's own: cancellation and setuid()
}

bool adopt_new() noexcept {
    if (!g_started.load(std::memory_order_acquire) || in_vfork_child()) return false;
    bool interrupts = false;
    for (int sig = 1; sig < kSignals; sig++) {
        if (sig == 32 || sig == 33) continue;
        KernelAction now{};
        if (!exchange(sig, nullptr, &now) || !is_foreign_function(now)) continue;
        interrupts |= (now.flags & SA_RESTART) == 0;
        Exclusive exclusive;
        adopt(sig);
    }
    return interrupts;
}

void guard(int sig, Hook hook) noexcept {
    Exclusive exclusive;
    g_hooks[sig].store(hook, std::memory_order_relaxed);
    struct sigaction now {};
    if (os::sigaction(sig, nullptr, &now) != 0 || !is_default(now)) return;
    now = default_action();
    os::sigaction(sig, &now, nullptr);
}

void die_of(int sig) noexcept {
    KernelAction standard{};
    exchange(sig, &standard, nullptr);
    os::raw_syscall(SYS_kill, os::raw_syscall(SYS_getpid), sig);
}

int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
    if (!valid(sig)) return os::sigaction(sig, act, old);
    // The program's memory is touched outside the lock: a bad pointer is the program's SIGSEGV, as in libc.
    struct sigaction wanted {
    }, was{};
    if (act != nullptr) {
        wanted = *act;
        // The handler may be a trampoline, learned by a direct system call: do not put it behind itself.
        translate(sig, wanted);
    }
    int result;
    if (act == nullptr) {
        result = os::sigaction(sig, nullptr, &was);
        if (result == 0) translate(sig, was);
    } else if (!g_started.load(std::memory_order_acquire) || in_vfork_child()) {
        result = os::sigaction(sig, &wanted, &was);
        if (result == 0) translate(sig, was);
        if (result == 0 && is_function(wanted) && !in_vfork_child() &&
            g_started.load(std::memory_order_acquire)) {
            Exclusive exclusive;
            adopt(sig);  // start() ran meanwhile
        }
    } else {
        Exclusive exclusive;
        if (is_default(wanted) && g_hooks[sig].load(std::memory_order_relaxed) != nullptr)
            wanted = default_action();
        const bool program = is_function(wanted) && handler_of(wanted) != guarded_default;
        result = program ? install(sig, wanted, was) : os::sigaction(sig, &wanted, &was);
        if (result == 0) translate(sig, was);
    }
    if (result == 0 && old != nullptr) *old = was;
    return result;
}

sighandler_t signal(int sig, sighandler_t handler) noexcept {
    bool interrupt = valid(sig) && (g_interrupting.load(std::memory_order_relaxed) >> (sig - 1) & 1) != 0;
    return install_simple(sig, handler, interrupt ? 0 : SA_RESTART, true);
}

sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept {
    return install_simple(sig, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER | SA_INTERRUPT), false);
}

int siginterrupt(int sig, int interrupt) noexcept {
    struct sigaction action {};
    if (signals::sigaction(sig, nullptr, &action) != 0) return -1;
    std::uint64_t bit = 1ull << (sig - 1);
    if (interrupt != 0) {
        g_interrupting.fetch_or(bit);
        action.sa_flags &= ~SA_RESTART;
    } else {
        g_interrupting.fetch_and(~bit);
        action.sa_flags |= SA_RESTART;
    }
    return signals::sigaction(sig, &action, nullptr);
}

namespace {
// A forked child inherits dispositions and table as they are. Another thread of the parent may hold the lock.
void renew_signals() noexcept { new (&g_lock) Lock(); }
VMA_RENEW_IN_CHILD(renew_signals);
}  // namespace

}  // namespace signals
}  // namespace vma::runtime
