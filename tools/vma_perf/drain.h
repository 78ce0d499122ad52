// SPDX-License-Identifier: BSD-2-Clause
// The server's side of a run: one thread for each lane, which answers (ping-pong) or only counts
// (throughput).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "tools/vma_perf/groups.h"
#include "tools/vma_perf/load.h"
#include "tools/vma_perf/tracker.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {

// What the server counted of the measured messages; of one lane or of all.
struct Drained {
    std::uint64_t received = 0, bytes = 0;  // duplicates are not in here
    std::uint64_t duplicates = 0, reordered = 0, corrupt = 0, foreign = 0;
    std::uint64_t unanswered = 0;  // ping-pong: no room for the answer until the end
    std::int64_t first_ns = INT64_MAX, last_ns = 0;

    Drained& operator+=(const Drained& other) noexcept;
    // From the first to the last message.
    double seconds() const noexcept {
        return last_ns > first_ns ? static_cast<double>(last_ns - first_ns) / 1e9 : 0;
    }
    // Messages per second. The first one opens the interval, so it does not count.
    double rate() const noexcept { return seconds() > 0 ? static_cast<double>(received - 1) / seconds() : 0; }
};

class Drain final : private Receiver {
  public:
    Drain(Lane& lane, const Params& params, unsigned thread, const RunClock& clock);
    // Until `stop`. Throws Failure.
    void run(const std::atomic<bool>& stop);

    // Any thread, at any time: messages so far, and bytes.
    std::uint64_t received() const noexcept { return vma::stats::load(counted_.received); }
    std::uint64_t bytes() const noexcept { return vma::stats::load(counted_.bytes); }
    // After run().
    Drained result() const noexcept { return counted_; }
    // The same of each socket.
    void add_to(GroupCounts& groups) const;

  private:
    struct Socket {
        Tracker tracker;
        Received counted;
    };

    void take(const Arrival& arrival) override;

    Lane& lane_;
    const bool answers_, verify_;
    const unsigned threads_, thread_, sockets_each_;
    const RunClock& clock_;
    std::vector<Socket> sockets_;
    Drained counted_;
};

}  // namespace vma_perf
