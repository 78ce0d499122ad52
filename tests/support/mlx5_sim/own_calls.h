// SPDX-License-Identifier: BSD-2-Clause
// System calls on the simulator's own descriptors. libc's functions, syscall() included, may be those of a
// library under test: they would take a number of the simulator's private table for one of the program's, and
// wait for locks that the program holds while it waits for the simulator.
#pragma once

#include <cerrno>

#include "libvma/os/raw_syscall.h"

namespace mlx5_sim {

// As syscall(2) of libc: -1 and errno on failure.
template <class... Args>
long own_call(long number, Args... args) noexcept {
    const long result = vma::os::raw_syscall(number, args...);
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
}

}  // namespace mlx5_sim
