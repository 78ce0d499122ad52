// SPDX-License-Identifier: BSD-2-Clause
// Tells whether a thread is inside the library, and what happens to signals meanwhile.
//
// A handler of the program may do at any instant what signal-safety(7) allows. It may return, jump out with
// siglongjmp(), end the process, fork, or call any socket function. So no handler may run while its thread
// holds a lock of the library or a reference to a socket. Nor may a handler run in the middle of a change.
// Each call of the program into the library is a Region. When a signal with a handler of the program reaches
// a thread in a Region, signals.cpp defers the signal. The library's trampoline before the handler sends the
// signal to its own thread once more, has the interrupted context block signals, and returns. The end of the
// region unblocks them. So the kernel delivers the signal with everything that belongs to it: siginfo, mask,
// stack, flags.
//
// A call that waits does what the kernel's call does: it looks at pending(), releases what it holds, and
// leaves the region with EINTR. It leaves with kRestart where the kernel would restart the call after a
// handler with SA_RESTART. The preload layer decides when the handlers have run. A call that waits inside the
// kernel itself goes back to the preload layer, too (kAskKernel). There no handler may be deferred: the
// kernel would go on with the call, and the handler would never run.
//
// Signals that the thread itself raised by a fault are never deferred: the instruction would only fault
// again.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace vma::runtime {

// errno values of a call that has to leave the region first; the program never sees them.
inline constexpr int kRestart =
    85;  // ERESTART: run the handlers; repeat the call, unless one of them interrupts system calls
inline constexpr int kAskVerdict =
    4098;  // have callbacks of the program called, then repeat (sockets/verdicts.h)
inline constexpr int kAskKernel = 4097;  // make the call without the library: it may wait in the kernel

// The kernel's signal set: the first eight bytes of a sigset_t.
using SignalSet = std::uint64_t;
inline SignalSet& as_kernel_set(sigset_t& set) noexcept { return reinterpret_cast<SignalSet&>(set); }
inline SignalSet as_kernel_set(const sigset_t& set) noexcept {
    return reinterpret_cast<const SignalSet&>(set);
}

// A thread and its own handlers share these variables: plain ones, ordered by signal fences.
struct Deferral {
    unsigned depth;          // nested regions
    bool pending;            // a signal was deferred: every signal is blocked since, until the region ends
    bool admitted;           // the signal came in through `admitting`
    SignalSet program_mask;  // pending: the thread's mask for the program
    SignalSet admit_mask;    // admitted: the mask that let the signal in
    // The mask of ppoll() and similar calls, which lets in signals that the thread's own mask blocks.
    const sigset_t* admitting;
};
extern constinit thread_local Deferral t_deferral;

inline bool in_region() noexcept { return t_deferral.depth != 0; }
// Has a signal been deferred? The call then has to end.
inline bool pending() noexcept {
    std::atomic_signal_fence(std::memory_order_acquire);
    return __builtin_expect(const_cast<const volatile bool&>(t_deferral.pending), false);
}

// Lets the handlers run. They may jump out, throw, or end the thread.
void deliver_deferred();

inline void enter_region() noexcept {
    t_deferral.depth++;
    std::atomic_signal_fence(std::memory_order_seq_cst);
}
inline void leave_region() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const unsigned depth = t_deferral.depth - 1;
    t_deferral.depth = depth;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (depth == 0 && pending()) deliver_deferred();
}

class Region {
  public:
    Region() noexcept { enter_region(); }
    ~Region() noexcept(false) { leave_region(); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
};

// Changes the thread's signal mask: blocks `more`. The destructor restores the mask. If a signal was
// deferred, the end of the region restores the mask instead.
class MaskChange {
  public:
    explicit MaskChange(SignalSet more) noexcept;
    ~MaskChange() { set(original_); }
    MaskChange(const MaskChange&) = delete;
    MaskChange& operator=(const MaskChange&) = delete;

    // Sets another mask until the destructor runs.
    void set(SignalSet mask) noexcept;
    SignalSet original() const noexcept { return original_; }

  private:
    SignalSet original_ = 0;
    bool late_ = false;  // a signal had been deferred before
};

// While it lives, a sleeping call lets signals in by `mask` (may be null).
class Admit {
  public:
    explicit Admit(const sigset_t* mask) noexcept : before_(t_deferral.admitting) {
        t_deferral.admitting = mask;
    }
    ~Admit() { t_deferral.admitting = before_; }
    Admit(const Admit&) = delete;
    Admit& operator=(const Admit&) = delete;

  private:
    const sigset_t* before_;
};

// In a forked child: deferred signals belong to the parent. Ends all regions.
void forget_regions_in_child() noexcept;

}  // namespace vma::runtime
