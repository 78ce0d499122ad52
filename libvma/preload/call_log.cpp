// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/preload/call_log.h"

#include <errno.h>
#include <string.h>

#include "libvma/runtime/region.h"

namespace vma::preload {

void write_call(log::Level level, const char* call, long first, long result) noexcept {
    const int error = errno;
    if (result >= 0) return log::print(level, "{}({}) = {}", call, first, result);
    if (error == runtime::kRestart || error == runtime::kAskKernel)
        return;  // the caller makes the call again or asks the kernel, and logs the end
    const char* name = strerrorname_np(error);
    log::print(level, "{}({}) = {} {}", call, first, result, name != nullptr ? name : "?");
    errno = error;
}

}  // namespace vma::preload
