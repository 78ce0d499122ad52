// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include "tools/vma_stats/fd.h"

namespace vma_perf {

using vma_stats::Fd;

}  // namespace vma_perf
