// SPDX-License-Identifier: BSD-2-Clause
// What runtime.cpp needs of the internal thread beside the calls of runtime.h.
#pragma once

namespace vma::runtime::internal_thread {

// In a forked child, where the thread does not exist: forgets the thread and everything it watched. The
// memory of the watches is not freed, because their destructors would change state that only the parent may
// change.
void forget_in_child() noexcept;

// Is the caller the internal thread?
bool is_current() noexcept;

}  // namespace vma::runtime::internal_thread
