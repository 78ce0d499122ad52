// SPDX-License-Identifier: BSD-2-Clause
// RACK (RFC 8985): what is lost is told by when it was sent, not by how much arrived behind it.
//
// A segment is lost when another one that was sent later has arrived, and a round trip and a reordering
// window have passed since it was sent. So a retransmission that is lost shows like any other segment. The
// window is 0 until the path is seen to reorder; it then grows for as long as D-SACKs say that it is too
// small. Numbers and exceptions are the kernel's. There every other way to find losses by SACK has gone, and
// so it has here.
//
// Values only: the scoreboard has the segments (scoreboard.h). Times of sending are microseconds in 32 bits,
// which wrap; whoever sends after a long pause calls forget().
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class Rack {
  public:
    static constexpr unsigned kReordering = 3;        // net.ipv4.tcp_reordering
    static constexpr unsigned kMostReordering = 300;  // net.ipv4.tcp_max_reordering

    // A segment that ends at `end` and was sent at `sent` for the last time has arrived, as an ACK at `now`
    // says. `again`: it was sent more than once. Then the ACK may be of an earlier transmission, and counts
    // only when it comes after `min_rtt` at the soonest.
    void delivered(Usec sent, std::uint32_t end, bool again, Usec now, Usec min_rtt) noexcept {
        const Usec rtt = now - sent;
        if (again && rtt < min_rtt) return;
        rtt_ = rtt;
        advanced_ = true;
        if (known_ && !later(sent, end, sent_, end_)) return;
        known_ = true;
        sent_ = sent;
        end_ = end;
    }
    // Has anything arrived since this was asked last? Else there is nothing new to find.
    bool take_advanced() noexcept { return std::exchange(advanced_, false); }
    // A recovery was undone: what was taken for lost is looked at again.
    void look_again() noexcept { advanced_ = true; }
    // Nothing is under way: times from before are of no use any more.
    void forget() noexcept { known_ = advanced_ = false; }

    // Has a segment arrived that was sent after this one?
    bool overtaken(Usec sent, std::uint32_t end) const noexcept {
        return known_ && later(sent_, end_, sent, end);
    }
    // How long until such a segment is lost, in microseconds; 0 and less: it is.
    std::int64_t remaining(Usec sent, Usec window, Usec now) const noexcept {
        return std::int64_t{rtt_.count()} + window.count() - (now - sent).count();
    }

    // The longest that may remain() for a segment that was overtaken.
    Usec longest(Usec window, Usec now) const noexcept {
        const std::int64_t left = remaining(sent_, window, now);
        return Usec(static_cast<std::uint32_t>(std::max<std::int64_t>(left, 1)));
    }

    // The reordering window. `min_rtt`: Usec::max() when there is none. `recovering`: in a recovery or after
    // a timeout. `reported`: segments that the peer has reported by SACK.
    Usec window(Usec min_rtt, Usec srtt, bool recovering, unsigned reported) const noexcept {
        if (!seen_ && (recovering || reported >= reordering_)) return Usec(0);
        const std::uint64_t wanted = std::uint64_t{min_rtt.count() / 4} * steps_;
        return Usec(static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, srtt.count())));
    }

    // The peer reported a duplicate that was not a tail loss probe.
    void duplicate() noexcept {
        if (seen_) duplicate_ = true;
    }
    // Something was delivered: adapts the window, once for each round trip.
    void adapt(Usec now) noexcept {
        // What was sent before the last change says nothing about it.
        if (duplicate_ && adapted_ && static_cast<std::int32_t>((sent_ - adapted_at_).count()) < 0)
            duplicate_ = false;
        if (duplicate_) {
            duplicate_ = false;
            steps_ = std::min<unsigned>(steps_ + 1, UINT8_MAX);
            adapted_ = true;
            adapted_at_ = now;
            persist_ = kPersist;
        } else if (persist_ == 0) {
            steps_ = 1;
        }
    }
    // A recovery is over, needed or not.
    void recovered() noexcept {
        if (persist_ != 0) persist_--;
    }
    void undone_by_duplicates() noexcept { persist_ = std::min(persist_ + 1, kPersist); }

    // A segment that was sent once has arrived `bytes` before the end of what the peer has reported.
    void reordered(std::uint32_t bytes, std::uint32_t mss) noexcept {
        if (bytes > std::uint64_t{reordering_} * mss)
            reordering_ = std::min((bytes + mss - 1) / mss, std::uint32_t{kMostReordering});
        seen_ = true;
    }
    // A timeout although so much was reported: reordering is overrated.
    void timed_out(unsigned reported) noexcept {
        if (reported >= kReordering) reordering_ = std::min(reordering_, std::uint32_t{kReordering});
    }
    unsigned reordering() const noexcept { return reordering_; }  // segments; tcpi_reordering
    bool reordering_seen() const noexcept { return seen_; }

  private:
    static constexpr unsigned kPersist = 16;  // recoveries that a larger window outlasts

    static bool later(Usec a, std::uint32_t a_end, Usec b, std::uint32_t b_end) noexcept {
        const auto by = static_cast<std::int32_t>((a - b).count());
        return by > 0 || (by == 0 && seq_before(b_end, a_end));
    }

    Usec sent_{}, rtt_{};  // of the segment that was sent last of those that have arrived
    std::uint32_t end_ = 0;
    Usec adapted_at_{};
    std::uint32_t reordering_ = kReordering;
    unsigned steps_ = 1;  // the window in quarters of the shortest round trip
    unsigned persist_ = 0;
    bool known_ = false, advanced_ = false;
    bool seen_ = false;       // reordering
    bool duplicate_ = false;  // since the last change
    bool adapted_ = false;
};

}  // namespace vma::tcp
