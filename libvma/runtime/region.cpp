// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/region.h"

#include <errno.h>
#include <time.h>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/signal_hold.h"

namespace vma::runtime {

constinit thread_local Deferral t_deferral{};

namespace {

SignalSet change_mask(int how, SignalSet set) noexcept {
    SignalSet before = 0;
    os::raw_syscall(SYS_rt_sigprocmask, how, &set, &before, sizeof set);
    return before;
}

}  // namespace

// A handler may never return. So this function reads and clears the thread's state before the handlers run.
void deliver_deferred() {
    Deferral& t = t_deferral;
    const ErrnoKept kept;
    const SignalSet program = t.program_mask, admitted = t.admit_mask;
    const bool through_mask = t.admitted;
    t.pending = t.admitted = false;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    change_mask(SIG_SETMASK, program);
    if (through_mask) {
        timespec now{};
        os::raw_syscall(SYS_ppoll, nullptr, 0, &now, &admitted, sizeof admitted);
    }
}

MaskChange::MaskChange(SignalSet more) noexcept {
    original_ = change_mask(SIG_BLOCK, more);
    // A signal was deferred before or during the call above: the current mask is then not the program's.
    if (pending()) {
        late_ = true;
        original_ = t_deferral.program_mask;
    }
}

void MaskChange::set(SignalSet mask) noexcept {
    if (late_) return;
    if (pending())
        t_deferral.program_mask = mask;
    else
        change_mask(SIG_SETMASK, mask);
}

int poll_interruptibly(pollfd* fds, nfds_t count, const timespec* timeout) {
    SignalHold hold;
    if (pending()) {
        errno = EINTR;
        return -1;
    }
    return os::ppoll(fds, count, timeout, hold.original());
}

void forget_regions_in_child() noexcept {
    Deferral& t = t_deferral;
    t.depth = 0;
    if (!t.pending) return;
    t.pending = t.admitted = false;
    change_mask(SIG_SETMASK, t.program_mask);
}

}  // namespace vma::runtime
