// SPDX-License-Identifier: BSD-2-Clause
// Writes the program's calls to the log: at level debug those that set a socket up, at fine those that move
// data or wait.
#pragma once

#include "libvma/runtime/log.h"

namespace vma::preload {

// Writes "call(first) = result", with the error's name where the result is below 0; errno is preserved.
[[gnu::cold, gnu::noinline]] void write_call(log::Level level, const char* call, long first,
                                             long result) noexcept;

// `first` is the descriptor, or the count of descriptors for calls that take many. At lower levels, this
// costs one branch.
template <log::Level level = log::Level::debug>
[[gnu::always_inline]] inline void log_call(const char* call, long first, long result) noexcept {
    if (__builtin_expect(log::enabled(level), 0)) write_call(level, call, first, result);
}

}  // namespace vma::preload
