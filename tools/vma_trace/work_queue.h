// SPDX-License-Identifier: BSD-2-Clause
// The requests of one send or receive queue: those under way, and numbers of the finished ones.
//
// The posting thread writes requests into a ring and publishes them with a time; the polling thread matches
// completions with them. Finished requests go into counters and histograms, and a second ring keeps the last
// ones. All memory is mapped when the queue is created. The functions take the time from outside, in any
// unit.
//
// A send queue completes in order, and a completion of a signalled request completes the unsignalled ones
// before it. A shared receive queue, and some software devices, complete in any order: a completion takes the
// oldest request with its number.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "libvma/stats/counter.h"
#include "tools/common/histogram.h"

namespace vma_trace {

using vma::stats::add;
using vma::stats::add_shared;
using vma::stats::load;
using vma::stats::store;

// Times in ticks: a percentile is off by 3 per cent at most. Times of more than some ten hours share a
// bucket.
using Histogram = tools::Histogram<tools::LogBuckets<5, 48>>;

enum class Side : std::uint8_t { send, receive };

// Waits without sleeping: a thread holds the lock as long as a provider's own lock.
class SpinLock {
  public:
    void lock() noexcept {
        while (held_.exchange(true, std::memory_order_acquire))
            while (held_.load(std::memory_order_relaxed)) __builtin_ia32_pause();
    }
    void unlock() noexcept { held_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> held_{false};
};

// One finished request, as the ring keeps it. Times are the caller's.
struct Record {
    std::uint64_t wr_id, posted, completed;
    std::uint64_t gap;  // since the completion before, of the same queue; 0: there was none, or it came
                        // without one of its own
    std::uint64_t hardware_gap;  // the same by the device's clock, in its ticks; 0: unknown
    std::uint32_t bytes;
    std::uint8_t opcode;  // ibv_wr_opcode, or kReceived
    std::uint8_t status;  // ibv_wc_status
    bool signalled;       // has a completion of its own
    std::uint8_t reserved;
};
inline constexpr std::uint8_t kReceived = 0xff;

// What a completion says.
struct Completion {
    std::uint64_t wr_id;
    std::uint32_t bytes;  // of receives
    std::uint8_t status;
    bool has_hardware_time;
    std::uint64_t hardware_time;
};

// Counters of one queue, or of several that no longer exist.
struct Totals {
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;    // requests, with and without a completion of their own
    std::uint64_t completions = 0;  // that a request was found for
    std::uint64_t bytes = 0;        // of completed requests
    std::uint64_t errors = 0;       // completions with an error status
    std::uint64_t unmatched = 0;    // completions that no request was found for
    std::uint64_t forgotten =
        0;  // requests not followed to their end: there was no room, or the queue was reset
    std::uint64_t began = 0, ended = 0;  // time of the first post and of the last completion
    Histogram latency, gap, hardware_gap;

    void merge(const Totals& other) noexcept;
};

class WorkQueue {
  public:
    struct Deleter {
        void operator()(WorkQueue* queue) const noexcept;
    };
    using Ptr = std::unique_ptr<WorkQueue, Deleter>;

    // Maps a queue that follows `outstanding` requests and keeps the last `records`, both rounded up to
    // powers of two
    // (`records` may be 0). nullptr: no memory.
    static Ptr create(Side side, std::size_t outstanding, std::size_t records) noexcept;

    Side side() const noexcept { return side_; }
    // The owner of the queue, for reports. Set before other threads see the queue.
    char device[IBV_SYSFS_NAME_MAX] = "";
    char kind[8] = "";               // RC, UD, SRQ, ...
    std::uint32_t number = 0;        // of the QP
    double device_ticks_per_ns = 0;  // of hardware times, 0: unknown

    // Posting; one thread at a time, which holds post_lock.
    SpinLock post_lock;
    // Prepares a request; publish() makes it visible.
    void prepare(std::uint64_t wr_id, std::uint32_t bytes, std::uint8_t opcode, bool signalled) noexcept;
    // The same as prepare() and publish() for a single request, while none is prepared.
    void post(std::uint64_t wr_id, std::uint32_t bytes, std::uint8_t opcode, bool signalled,
              std::uint64_t now) noexcept {
        const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
        if (tail - head_.load(std::memory_order_acquire) > request_mask_) [[unlikely]] {
            prepare(wr_id, bytes, opcode, signalled);
            return publish(now);
        }
        slot(tail) = {wr_id, now, bytes, opcode, signalled, false};
        if (totals_.began == 0) [[unlikely]]
            store(totals_.began, now);
        add(totals_.posted, 1);
        tail_.store(tail + 1, std::memory_order_release);
        published_ = published_kept_ = 1;
    }
    // Adds to the bytes of the request prepared last.
    void add_bytes(std::uint32_t bytes) noexcept {
        if (prepared_ != 0 && last_kept_)
            slot(tail_.load(std::memory_order_relaxed) + prepared_kept_ - 1).bytes += bytes;
    }
    // Makes the prepared requests visible, posted `now`. Call before the device gets them, so that no
    // completion comes earlier.
    void publish(std::uint64_t now) noexcept;
    // Takes back all but the first `kept` of the requests published last: the device refused them.
    void retract(std::size_t kept) noexcept;
    // Forgets what was prepared and not published.
    void discard() noexcept { prepared_ = prepared_kept_ = 0; }

    // The short way for the usual case of complete(): the oldest request succeeded and has a completion of
    // its own, without a hardware time. False: another case; nothing changed.
    bool complete_oldest(std::uint64_t wr_id, std::uint32_t bytes, std::uint64_t now) noexcept;
    // Polling; any thread. False, and `unmatched` counted where `count_unmatched`, if no request goes with
    // the completion.
    bool complete(const Completion& completion, std::uint64_t now, bool count_unmatched = true) noexcept;
    // The queue was reset: what is under way will not complete.
    void forget_outstanding() noexcept;

    const Totals& totals() const noexcept { return totals_; }
    std::size_t outstanding() const noexcept;
    // The kept records, oldest first; fewer while the queue is in use. `visit` gets each.
    template <class Visit>
    void each_record(Visit&& visit) const noexcept {
        const std::uint64_t end = recorded();
        for (std::uint64_t i = end > record_mask_ + 1 ? end - record_mask_ - 1 : 0;
             i < end && records_ != nullptr; i++)
            visit(records_[i & record_mask_]);
    }
    // Each finished request has been one.
    std::uint64_t recorded() const noexcept { return load(totals_.completed); }
    // Number `i` of all that were recorded; one of the last record_room().
    const Record& record(std::uint64_t i) const noexcept { return records_[i & record_mask_]; }
    std::size_t record_room() const noexcept { return records_ == nullptr ? 0 : record_mask_ + 1; }

  private:
    struct Request {
        std::uint64_t wr_id, posted;
        std::uint32_t bytes;
        std::uint8_t opcode;
        bool signalled;
        bool done;  // completed out of order
    };
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};

    WorkQueue() = default;
    Request& slot(std::uint64_t i) noexcept { return requests_[i & request_mask_]; }
    // The request that a completion belongs to, between head and tail.
    std::uint64_t find(const Completion& completion, std::uint64_t head, std::uint64_t tail) noexcept;
    // The last step for a request, with what a Record says and the request does not.
    void finish(const Request& request, std::uint64_t now, std::uint64_t gap, std::uint64_t hardware_gap,
                std::uint32_t bytes, std::uint8_t status, bool own) noexcept;
    // Counts a completion; the time since the one before, 0 for the first.
    std::uint64_t gap_until(std::uint64_t now) noexcept;
    // The time since the completion before, by the device's clock; 0 for the first one.
    std::uint64_t hardware_gap(std::uint64_t time) noexcept;
    // The first of the requests from `head` on that is not done.
    std::uint64_t after_done(std::uint64_t head) noexcept;
    // Room for one more, by forgetting the older half of what is under way.
    void make_room() noexcept;

    Side side_ = Side::send;
    std::size_t mapped_ = 0;
    Request* requests_ = nullptr;
    Record* records_ = nullptr;
    std::uint64_t request_mask_ = 0, record_mask_ = 0;

    // Of the posting side.
    std::size_t prepared_ = 0, prepared_kept_ = 0;  // requests, and those of them that had room
    std::size_t published_ = 0, published_kept_ = 0;
    bool last_kept_ = false;
    alignas(64) std::atomic<std::uint64_t> tail_{0};

    // Of the polling side, under complete_lock_.
    alignas(64) SpinLock complete_lock_;
    std::atomic<std::uint64_t> head_{0};
    std::uint64_t last_completed_ = 0, last_hardware_time_ = 0;
    bool have_hardware_time_ = false;
    Totals totals_;
};

inline __attribute__((always_inline)) void WorkQueue::finish(const Request& request, std::uint64_t now,
                                                             std::uint64_t gap, std::uint64_t hardware_gap,
                                                             std::uint32_t bytes, std::uint8_t status,
                                                             bool own) noexcept {
    totals_.latency.put(now - request.posted);
    add(totals_.bytes, bytes);
    const std::uint64_t number = load(totals_.completed);
    if (records_ != nullptr)
        records_[number & record_mask_] = {request.wr_id, request.posted, now,    gap, hardware_gap,
                                           bytes,         request.opcode, status, own, 0};
    store(totals_.completed, number + 1);
}

inline __attribute__((always_inline)) std::uint64_t WorkQueue::gap_until(std::uint64_t now) noexcept {
    const std::uint64_t before = last_completed_;
    last_completed_ = now;
    store(totals_.ended, now);
    if (before == 0) return 0;
    totals_.gap.put(now - before);
    return now - before;
}

inline __attribute__((always_inline)) bool WorkQueue::complete_oldest(std::uint64_t wr_id,
                                                                      std::uint32_t bytes,
                                                                      std::uint64_t now) noexcept {
    complete_lock_.lock();
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    Request& request = slot(head);
    const bool usual = head != tail_.load(std::memory_order_acquire) && request.wr_id == wr_id &&
                       request.signalled && !request.done;
    if (usual) [[likely]] {
        add(totals_.completions, 1);
        finish(request, now, gap_until(now), 0, side_ == Side::send ? request.bytes : bytes, IBV_WC_SUCCESS,
               true);
        std::uint64_t next = head + 1;
        if (side_ == Side::receive) next = after_done(next);
        head_.store(next, std::memory_order_release);
    }
    complete_lock_.unlock();
    return usual;
}

}  // namespace vma_trace
