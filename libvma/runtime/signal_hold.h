// SPDX-License-Identifier: BSD-2-Clause
// Blocks signals between the last look at "has a handler run?" and the system call that sleeps, so that the
// call sleeps through no signal. ppoll() with original() lets signals in again, atomically.
#pragma once

#include <poll.h>
#include <signal.h>

#include "libvma/runtime/region.h"

namespace vma::runtime {

// Every signal but those that a fault of the thread raises.
inline constexpr SignalSet kSignalsToHold = [] {
    SignalSet all = ~SignalSet{0};
    for (int fault :
         {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, 32, 33})  // the last two are libc's
        all &= ~(SignalSet{1} << (fault - 1));
    return all;
}();

class SignalHold {
  public:
    SignalHold() noexcept : change_(kSignalsToHold) {
        sigemptyset(&original_);
        as_kernel_set(original_) = change_.original();
    }
    SignalHold(const SignalHold&) = delete;
    SignalHold& operator=(const SignalHold&) = delete;

    const sigset_t* original() const noexcept { return &original_; }

  private:
    MaskChange change_;
    sigset_t original_;
};

// poll(2) that a signal ends with EINTR even if its handler is deferred, or was before. A cancellation point.
int poll_interruptibly(pollfd* fds, nfds_t count, const timespec* timeout);

}  // namespace vma::runtime
