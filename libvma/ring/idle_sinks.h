// SPDX-License-Identifier: BSD-2-Clause
// Sinks that wait for a poll that finds nothing (Ring::when_idle()).
//
// Locks: the caller holds the receive lock.
#pragma once

#include <array>
#include <deque>

#include "libvma/ring/frame_sink.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {

class IdleSinks {
  public:
    // How long a sink waits at least.
    void set_waits(clock::Usec soon, clock::Usec later) noexcept {
        waits_ = {clock::to_ticks(soon), clock::to_ticks(later)};
    }
    bool empty() const noexcept { return queue(Idle::soon).empty() && queue(Idle::later).empty(); }
    // Without memory the sink is forgotten.
    void add(FrameSink* sink, Idle when) noexcept {
        try {
            queue(when).push_back({sink, clock::Ticks::now() + waits_[static_cast<unsigned>(when)]});
        } catch (...) {
        }
    }
    // Calls whoever has waited long enough. It may add itself, and remove anybody.
    void serve(Ring& ring) noexcept {
        const clock::Ticks now = clock::Ticks::now();
        for (const Idle when : {Idle::soon, Idle::later}) {
            for (std::size_t left = queue(when).size(); left != 0 && !queue(when).empty(); left--) {
                const Waiting first = queue(when).front();
                if (first.due > now) break;
                queue(when).pop_front();
                first.sink->idle(ring, when);
            }
        }
    }
    void remove(FrameSink* sink) noexcept {
        for (const Idle when : {Idle::soon, Idle::later}) remove(sink, when);
    }
    // What `from` knows of it becomes this object's.
    void move(FrameSink* sink, IdleSinks& from) noexcept {
        for (const Idle when : {Idle::soon, Idle::later})
            if (from.remove(sink, when)) add(sink, when);
    }

  private:
    struct Waiting {
        FrameSink* sink;
        clock::Ticks due;
    };

    bool remove(FrameSink* sink, Idle when) noexcept {
        return std::erase_if(queue(when), [sink](const Waiting& w) { return w.sink == sink; }) != 0;
    }
    std::deque<Waiting>& queue(Idle when) noexcept { return queues_[static_cast<unsigned>(when)]; }
    const std::deque<Waiting>& queue(Idle when) const noexcept {
        return queues_[static_cast<unsigned>(when)];
    }

    std::array<std::deque<Waiting>, 2> queues_;  // each in the order of `due`
    std::array<clock::Ticks, 2> waits_{};
};

}  // namespace vma::ring
