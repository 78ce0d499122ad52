// SPDX-License-Identifier: BSD-2-Clause
// Holds signals back between the last look at "has a handler run?" and the system call that sleeps, so that none is
// slept through: ppoll() lets them in again with original(), atomically.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace vma::runtime {

// Every signal but those a fault of the thread raises.
inline sigset_t signals_to_hold() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&all, fault);
    return all;
}

class SignalHold {
  public:
    SignalHold() noexcept {
        const sigset_t held = signals_to_hold();
        pthread_sigmask(SIG_BLOCK, &held, &original_);
    }
    ~SignalHold() { pthread_sigmask(SIG_SETMASK, &original_, nullptr); }
    SignalHold(const SignalHold&) = delete;
    SignalHold& operator=(const SignalHold&) = delete;

    const sigset_t* original() const noexcept { return &original_; }

  private:
    sigset_t original_;
};

}  // namespace vma::runtime
