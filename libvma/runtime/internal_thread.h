// SPDX-License-Identifier: BSD-2-Clause
// What runtime.cpp needs of the internal thread beside the calls that runtime.h offers to everybody.
#pragma once

namespace vma::runtime::internal_thread {

// In a forked child, where the thread does not exist: forgets it and everything it watched. Memory that
// belonged to the watches is not freed, since that would run destructors of a state that only the parent may
// take apart.
void forget_in_child() noexcept;

// Is the caller the internal thread?
bool is_current() noexcept;

}  // namespace vma::runtime::internal_thread
