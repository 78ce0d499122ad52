// SPDX-License-Identifier: BSD-2-Clause
// Counters and latencies of a client thread. Other threads may read them meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/vma_perf/latency.h"

namespace vma_perf {

// Counters of one thread, which alone writes them, or sums of those.
struct Counters {
    std::uint64_t sent = 0, received = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0;
    std::uint64_t lost = 0;        // not answered in time
    std::uint64_t late = 0;        // answered after it had been counted as lost
    std::uint64_t duplicates = 0;  // answered twice
    std::uint64_t reordered = 0;   // answered after a later one
    std::uint64_t corrupt = 0;     // --verify: not what was sent

    Counters& operator+=(const Counters& other) noexcept;
};

// One round trip, for --log.
struct Sample {
    std::uint64_t sequence;
    std::uint32_t connection, size;
    std::int64_t due_ns, sent_ns, received_ns;  // since the beginning of the run
};

// From the thread that measures to the one that writes the log: as many samples as one tick brings, and some.
class SampleQueue {
  public:
    explicit SampleQueue(std::size_t capacity) : samples_(capacity) {}
    // False: full; the sample is dropped and counted.
    bool push(const Sample& sample) noexcept {
        const std::uint64_t head = head_.load(std::memory_order_relaxed);
        if (head - tail_.load(std::memory_order_acquire) == samples_.size()) {
            vma::stats::add(dropped_, 1);
            return false;
        }
        samples_[head % samples_.size()] = sample;
        head_.store(head + 1, std::memory_order_release);
        return true;
    }
    template <class Take>
    void drain(Take&& take) {
        std::uint64_t tail = tail_.load(std::memory_order_relaxed);
        for (const std::uint64_t head = head_.load(std::memory_order_acquire); tail != head; ++tail)
            take(samples_[tail % samples_.size()]);
        tail_.store(tail, std::memory_order_release);
    }
    std::uint64_t dropped() const noexcept { return vma::stats::load(dropped_); }

  private:
    std::vector<Sample> samples_;
    std::atomic<std::uint64_t> head_{0}, tail_{0};
    std::uint64_t dropped_ = 0;
};

class Recorder {
  public:
    explicit Recorder(bool scheduled, std::size_t log_capacity)
        : sent_latency_(scheduled ? std::make_unique<LatencyHistogram>() : nullptr),
          samples_(log_capacity > 0 ? std::make_unique<SampleQueue>(log_capacity) : nullptr) {}

    // ---- the thread that measures ----
    // The measured part begins; ns of the RunClock.
    void begin(std::int64_t now_ns) noexcept { began_.store(now_ns, std::memory_order_relaxed); }
    void sent(std::size_t bytes) noexcept {
        count(counters_.sent);
        count(counters_.bytes_sent, bytes);
    }
    void received(std::size_t bytes) noexcept {
        count(counters_.received);
        count(counters_.bytes_received, bytes);
    }
    void lost() noexcept { count(counters_.lost); }
    void late() noexcept { count(counters_.late); }
    void duplicate() noexcept { count(counters_.duplicates); }
    void reordered() noexcept { count(counters_.reordered); }
    void corrupt() noexcept { count(counters_.corrupt); }
    // A round trip. The latency counts from when it was due, so that a stall counts for every message it
    // delayed.
    void round_trip(const Sample& sample) noexcept {
        latency_.add(sample.received_ns - sample.due_ns);
        if (sent_latency_) sent_latency_->add(sample.received_ns - sample.sent_ns);
        if (samples_) samples_->push(sample);
    }

    // ---- any thread ----
    Counters counters() const noexcept;
    // -1: not yet.
    std::int64_t began() const noexcept { return began_.load(std::memory_order_relaxed); }
    void add_latency(Distribution& to) const noexcept { latency_.add_to(to); }
    // From when it was really sent; only with a schedule.
    void add_sent_latency(Distribution& to) const noexcept {
        if (sent_latency_) sent_latency_->add_to(to);
    }
    SampleQueue* samples() const noexcept { return samples_.get(); }

  private:
    // Only the thread that measures writes a counter.
    static void count(std::uint64_t& counter, std::uint64_t by = 1) noexcept { vma::stats::add(counter, by); }

    LatencyHistogram latency_;
    std::unique_ptr<LatencyHistogram> sent_latency_;
    std::unique_ptr<SampleQueue> samples_;
    std::atomic<std::int64_t> began_{-1};
    Counters counters_;
};

}  // namespace vma_perf
