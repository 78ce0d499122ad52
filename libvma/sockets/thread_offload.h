// SPDX-License-Identifier: BSD-2-Clause
// Whether the sockets that a thread makes are offloaded: VMA_OFFLOADED_SOCKETS, unless the program has said
// otherwise for the thread (the extra API's thread_offload).
#pragma once

#include <pthread.h>

namespace vma::sockets::thread_offload {

// For sockets that `thread` makes from now on. The thread need not exist yet. 0, or -ENOMEM, or -ENOSPC for
// more threads than there is room for.
int set(pthread_t thread, bool on) noexcept;
// For the calling thread.
bool wanted() noexcept;

}  // namespace vma::sockets::thread_offload
