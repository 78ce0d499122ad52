// SPDX-License-Identifier: BSD-2-Clause
// Sinks that wait for a poll that finds nothing (Ring::when_idle()).
//
// Locks: the caller holds the receive lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "libvma/ring/frame_sink.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {

class IdleSinks {
  public:
    // How long a sink waits at least.
    void set_waits(clock::Usec soon, clock::Usec later) noexcept {
        waits_ = {clock::to_ticks(soon), clock::to_ticks(later)};
    }
    bool empty() const noexcept { return queues_[0].empty() && queues_[1].empty(); }
    // Without memory the sink is forgotten.
    void add(FrameSink* sink, Idle when) noexcept {
        try {
            queue(when).push({sink, clock::Ticks::now() + waits_[static_cast<unsigned>(when)]});
        } catch (...) {
        }
    }
    // Calls whoever has waited long enough. It may add itself, and remove anybody.
    void serve(Ring& ring) noexcept {
        const clock::Ticks now = clock::Ticks::now();
        for (const Idle when : {Idle::soon, Idle::later}) {
            Queue& waiting = queue(when);
            for (std::size_t left = waiting.size(); left != 0 && !waiting.empty(); left--) {
                if (waiting.front().due > now) break;
                waiting.pop()->idle(ring, when);
            }
        }
    }
    void remove(FrameSink* sink) noexcept {
        for (Queue& queue : queues_) queue.remove(sink);
    }
    // What `from` knows of it becomes this object's.
    void move(FrameSink* sink, IdleSinks& from) noexcept {
        for (const Idle when : {Idle::soon, Idle::later})
            if (from.queue(when).remove(sink)) add(sink, when);
    }

  private:
    struct Waiting {
        FrameSink* sink;
        clock::Ticks due;
    };
    // In the order of `due`. Memory that it has had it keeps.
    class Queue {
      public:
        bool empty() const noexcept { return size() == 0; }
        std::size_t size() const noexcept { return all_.size() - first_; }
        const Waiting& front() const noexcept { return all_[first_]; }
        void push(Waiting waiting) {
            if (first_ > all_.size() / 2) drop_front();
            all_.push_back(waiting);
        }
        FrameSink* pop() noexcept {
            FrameSink* const sink = all_[first_++].sink;
            if (empty()) drop_front();
            return sink;
        }
        bool remove(const FrameSink* sink) noexcept {
            const auto is_it = [sink](const Waiting& w) { return w.sink == sink; };
            const auto end =
                std::remove_if(all_.begin() + static_cast<std::ptrdiff_t>(first_), all_.end(), is_it);
            const bool found = end != all_.end();
            all_.erase(end, all_.end());
            if (empty()) drop_front();
            return found;
        }

      private:
        void drop_front() noexcept {
            all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(first_));
            first_ = 0;
        }

        std::vector<Waiting> all_;
        std::size_t first_ = 0;  // what is before it has been called
    };

    Queue& queue(Idle when) noexcept { return queues_[static_cast<unsigned>(when)]; }

    std::array<Queue, 2> queues_;
    std::array<clock::Ticks, 2> waits_{};
};

}  // namespace vma::ring
