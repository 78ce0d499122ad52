// SPDX-License-Identifier: BSD-2-Clause
// vma_perf pingpong and vma_perf throughput: the runs that were asked for, one after the other, and what is
// printed of them.
#pragma once

#include <atomic>

#include "tools/vma_perf/options.h"

namespace vma_perf {

// Returns the exit status; throws Failure.
int run_client(const ClientOptions& options, const std::atomic<bool>& interrupted);

}  // namespace vma_perf
