// SPDX-License-Identifier: BSD-2-Clause
// System calls of the simulator's thread. They must not go through libc: a preloaded library that follows the program's descriptors
// (the one under test does, syscall() included) would take the thread's private ones for the program's of the same numbers.
#pragma once

#include <cerrno>
#include <type_traits>

#include "tests/mlx5_sim/netdev_raw.h"

namespace mlx5_sim {

// As syscall(2): -1 and errno on failure.
template <class... Args>
long raw(long number, Args... args) {
    const auto word = [](auto value) {
        if constexpr (std::is_null_pointer_v<decltype(value)>)
            return 0L;
        else if constexpr (std::is_pointer_v<decltype(value)>)
            return reinterpret_cast<long>(value);
        else
            return static_cast<long>(value);
    };
    long words[6] = {word(args)...};
    const long result = mlx5_sim_raw_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (result >= 0 || result < -4095) return result;
    errno = static_cast<int>(-result);
    return -1;
}

}  // namespace mlx5_sim
