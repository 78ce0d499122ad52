// SPDX-License-Identifier: BSD-2-Clause
// Counting the signals that reach a thread.
//
// A blocking call that spins in user space is not in the kernel when a signal comes, so nothing tells it to
// return EINTR. Therefore each handler of the program sits behind a function of ours that increments a
// counter of the thread, interruptions() or restarts() of runtime.h, and goes on to the program's handler.
// The program sees no difference: flags and mask are installed as it gave them, and a question for the
// current handler gets the program's own.
//
// The answer to "what is installed" always comes from the kernel (SA_RESETHAND changes it without us). The
// table only translates our functions back. A changed handler goes to the other of two slots of its signal,
// with a function of its own for each slot, so a delivery that has begun still finds the handler it was meant
// for.
#pragma once

#include <signal.h>

namespace vma::runtime::signals {

// Puts the handlers that are installed now behind ours; from here on sigaction() does so with new ones.
// Idempotent.
void start() noexcept;

// Puts handlers that were installed without sigaction() below behind ours (a program that loaded the library
// with dlopen(), or made the system call itself). True if one of them interrupts system calls, so that the
// EINTR of a call that found no handler counted is to be reported.
bool adopt_new() noexcept;

// sigaction(2), signal(3), sysv_signal(3), siginterrupt(3) for the preload layer. Same results, errno
// included. libc's own signal() family would install handlers without passing sigaction() above, so it is not
// called. In a vforked child the call goes to the kernel, which keeps the child's dispositions apart; nothing
// of the library's state changes.
int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept;
sighandler_t signal(int sig, sighandler_t handler) noexcept;
sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept;
int siginterrupt(int sig, int interrupt) noexcept;

// Puts `hook` before what the program does about `sig`, from here on. It runs in the handler, before the
// program's own one (program_handles), or in one of ours where the disposition is SIG_DFL, which the program
// goes on to see; a signal that is ignored stays so. The answer counts only for SIG_DFL: true, and what the
// signal does by default happens now; false: the hook sees to it later, with die_of(). After start().
using Hook = bool (*)(int sig, siginfo_t* info, void* context, bool program_handles);
void guard(int sig, Hook hook) noexcept;

// The default disposition, and the signal for this process. It takes effect at once if `sig` is not blocked.
void die_of(int sig) noexcept;

}  // namespace vma::runtime::signals
