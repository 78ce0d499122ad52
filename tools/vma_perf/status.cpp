// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/status.h"

#include <errno.h>
#include <string.h>

namespace vma_perf {

void fail_errno(const std::string& what, Status status) {
    const int error = errno;
    throw Failure(status, what + ": " + strerror(error));
}

}  // namespace vma_perf
