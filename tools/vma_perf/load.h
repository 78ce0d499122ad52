// SPDX-License-Identifier: BSD-2-Clause
// The client's side of a run: when it sends what. One thread runs one load over one lane, first the warm-up,
// then the measured part.
//
// Without a rate a connection keeps `window` requests in flight (ping-pong), or sends as fast as it goes
// (throughput). With a rate there is a schedule: burst k of the thread is due at start + k * interval,
// however late earlier ones are. The latency of a request counts from then. So when a stall delays a thousand
// requests, all thousand show the stall. A client that counts from the send shows one: coordinated omission.
#pragma once

#include <memory>
#include <vector>

#include "tools/vma_perf/message.h"
#include "tools/vma_perf/recorder.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {

// Time since the beginning of the run, which is the same for all threads. Nanoseconds.
class RunClock {
  public:
    RunClock() : start_(Clock::now()) {}
    std::int64_t now() const noexcept { return std::chrono::nanoseconds(Clock::now() - start_).count(); }

  private:
    const Clock::time_point start_;
};

// When a thread's bursts are due. Pure: a test gives the times.
class Schedule {
  public:
    // `rate`: messages per second of this thread, 0: no schedule, everything is due. `offset`: fraction of an
    // interval by which this thread starts later, so that threads take turns.
    Schedule(double rate, unsigned burst, double offset) noexcept
        : interval_ns_(rate > 0 ? burst * 1e9 / rate : 0), offset_ns_(offset * interval_ns_) {}

    bool active() const noexcept { return interval_ns_ > 0; }
    void start(std::int64_t now_ns) noexcept {
        start_ns_ = static_cast<double>(now_ns) + offset_ns_;
        number_ = 0;
    }
    std::int64_t due() const noexcept {
        return static_cast<std::int64_t>(start_ns_ + static_cast<double>(number_) * interval_ns_);
    }
    void next() noexcept { ++number_; }

  private:
    double interval_ns_, offset_ns_;
    double start_ns_ = 0;
    std::uint64_t number_ = 0;
};

// What one thread is to do.
struct Work {
    unsigned thread = 0;  // of Params::threads
    const RunClock* clock = nullptr;
    const std::atomic<bool>* stop = nullptr;
    bool reliable = false;         // of the transport
    std::uint64_t iterations = 0;  // messages of this thread to measure; 0: by time
};

// From when to when a thread measured, ns of the RunClock.
struct Span {
    std::int64_t begin = 0, end = 0;
};

// Sizes and contents of messages.
class Writer {
  public:
    Writer(const Params& params, unsigned thread)
        : min_(params.min_size),
          span_(params.max_size - params.min_size + 1),
          verify_(params.verify),
          threads_(params.threads),
          thread_(thread),
          random_(0x9e3779b97f4a7c15u * (thread + 1)) {}

    // The size of the next message.
    std::uint32_t size() noexcept {
        if (span_ == 1) return min_;
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return min_ + static_cast<std::uint32_t>((random_ >> 32) * span_ >> 32);
    }
    // `connection`: of the lane.
    void write(std::byte* to, std::uint32_t size, unsigned connection, std::uint64_t sequence,
               bool warm) const noexcept {
        const auto flags =
            static_cast<std::uint16_t>((warm ? Header::kWarmUp : 0) | (verify_ ? Header::kPattern : 0));
        write_header(to,
                     {size, static_cast<std::uint16_t>(connection * threads_ + thread_), flags, sequence});
        if (verify_) fill_pattern({to, size});
    }
    // Does this writer's connection of the lane expect the message: whole, and of this part of the run?
    bool ours(const Header& header, std::size_t size, unsigned connection, bool warm) const noexcept {
        return header.length == size && header.connection == connection * threads_ + thread_ &&
               ((header.flags & Header::kWarmUp) != 0) == warm;
    }

  private:
    const std::uint32_t min_;
    const std::uint64_t span_;
    const bool verify_;
    const unsigned threads_, thread_;
    std::uint64_t random_;
};

// What both loads have: the two parts of a run, its clock, and what is left of it.
class Load : protected Receiver {
  public:
    Load(Lane& lane, const Params& params, const Work& work);
    // Warm-up, then what is measured, into the recorder. Returns when both are over or `stop` is set. Throws
    // Failure.
    Span run(Recorder& recorder);
    // Messages sent on each of the lane's connections in the measured part.
    virtual std::vector<std::uint64_t> sent() const = 0;

  protected:
    // One part, from now_ until end_ or until nothing is left_; without a recorder it is the warm-up.
    // Connections begin anew.
    virtual Span part() = 0;

    bool stopped() const noexcept { return work_.stop->load(std::memory_order_relaxed); }
    std::int64_t now() const noexcept { return work_.clock->now(); }
    // So many messages were sent.
    void count_down(std::uint64_t messages) noexcept {
        if (left_ != kUnlimited) left_ -= messages;
    }

    static constexpr std::uint64_t kUnlimited = UINT64_MAX;
    Lane& lane_;
    const Params params_;
    const Work work_;
    Writer writer_;
    Schedule schedule_;
    Recorder* recorder_ = nullptr;  // none: warm-up
    std::int64_t now_ = 0;    // the last time that was asked for; this and the next one: ns of the RunClock
    std::int64_t end_ = 0;    // of this part
    std::uint64_t left_ = 0;  // messages to send in this part

  private:
    Span start_part(double seconds, std::uint64_t iterations);
};

// Ping-pong or one way, as the parameters say.
std::unique_ptr<Load> make_load(Lane& lane, const Params& params, const Work& work);
std::unique_ptr<Load> make_pingpong(Lane& lane, const Params& params, const Work& work);
std::unique_ptr<Load> make_throughput(Lane& lane, const Params& params, const Work& work);

}  // namespace vma_perf
