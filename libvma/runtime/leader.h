// SPDX-License-Identifier: BSD-2-Clause
// Does the internal thread keep the process alive?
//
// It does not when main returns or the program calls exit(). But a program may call pthread_exit() in every
// thread, main's included; libc then calls exit(0) in the last thread. libc also counts the library's
// threads, so the process would never end. No event tells that the main thread has exited: since Linux 6.15 a
// pidfd of the thread stays silent until the whole process has ended. So the internal thread looks now and
// then.
#pragma once

#include <atomic>

#include "libvma/runtime/internal_fd.h"

namespace vma::runtime::leader {

// The library's threads, which do not keep the process alive. The code that starts a thread counts it here.
inline constinit std::atomic<int> own_threads{0};

enum class Threads {
    many,          // the main thread lives, or its state is unknown
    without_main,  // the main thread has exited, other threads of the program live
    only_own,
};

// The file that look() reads, kept open. Opening it each time would take the lowest free number for a moment,
// and the program may rely on that number. Empty without /proc.
InternalFd open_stat() noexcept;

Threads look(const InternalFd& stat) noexcept;

}  // namespace vma::runtime::leader
