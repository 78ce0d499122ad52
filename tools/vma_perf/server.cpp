// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <stdio.h>

#include <algorithm>
#include <exception>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/vma_perf/control.h"
#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/drain.h"
#include "tools/vma_perf/groups.h"
#include "tools/vma_perf/result.h"
#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/thread_group.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;

constexpr auto kStepLimit = 10s;     // for each step of setting up a run
constexpr auto kControlLook = 20ms;  // how often the control connection is looked at during a run
constexpr auto kQuiet =
    200ms;  // after the client's end nothing more is under way when nothing came for so long

void log(const ServerOptions& options, const std::string& text) {
    if (options.quiet) return;
    fputs((text + "\n").c_str(), stdout);
    fflush(stdout);
}

// The threads of a run.
class Threads {
  public:
    // `cpus`: for the threads, in turn; empty: wherever.
    Threads(const ServerSession& session, const Params& params, const std::vector<unsigned>& cpus,
            const RunClock& clock, std::atomic<bool>& stop)
        : stop_(stop) {
        const auto lanes = session.lanes();
        for (unsigned i = 0; i < lanes.size(); ++i)
            drains_.push_back(std::make_unique<Drain>(*lanes[i], params, i, clock));
        threads_.start(static_cast<unsigned>(lanes.size()), cpus,
                       [this](unsigned i) { drains_[i]->run(stop_); });
    }
    ~Threads() { join(); }
    void join() {
        stop_ = true;
        threads_.join();
    }
    bool failed() const noexcept { return threads_.failed(); }
    // After join(). Throws what a thread threw.
    Drained result() const {
        Drained sum;
        threads_.rethrow();
        for (const auto& drain : drains_) sum += drain->result();
        return sum;
    }
    nlohmann::json groups(const Params& params) const {
        GroupCounts groups(params);
        for (const auto& drain : drains_) drain->add_to(groups);
        return groups.report();
    }
    // So far.
    std::uint64_t received() const noexcept {
        std::uint64_t sum = 0;
        for (const auto& drain : drains_) sum += drain->received();
        return sum;
    }
    std::uint64_t bytes() const noexcept {
        std::uint64_t sum = 0;
        for (const auto& drain : drains_) sum += drain->bytes();
        return sum;
    }

  private:
    std::atomic<bool>& stop_;
    std::vector<std::unique_ptr<Drain>> drains_;
    ThreadGroup threads_;  // ends first: it uses what stands above
};

// One client, from its hello to its end.
class ServedClient {
  public:
    ServedClient(const ServerOptions& options, tools::Fd fd, std::string name, const std::atomic<bool>& stop)
        : options_(options),
          local_(ip_text(local_address(fd.get()))),
          peer_(ip_text(peer_address(fd.get()))),
          control_(std::move(fd), std::move(name)),
          stop_(stop) {}

    void serve() {
        try {
            control_.hello(Clock::now() + kStepLimit, &stop_);
            while (true) {
                nlohmann::json request = control_.receive(Clock::time_point::max() - 1h, &stop_);
                if (request.contains("bye")) return;
                run(params_of(request));
            }
        } catch (const Failure& failure) {
            if (failure.status() == kInterrupted) return;
            // Ended without a goodbye between runs, or within one: the client knows, and the log says it.
            log(options_, fmt::format("{}: {}", control_.peer(), failure.what()));
            try {
                control_.send(error_message(failure));
            } catch (const Failure&) {  // it is gone
            }
        } catch (const std::exception& error) {
            log(options_, fmt::format("{}: {}", control_.peer(), error.what()));
        }
    }

  private:
    static Params params_of(const nlohmann::json& request) {
        const auto found = request.find("run");
        if (found == request.end()) throw Failure(kVersion, "a request that this server does not know");
        Params params = params_from_json(*found);
        params.is_client = false;
        return params;
    }

    void run(const Params& params) {
        log(options_, fmt::format("{}: {} {}, {} bytes, connections: {}", control_.peer(), params.transport,
                                  params.throughput ? "throughput" : "ping-pong", size_text(params),
                                  params.connections));
        const TransportType& type = transport(params.transport);
        if (params.max_size > type.max_size) throw Failure(kUsage, "--size: too large for this transport");
        type.check(params);
        check_cpus(params.server_cpus, "--server-cpus");
        std::atomic<bool> over{false};
        const auto session =
            type.serve(params, {local_, peer_, options_.bind.empty() ? local_ : options_.bind, &over});
        const auto deadline = Clock::now() + kStepLimit;
        control_.send({{"offer", session->offer()}});
        session->accept(deadline);
        session->complete(control_.expect("answer", deadline, &stop_));
        const RunClock clock;
        Threads threads(*session, params, params.server_cpus.empty() ? options_.cpus : params.server_cpus,
                        clock, over);
        control_.send({{"ready", true}, {"stack", type.stack != nullptr ? type.stack : socket_stack()}});
        const std::uint64_t sent = watch(threads, params, clock);
        // What a reliable transport has accepted does come, if only after retransmissions.
        drain(threads, sent * params.sockets_each(),
              type.reliable ? std::chrono::duration<double>(params.timeout) : kQuiet);
        threads.join();
        const Drained result = threads.result();
        nlohmann::json told = report(result, *session);
        if (!params.sockets.groups.empty()) told["groups"] = threads.groups(params);
        control_.send({{"report", std::move(told)}});
        log(options_, fmt::format("{}: received {} messages", control_.peer(), result.received));
    }

    // Until the client says that it has sent everything. Returns how much that is.
    std::uint64_t watch(const Threads& threads, const Params& params, const RunClock& clock) {
        const auto interval =
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(params.interval));
        auto report_at = Clock::now() + interval;
        while (!stop_.load()) {
            if (const auto message = control_.look()) {
                const auto end = message->find("sent");
                if (end == message->end() || !end->is_number_unsigned())
                    throw Failure(kVersion, "a message that makes no sense during a run");
                return end->get<std::uint64_t>();
            }
            if (threads.failed()) return 0;
            if (params.interval > 0 && Clock::now() >= report_at) {
                report_at += interval;
                control_.send({{"progress",
                                {{"received", threads.received()},
                                 {"bytes", threads.bytes()},
                                 {"seconds", static_cast<double>(clock.now()) / 1e9}}}});
            }
            std::this_thread::sleep_for(kControlLook);
        }
        throw Failure(kPeerEnded, "the server was told to end");
    }

    // Until everything has arrived that will.
    void drain(const Threads& threads, std::uint64_t sent, std::chrono::duration<double> quiet) const {
        auto moved = Clock::now();
        for (std::uint64_t before = threads.received();
             before < sent && !threads.failed() && !stop_.load();) {
            std::this_thread::sleep_for(kControlLook / 4);
            const std::uint64_t now = threads.received();
            if (now != before) moved = Clock::now();
            if (Clock::now() - moved > quiet) return;
            before = now;
        }
    }

    static nlohmann::json report(const Drained& d, ServerSession& session) {
        return {{"received", d.received},       {"bytes", d.bytes},       {"duplicates", d.duplicates},
                {"reordered", d.reordered},     {"corrupt", d.corrupt},   {"foreign", d.foreign},
                {"unanswered", d.unanswered},   {"seconds", d.seconds()}, {"received_per_s", d.rate()},
                {"transport", session.report()}};
    }

    const ServerOptions& options_;
    const std::string local_, peer_;
    Control control_;
    const std::atomic<bool>& stop_;
};

struct Serving {
    std::thread thread;
    std::atomic<bool> done{false};
};

}  // namespace

void serve(const ServerOptions& options, const std::atomic<bool>& stop) {
    check_cpus(options.cpus, "--cpus");
    const tools::Fd listener =
        listen_on(make_address(options.bind.empty() ? "0.0.0.0" : options.bind, options.port), 64);
    log(options, fmt::format("vma_perf {} listens on port {}, sockets by {}", VMA_VERSION,
                             port_of(local_address(listener.get())), socket_stack()));
    std::list<Serving> clients;
    unsigned seen = 0;
    while (!stop.load() && (options.clients == 0 || seen < options.clients)) {
        tools::Fd fd = accept_one(listener.get(), Clock::now() + 1s, &stop);
        clients.remove_if([](Serving& c) {
            if (!c.done.load()) return false;
            c.thread.join();
            return true;
        });
        if (!fd) continue;
        ++seen;
        Serving& serving = clients.emplace_back();
        serving.thread = std::thread([&options, &stop, &serving, fd = std::move(fd)]() mutable {
            try {
                const sockaddr_in peer = peer_address(fd.get());
                ServedClient(options, std::move(fd), fmt::format("{}:{}", ip_text(peer), port_of(peer)), stop)
                    .serve();
            } catch (const std::exception& error) {  // it was gone before it was looked at
                log(options, error.what());
            }
            serving.done = true;
        });
    }
    for (Serving& c : clients) c.thread.join();
}

}  // namespace vma_perf
