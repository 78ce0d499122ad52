// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/drain.h"

#include <algorithm>

#include "tools/common/sums.h"

namespace vma_perf {
namespace {

constexpr std::uint64_t Drained::*kCounters[] = {&Drained::received,  &Drained::bytes,   &Drained::duplicates,
                                                 &Drained::reordered, &Drained::corrupt, &Drained::foreign,
                                                 &Drained::unanswered};

}  // namespace

Drained& Drained::operator+=(const Drained& other) noexcept {
    tools::add_members(*this, other, kCounters);
    first_ns = std::min(first_ns, other.first_ns);
    last_ns = std::max(last_ns, other.last_ns);
    return *this;
}

Drain::Drain(Lane& lane, const Params& params, unsigned thread, const RunClock& clock)
    : lane_(lane),
      answers_(!params.throughput),
      verify_(params.verify),
      threads_(params.threads),
      thread_(thread),
      sockets_each_(params.sockets_each()),
      clock_(clock),
      sockets_(std::size_t{lane.connections()} * sockets_each_) {}

void Drain::run(const std::atomic<bool>& stop) {
    while (!stop.load(std::memory_order_relaxed)) {
        const std::uint64_t before = received();
        lane_.receive(*this, true);
        if (received() == before) continue;
        const std::int64_t now = clock_.now();
        if (before == 0) counted_.first_ns = now;
        counted_.last_ns = now;
    }
}

void Drain::take(const Arrival& arrival) {
    const Header header = read_header(arrival.message.data());
    if (header.length != arrival.message.size() ||
        header.connection != arrival.connection * threads_ + thread_) {
        ++counted_.foreign;
        return;
    }
    if (answers_ && !lane_.answer(arrival)) ++counted_.unanswered;
    if ((header.flags & Header::kWarmUp) != 0) return;
    Socket& socket = sockets_[std::size_t{arrival.connection} * sockets_each_ + arrival.copy];
    switch (socket.tracker.note(header.sequence)) {
        case Tracker::Kind::duplicate:
            ++counted_.duplicates;
            ++socket.counted.duplicates;
            return;
        case Tracker::Kind::reordered:
            ++counted_.reordered;
            ++socket.counted.reordered;
            break;
        case Tracker::Kind::in_order:
            break;
    }
    if (verify_ && !has_pattern(arrival.message)) ++counted_.corrupt;
    ++socket.counted.messages;
    vma::stats::add(counted_.received, 1);
    vma::stats::add(counted_.bytes, arrival.message.size());
}

void Drain::add_to(GroupCounts& groups) const {
    for (unsigned i = 0; i < sockets_.size(); ++i)
        groups.add(i / sockets_each_ * threads_ + thread_, i % sockets_each_, sockets_[i].counted);
}

}  // namespace vma_perf
