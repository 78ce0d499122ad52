// SPDX-License-Identifier: BSD-2-Clause
// The end of watch_errors() (runtime.h), apart for the few files that close descriptors.
#pragma once

namespace vma::runtime {

// Called before the program closes `fd`. Otherwise the internal thread may be looking at the descriptor while
// the program closes it. The kernel then keeps the file, and with it the socket's port, until that look ends,
// though close() has returned. Takes no lock.
void unwatch_errors(int fd) noexcept;

}  // namespace vma::runtime
