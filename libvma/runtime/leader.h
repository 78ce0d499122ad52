// SPDX-License-Identifier: BSD-2-Clause
// Does the internal thread keep the process alive?
//
// Not when main returns or somebody calls exit(). But a program may end by pthread_exit() in every thread, main's
// included; libc then calls exit(0) in the last one. It counts our thread too, so the last thread would be ours and
// the process would stay for ever. The kernel tells when the main thread is gone (a pidfd of the thread, Linux 6.9);
// from then on, and on older kernels always, the number of threads is looked at now and then.
#pragma once

namespace vma::runtime::leader {

// A descriptor that becomes readable when the main thread has exited; -1 where the kernel has none.
int exit_fd() noexcept;

// Has the main thread exited and is the caller the only thread left? False when it cannot be told.
bool only_caller_left() noexcept;

}  // namespace vma::runtime::leader
