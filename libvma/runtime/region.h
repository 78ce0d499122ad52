// SPDX-License-Identifier: BSD-2-Clause
// Where a thread is inside the library, and what happens to signals meanwhile.
//
// A handler of the program may do at any instant what signal-safety(7) allows: return, jump out with
// siglongjmp(), end the process, fork, call any socket function. So none may run while its thread holds a
// lock of ours, a reference to a socket, or has changed half of something. Each call of the program into the
// library is a Region. A signal that has a handler of the program and reaches the thread there is put off
// (signals.cpp): the function of ours that stands before the handler sends the signal to its own thread once
// more, has the interrupted context block signals, and returns. The end of the region unblocks them, so the
// kernel delivers the signal with everything that belongs to it: siginfo, mask, stack, flags.
//
// A call that waits does what the kernel's does: it looks at pending(), gives up what it holds, and leaves
// the region with EINTR, or with kRestart where the kernel would start the call anew after a handler with
// SA_RESTART. The preload layer decides when the handlers have run. What waits inside the kernel itself is
// left to the preload layer, too (kAskKernel), for there no handler may be put off: the kernel would go on
// with the call, and the handler would never run.
//
// Signals that the thread itself raised by a fault are never put off: the instruction would only fault again.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace vma::runtime {

// errno of a call that has to leave the region first; they never reach the program.
inline constexpr int kRestart =
    85;  // ERESTART: run the handlers; again, unless one of them interrupts system calls
inline constexpr int kAskKernel = 4097;  // make the call without the library: it may wait in the kernel

// The kernel's signal set: the first eight bytes of a sigset_t.
using SignalSet = std::uint64_t;
inline SignalSet& as_kernel_set(sigset_t& set) noexcept { return reinterpret_cast<SignalSet&>(set); }
inline SignalSet as_kernel_set(const sigset_t& set) noexcept {
    return reinterpret_cast<const SignalSet&>(set);
}

// What a thread's own handlers read and write as well: plain variables, ordered by signal fences.
struct Deferral {
    unsigned depth;             // regions inside each other
    bool pending;               // a signal was put off: every signal is blocked since, until the region ends
    bool admitted;              // it came in through `admitting`
    SignalSet program_mask;     // pending: the thread's mask for the program
    SignalSet admit_mask;       // admitted: what was let in
    const sigset_t* admitting;  // ppoll() and its like: the mask of the call, which lets in what the thread's
                                // own one blocks
};
extern constinit thread_local Deferral t_deferral;

inline bool in_region() noexcept { return t_deferral.depth != 0; }
// Has a signal been put off? The call has to come to its end.
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

// A change of the thread's signal mask by the library: blocks `more`. The destructor takes it back, unless a
// signal was put off: then that is the end of the region's business.
class MaskChange {
  public:
    explicit MaskChange(SignalSet more) noexcept;
    ~MaskChange() { set(original_); }
    MaskChange(const MaskChange&) = delete;
    MaskChange& operator=(const MaskChange&) = delete;

    // Another mask for the time being.
    void set(SignalSet mask) noexcept;
    SignalSet original() const noexcept { return original_; }

  private:
    SignalSet original_ = 0;
    bool late_ = false;  // a signal had been put off before
};

// While it lives, `mask` (may be null) is what a sleeping call lets signals in by.
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

// In a forked child: signals that were put off are the parent's. Ends all regions.
void forget_regions_in_child() noexcept;

}  // namespace vma::runtime
