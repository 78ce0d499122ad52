// SPDX-License-Identifier: BSD-2-Clause
// What may leave now: the windows, and the cases in which a short last segment waits.
//
// Under the connection's lock.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/tcp/bulk_run.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/send/send_times.h"
#include "libvma/tcp/send/unsent_limit.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

struct Tcb;

class Sender {
  public:
    explicit Sender(Tcb& tcb) noexcept : tcb_(tcb) {}

    // What a write is like: the program says that more follows (MSG_MORE), or that a record ends here
    // (MSG_EOR), which no segment shares with the next; the caller calls output() later.
    struct How {
        bool more = false, record = false, quiet = false;
    };
    // Queues what there is room for and sends what may leave. Bytes, or -EAGAIN.
    ssize_t write(const iovec* iov, std::size_t length, How how) noexcept;
    // Sends whatever may be sent now: retransmissions, data, an ACK.
    void output() noexcept;
    void output(Time now) noexcept;

    // The same, and nothing waits for more of a burst. The burst goes on if the program goes on.
    void output_kept() noexcept;

    // The program has turned to something else: what was written is complete.
    void end_burst() noexcept {
        burst_ = 0;
        soon_ = stream_ = false;
    }
    // The same; and the next write begins a burst, however soon it comes: an answer on a fast wire.
    void program_reads() noexcept {
        end_burst();
        last_write_.store(kNoTime, std::memory_order_relaxed);
    }
    // Has the program not written for longer than a burst's end may wait, though there was room? Without the
    // connection's lock.
    bool pausing(Time now) const noexcept {
        return !blocked_.load(std::memory_order_relaxed) &&
               now - last_write_.load(std::memory_order_relaxed) >= kCollect;
    }
    // The peer has acknowledged something: what waits for more (MSG_MORE) waits no longer, as in the kernel.
    void more_is_late() noexcept { more_ = false; }
    Time last_write() const noexcept { return last_write_.load(std::memory_order_relaxed); }
    // What keeps data from leaving? `no_room`: the program has more, but the send buffer is full.
    inline SendTimes::Why waits_for(bool no_room) const noexcept;
    // What is queued goes with the next output(), though it be corked.
    void push_all() noexcept { push_ = true; }

    // The handshake is done: the first byte has the number `seq`.
    void start(std::uint32_t seq) noexcept { small_end_ = seq; }
    // A short segment that ends at `end` has left.
    void small_sent(std::uint32_t end) noexcept { small_end_ = end; }
    // The peer has acknowledged all up to `ack`.
    inline void acked(std::uint32_t ack) noexcept;

  private:
    inline bool collecting(Time now) const noexcept;
    inline bool collect(Time now) noexcept;
    inline bool may_leave(lwip::Segment* segment) noexcept;
    bool part_may_leave(lwip::Segment* segment) noexcept;
    std::uint32_t longest() const noexcept;
    inline bool keep_back(const lwip::Segment* segment) noexcept;
    std::uint32_t unsent_goal() const noexcept;

    Tcb& tcb_;
    // What is kept for a super-frame waits this long at most.
    static constexpr Nsec kCollect{35'000};
    std::atomic<Time> last_write_{kNoTime};
    std::atomic<bool> blocked_{false};  // the last write found no room
    Time collecting_since_ = kNoTime;   // kNoTime: the queue is not kept for a super-frame
    std::uint32_t small_end_ = 0;       // end of the last short segment sent (Nagle, Minshall's variant)
    std::uint32_t burst_ = 0;           // writes since the program last turned to something else, less pauses
    bool soon_ = false;                 // the last write came soon after the one before
    Time long_write_end_ = kNoTime;     // when the last long write was over
    bool stream_ = false;               // the last write was a long one, and followed another
    bool more_ = false;                 // the last write said that more follows
    bool push_ = false;
    bool cwnd_full_ = false;  // the congestion window kept data back when output() was called last
    BulkRun bulk_;            // of very long writes
    UnsentLimit unsent_limit_;
};

}  // namespace vma::tcp
