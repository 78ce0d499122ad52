// SPDX-License-Identifier: BSD-2-Clause
// How a polling loop waits between two polls.
//
// An answer that is on its way arrives within microseconds, so at first there is only a pause instruction. A
// loop that has polled in vain for longer is idle, and on a machine with more busy threads than cores its
// peer may be waiting for this very core: from then on it offers the core now and then, which costs next to
// nothing when nobody wants it.
#pragma once

#include <cstdint>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/lock.h"

namespace vma {

// `round` counts the loop's polls in vain, from 1.
inline void spin_wait(std::uint64_t round) noexcept {
    constexpr std::uint64_t kIdleAfter = 2048, kYieldEvery = 512;  // about 60 us and 15 us
    if (round >= kIdleAfter && round % kYieldEvery == 0)
        os::raw_syscall(SYS_sched_yield);
    else
        cpu_relax();
}

}  // namespace vma
