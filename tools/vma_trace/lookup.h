// SPDX-License-Identifier: BSD-2-Clause
// dlsym() and dlvsym() of programs that load libibverbs for themselves: they get our functions, too.
#pragma once

namespace vma_trace {

// libc's own dlvsym().
void* real_dlvsym(void* handle, const char* name, const char* version) noexcept;

}  // namespace vma_trace
