// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>

#include "tools/vma_perf/blocks.h"
#include "tools/vma_perf/load.h"
#include "tools/vma_perf/thread_group.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;

constexpr auto kSetUp = 10s;        // for each step of setting up
constexpr auto kReport = 10s;       // for the server's report
constexpr auto kLastWords = 300ms;  // the server's own reason may come a moment after what it caused here
constexpr std::size_t kLogCapacity = 1 << 18;  // samples between two looks, of each thread
constexpr double kLook = 0.05;                 // seconds between two looks, at most
constexpr double kLooks = 40;                  // in a run, at least

// The threads that measure.
class Workers {
  public:
    Workers(const ClientSession& session, const Params& params, const RunOptions& options, bool reliable,
            const std::atomic<bool>& stop)
        : lanes_(session.lanes()), params_(params) {
        for (unsigned i = 0; i < params.threads; ++i) {
            const Work work{i, &clock_, &stop, reliable, share(i)};
            loads_.push_back(make_load(*lanes_[i], params, work));
            recorders_.push_back(std::make_unique<Recorder>(params.rate > 0, options.log ? kLogCapacity : 0));
        }
        spans_.resize(params.threads);
        threads_.start(params.threads, options.cpus,
                       [this](unsigned i) { spans_[i] = loads_[i]->run(*recorders_[i]); });
    }
    void join() { threads_.join(); }
    bool running() const noexcept { return threads_.running(); }
    bool failed() const noexcept { return threads_.failed(); }
    // After join().
    void rethrow() const { threads_.rethrow(); }
    // On each connection of the run.
    std::vector<std::uint64_t> sent() const {
        std::vector<std::uint64_t> all(params_.connections);
        for (unsigned lane = 0; lane < params_.threads; ++lane) {
            const std::vector<std::uint64_t> sent = loads_[lane]->sent();
            for (std::size_t i = 0; i < sent.size(); ++i) all[i * params_.threads + lane] = sent[i];
        }
        return all;
    }
    double seconds() const noexcept {
        Span all{INT64_MAX, 0};
        for (const Span& s : spans_) all = {std::min(all.begin, s.begin), std::max(all.end, s.end)};
        return all.end > all.begin ? static_cast<double>(all.end - all.begin) / 1e9 : 0;
    }

    // Any time.
    Counters counters() const noexcept {
        Counters sum;
        for (const auto& r : recorders_) sum += r->counters();
        return sum;
    }
    Distribution latency() const {
        Distribution sum;
        for (const auto& r : recorders_) r->add_latency(sum);
        return sum;
    }
    Distribution sent_latency() const {
        Distribution sum;
        for (const auto& r : recorders_) r->add_sent_latency(sum);
        return sum;
    }
    // Seconds since the first thread began to measure; negative: none has.
    double measured() const noexcept {
        std::int64_t first = INT64_MAX;
        for (const auto& r : recorders_)
            if (r->began() >= 0) first = std::min(first, r->began());
        return first == INT64_MAX ? -1 : static_cast<double>(clock_.now() - first) / 1e9;
    }
    void drain_log(const std::function<void(const Sample&)>& log) const {
        for (const auto& r : recorders_)
            if (r->samples() != nullptr) r->samples()->drain(log);
    }
    std::uint64_t log_dropped() const noexcept {
        std::uint64_t sum = 0;
        for (const auto& r : recorders_)
            if (r->samples() != nullptr) sum += r->samples()->dropped();
        return sum;
    }

  private:
    // Iterations of a thread: by its part of the connections, the first ones get what is left over.
    std::uint64_t share(unsigned thread) const noexcept {
        const std::uint64_t n = params_.iterations;
        if (n == 0) return 0;
        return n / params_.threads + (thread < n % params_.threads ? 1 : 0);
    }

    const std::span<const std::unique_ptr<Lane>> lanes_;
    const Params& params_;
    const RunClock clock_;
    std::vector<std::unique_ptr<Load>> loads_;
    std::vector<std::unique_ptr<Recorder>> recorders_;
    std::vector<Span> spans_;
    ThreadGroup threads_;  // ends first: it uses what stands above
};

// Looks at the threads from time to time: blocks, stages, progress, the log.
class Watcher {
  public:
    Watcher(const Workers& workers, const Params& params, const RunOptions& options)
        : workers_(workers), params_(params), options_(options), next_stage_(options.stage_seconds) {}

    // What the server received so far (throughput).
    void server_says(std::uint64_t received, std::uint64_t bytes, double seconds) {
        if (seconds > server_at_ && received_ > 0)
            blocks_.add(
                {.received_per_s = static_cast<double>(received - received_) / (seconds - server_at_)});
        received_ = received;
        bytes_ = bytes;
        server_at_ = seconds;
    }

    void look(bool last) {
        if (options_.log) workers_.drain_log(options_.log);
        const double at = workers_.measured();
        const Counters counters = workers_.counters();
        const std::uint64_t messages = params_.throughput ? received_ : counters.received;
        if (options_.progress) {
            const double part = params_.iterations > 0 ? static_cast<double>(counters.sent) /
                                                             static_cast<double>(params_.iterations)
                                                       : at / params_.seconds;
            options_.progress(at < 0 ? -1 : std::min(part, 1.0), messages);
        }
        if (at < 0) return;
        if (!params_.throughput) block(at, counters, last);
        if (options_.stage_seconds > 0 &&
            (at >= next_stage_ || (last && at - stage_at_ > options_.stage_seconds / 4))) {
            stage(at, messages, params_.throughput ? bytes_ : counters.bytes_received);
            next_stage_ = at - std::fmod(at, options_.stage_seconds) + options_.stage_seconds;
        }
    }

    std::vector<Block> blocks() const { return blocks_.all(); }

  private:
    void block(double at, const Counters& counters, bool last) {
        if (last || at - block_at_ < Blocks::kLength)
            return;  // the last piece would be shorter than the others
        Distribution now = workers_.latency(), piece = now;
        piece -= block_latency_;
        if (piece.count() > 0)
            blocks_.add({piece.percentile(50), piece.percentile(90), piece.percentile(99),
                         piece.percentile(99.9), piece.average(),
                         static_cast<double>(counters.received - block_received_) / (at - block_at_)});
        block_at_ = at;
        block_received_ = counters.received;
        block_latency_ = std::move(now);
    }

    void stage(double at, std::uint64_t messages, std::uint64_t bytes) {
        Stage stage{at, at - stage_at_,    messages - stage_messages_, bytes - stage_bytes_, messages, bytes,
                    {}, workers_.latency()};
        stage.latency = stage.all_latency;
        stage.latency -= stage_latency_;
        options_.stage(stage);
        stage_at_ = at;
        stage_messages_ = messages;
        stage_bytes_ = bytes;
        stage_latency_ = std::move(stage.all_latency);
    }

    const Workers& workers_;
    const Params& params_;
    const RunOptions& options_;
    Blocks blocks_;
    std::uint64_t received_ = 0, bytes_ = 0;  // by the server
    double server_at_ = 0;
    double block_at_ = 0;
    std::uint64_t block_received_ = 0;
    Distribution block_latency_;
    double stage_at_ = 0, next_stage_;
    std::uint64_t stage_messages_ = 0, stage_bytes_ = 0;
    Distribution stage_latency_;
};

// After a failure here: throws the server's reason, if the server gives one.
void listen_to_last_words(Control& control) {
    const auto deadline = Clock::now() + kLastWords;
    while (Clock::now() < deadline) {
        try {
            if (!control.look()) std::this_thread::sleep_for(10ms);
        } catch (const Failure& failure) {
            if (failure.status() != kPeerEnded) throw;
            return;  // it ended: the reason here says more
        }
    }
}

void take_progress(const nlohmann::json& message, Watcher& watcher) {
    const auto progress = message.find("progress");
    if (progress == message.end()) return;
    watcher.server_says(progress->value("received", std::uint64_t{0}),
                        progress->value("bytes", std::uint64_t{0}), progress->value("seconds", 0.0));
}

Result run_as_agreed(Control& control, const Params& params, const Place& place, const RunOptions& options,
                     const std::atomic<bool>& interrupted) {
    const TransportType& type = transport(params.transport);
    std::atomic<bool> stop{false};
    Place here = place;
    here.stop = &stop;

    control.send({{"run", to_json(params)}});
    auto deadline = Clock::now() + kSetUp;
    const nlohmann::json offer = control.expect("offer", deadline, &interrupted);
    const auto session = type.connect(params, here);
    control.send({{"answer", session->connect(offer, deadline)}});
    Result result;
    result.params = params;
    const nlohmann::json ready = control.receive(deadline, &interrupted);
    result.server_stack = ready.value("stack", "?");
    result.client_stack = type.stack != nullptr ? type.stack : socket_stack();

    Workers workers(*session, params, options, type.reliable, stop);
    // The threads end with this function, also by an exception.
    const std::shared_ptr<void> stopper(nullptr, [&](void*) { stop = true; });
    Watcher watcher(workers, params, options);
    const double length = params.iterations > 0 ? 1e9 : params.seconds;
    const std::chrono::duration<double> pause(std::clamp(length / kLooks, 0.005, kLook));
    while (workers.running()) {
        std::this_thread::sleep_for(pause);
        if (workers.failed()) break;
        while (const auto message = control.look()) take_progress(*message, watcher);
        if (interrupted.load()) {
            stop = true;
            result.interrupted = true;
        }
        watcher.look(false);
    }
    if (workers.failed()) {
        stop = true;
        workers.join();
        listen_to_last_words(control);
    }
    workers.join();
    workers.rethrow();
    watcher.look(true);

    const std::vector<std::uint64_t> sent = workers.sent();
    control.send({{"sent", std::accumulate(sent.begin(), sent.end(), std::uint64_t{0})}});
    deadline = Clock::now() + kReport;
    while (true) {
        const nlohmann::json message = control.receive(deadline, nullptr);
        if (const auto report = message.find("report"); report != message.end()) {
            result.server = *report;
            break;
        }
        take_progress(message, watcher);
    }
    result.groups = group_results(params, sent, result.server.value("groups", nlohmann::json::array()));
    result.transport = session->report();
    result.seconds = workers.seconds();
    result.counters = workers.counters();
    result.latency = workers.latency();
    result.sent_latency = workers.sent_latency();
    result.blocks = watcher.blocks();
    result.log_dropped = workers.log_dropped();
    return result;
}

}  // namespace

Result run(Control& control, const Params& params, const Place& place, const RunOptions& options,
           const std::atomic<bool>& interrupted) {
    try {
        return run_as_agreed(control, params, place, options, interrupted);
    } catch (const nlohmann::json::exception& error) {
        throw Failure(kVersion, fmt::format("what {} says cannot be read: {}", control.peer(), error.what()));
    }
}

}  // namespace vma_perf
