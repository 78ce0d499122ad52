// SPDX-License-Identifier: BSD-2-Clause
// Does the internal thread keep the process alive?
//
// Not when main returns or somebody calls exit(). But a program may end by pthread_exit() in every thread,
// main's included; libc then calls exit(0) in the last one. It counts our threads too, so the last thread
// would be ours and the process would stay for ever. No event tells that the main thread is gone (a pidfd of
// the thread stays silent until the whole process has ended, since Linux 6.15), so the internal thread looks
// now and then.
#pragma once

#include <atomic>

#include "libvma/runtime/internal_fd.h"

namespace vma::runtime::leader {

// Threads of the library, which do not keep the process alive. Whoever starts one counts it.
inline constinit std::atomic<int> own_threads{0};

enum class Threads {
    many,          // the main thread lives, or it cannot be told
    without_main,  // the main thread has exited, others of the program have not
    only_own,
};

// What look() reads, kept open: a descriptor opened each time would take, for a moment, the lowest free
// number, which the program may be about to rely on. Empty where there is no /proc.
InternalFd open_stat() noexcept;

Threads look(const InternalFd& stat) noexcept;

}  // namespace vma::runtime::leader
