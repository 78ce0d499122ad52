// SPDX-License-Identifier: BSD-2-Clause
// Ending on request: SIGINT, SIGTERM and SIGHUP end a wait and are then seen by stopped().
#pragma once

#include <vector>

namespace vma_stats {

void catch_signals();
bool stopped();

// Sleeps until the monotonic clock shows `until_ns`, a signal asks to end, or one of `descriptors` is
// readable.
void wait_until(long long until_ns, const std::vector<int>& descriptors);
long long monotonic_ns();

}  // namespace vma_stats
