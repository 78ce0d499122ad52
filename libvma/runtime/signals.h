// SPDX-License-Identifier: BSD-2-Clause
// Counts the signals that reach a thread.
//
// A signal may come while a blocking call spins in user space. The kernel then does not tell the call to
// return EINTR. Therefore each handler of the program sits behind a trampoline of the library. The trampoline
// increments a counter of the thread, interruptions() or restarts() of runtime.h, and calls the program's
// handler. The program sees no difference. Flags and mask are installed as the program gave them, and a
// question for the current handler gets the program's own.
//
// The kernel always answers "what is installed", because SA_RESETHAND changes it without the library. The
// table only translates trampolines back to handlers. Each signal has two slots, each with a trampoline of
// its own, and a changed handler goes to the other slot. So a delivery that has begun still finds its
// handler.
#pragma once

#include <signal.h>

namespace vma::runtime::signals {

// Puts trampolines before the handlers that are installed now; from here on sigaction() does so for new ones.
// Idempotent.
void start() noexcept;

// Puts trampolines before handlers that were installed without sigaction() below: by a program that loaded
// the library with dlopen(), or made the system call itself. True if one of them interrupts system calls: the
// caller then reports an EINTR although no counter moved.
bool adopt_new() noexcept;

// sigaction(2), signal(3), sysv_signal(3), siginterrupt(3) for the preload layer. Same results, errno
// included. They do not call libc's own signal() family, which would install handlers without passing
// sigaction() above. In a vforked child the call goes to the kernel, which keeps the child's dispositions
// apart; the library's state does not change.
int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept;
sighandler_t signal(int sig, sighandler_t handler) noexcept;
sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept;
int siginterrupt(int sig, int interrupt) noexcept;

// Runs `hook` before what the program does about `sig`, from here on; call it after start(). The hook runs in
// the handler before the program's own one (program_handles true). Where the disposition is SIG_DFL, a
// handler of the library runs the hook, and the program still sees SIG_DFL. An ignored signal stays ignored.
// The hook's answer counts only for SIG_DFL. True: the signal's default action happens now. False: the hook
// calls die_of() later.
using Hook = bool (*)(int sig, siginfo_t* info, void* context, bool program_handles);
void guard(int sig, Hook hook) noexcept;

// Sets the default disposition and sends the signal to this process. It takes effect at once if `sig` is not
// blocked.
void die_of(int sig) noexcept;

}  // namespace vma::runtime::signals
