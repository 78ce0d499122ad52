// SPDX-License-Identifier: BSD-2-Clause
// The end of watch_errors() (runtime.h), for the few who close descriptors.
#pragma once

namespace vma::runtime {

// Before the program closes `fd`. Else the internal thread may be looking at the descriptor in that moment:
// the kernel then keeps the file, and with it the socket's port, until it has looked, though close() has
// returned. Takes no lock.
void unwatch_errors(int fd) noexcept;

}  // namespace vma::runtime
