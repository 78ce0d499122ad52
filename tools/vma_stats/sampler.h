// SPDX-License-Identifier: BSD-2-Clause
// Two snapshots and the time between them: what the delta mode, rates and the live view show.
#pragma once

#include "tools/vma_stats/snapshot.h"

namespace vma_stats {

// `now` with each counter replaced by what it counted since `before`; gauges and descriptions are those of
// `now`. A block that `before` does not have (another id) counts from zero. So does a counter that is lower
// than before: the process zeroed it in between.
Snapshot difference(const Snapshot& before, const Snapshot& now);

// What one report shows. `change` and `seconds` are about the time since the report before it.
struct Frame {
    Snapshot now;
    Snapshot change;
    double seconds = 0;  // 0: there was no report before, `change` is empty

    // The counters to show: in delta mode the change, otherwise totals.
    const Snapshot& shown(bool deltas) const { return deltas ? change : now; }
};

// A counter's change as a rate: events a second, rounded for people.
std::uint64_t per_second(std::uint64_t change, double seconds);

class Sampler {
  public:
    // The next report. The first one has no change.
    Frame next(Snapshot now);
    // Forgets the report before, for another process or file.
    void restart() { has_before_ = false; }

  private:
    Snapshot before_;
    bool has_before_ = false;
};

}  // namespace vma_stats
