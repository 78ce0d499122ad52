// SPDX-License-Identifier: BSD-2-Clause
// Ending on request: SIGINT, SIGTERM and SIGHUP end a wait and are then seen by stopped().
#pragma once

#include <cstdint>
#include <vector>

namespace vma_stats {

void catch_signals();
bool stopped();

// Sleeps until the monotonic clock shows `until_ns`, a signal asks to end, or one of `descriptors` is
// readable.
void wait_until(std::int64_t until_ns, const std::vector<int>& descriptors);

}  // namespace vma_stats
