// SPDX-License-Identifier: BSD-2-Clause
// Holds signals back between the last look at "has a handler run?" and the system call that sleeps, so that none is
// slept through: ppoll() lets them in again with original(), atomically.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace vma::runtime {

class SignalHold {
  public:
    // Holds every signal but those a fault of this thread raises.
    SignalHold() noexcept {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&all, fault);
        pthread_sigmask(SIG_BLOCK, &all, &original_);
    }
    ~SignalHold() { pthread_sigmask(SIG_SETMASK, &original_, nullptr); }
    SignalHold(const SignalHold&) = delete;
    SignalHold& operator=(const SignalHold&) = delete;

    const sigset_t* original() const noexcept { return &original_; }

  private:
    sigset_t original_;
};

}  // namespace vma::runtime
