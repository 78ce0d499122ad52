// SPDX-License-Identifier: BSD-2-Clause
// Requests and their answers; see load.h.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "tools/vma_perf/load.h"

namespace vma_perf {
namespace {

constexpr std::int64_t kTickNs = std::chrono::nanoseconds(kTick).count();
constexpr std::uint64_t kMostInFlight = 65536;  // of a thread that has a schedule and no window

class PingPong final : public Load {
  public:
    PingPong(Lane& lane, const Params& params, const Work& work)
        : Load(lane, params, work),
          lost_after_ns_(static_cast<std::int64_t>(params.lost_after * 1e9)),
          timeout_ns_(static_cast<std::int64_t>(params.timeout * 1e9)) {
        window_ = params.window != 0 ? params.window
                  : params.rate > 0
                      ? std::max<std::uint64_t>(kMostInFlight / lane.connections(), params.burst)
                      : params.burst;
        connections_.resize(lane.connections());
        for (Connection& c : connections_)
            c.requests.resize(std::bit_ceil(std::max<std::uint64_t>(2 * window_, 64)));
    }

    std::vector<std::uint64_t> sent() const override {
        std::vector<std::uint64_t> result;
        for (const Connection& c : connections_) result.push_back(c.next);
        return result;
    }

  private:
    // A request that was sent; its place is its number modulo the number of places.
    struct Request {
        enum class State : std::uint8_t { answered, waiting, lost } state = State::answered;
        std::uint32_t size = 0;
        std::uint64_t sequence = 0;
        std::int64_t due = 0, sent = 0;
    };
    struct Connection {
        std::vector<Request> requests;
        std::uint64_t next = 0;    // number of the next request
        std::uint64_t oldest = 0;  // no request before this one is waiting
        std::uint64_t in_flight = 0;
        std::uint64_t answered = 0;  // one past the highest number answered
        unsigned partial = 0;        // requests of the current burst that were sent before there was no room
        Request& request(std::uint64_t sequence) noexcept {
            return requests[sequence & (requests.size() - 1)];
        }
    };

    Span part() override {
        for (Connection& c : connections_) c.next = c.oldest = c.in_flight = c.answered = c.partial = 0;
        in_flight_ = 0;
        heard_ = looked_ = now_;
        lost_since_ = false;
        Span span{now_, now_};
        while (now_ < end_ && left_ > 0 && !stopped()) {
            if (schedule_.active())
                send_due();
            else
                fill_windows();
            listen(schedule_.active() ? schedule_.due() : end_);
        }
        span.end = now_;
        // What is under way may still come.
        while (in_flight_ > 0 && !stopped()) {
            listen(INT64_MAX);
            if (!lost_since_) span.end = std::max(span.end, heard_);
        }
        return span;
    }

    // Receives; waits when nothing else is to be done before `until`.
    void listen(std::int64_t until) {
        const bool may_wait = in_flight_ > 0 && (!schedule_.active() || until - now_ > 2 * kTickNs);
        if (lane_.receive(*this, may_wait) == 0) now_ = now();
        if (in_flight_ == 0 && !lost_since_) {
            heard_ = now_;
            return;
        }
        if (!work_.reliable && now_ - looked_ > lost_after_ns_ / 8) give_up_lost();
        if (now_ - heard_ > timeout_ns_)
            throw Failure(kPeerEnded, fmt::format("no answer for {:g} seconds", params_.timeout));
    }

    void fill_windows() {
        for (unsigned i = 0; i < connections_.size(); ++i)
            while (left_ > 0 && connections_[i].in_flight + params_.burst <= window_)
                if (!send_burst(i, -1)) break;
    }

    void send_due() {
        while (left_ > 0 && schedule_.due() <= now_) {
            // Connections take turns. When the window of the next one is full, the schedule waits, and the
            // latency shows the wait.
            if (connections_[turn_].in_flight + params_.burst > window_ ||
                !send_burst(turn_, schedule_.due()))
                return;
            turn_ = (turn_ + 1) % static_cast<unsigned>(connections_.size());
            schedule_.next();
        }
    }

    // `due`: -1: now. False: not a single one could be sent.
    bool send_burst(unsigned number, std::int64_t due) {
        Connection& c = connections_[number];
        const auto count = std::min<std::uint64_t>(params_.burst - c.partial, left_);
        for (std::uint64_t i = 0; i < count; ++i) {
            Request& request = c.request(c.next);
            // With answers out of order an old request may be in the way of a new one.
            if (request.state == Request::State::waiting) return false;
            std::byte* const to = lane_.prepare(number);
            if (to == nullptr) return stopped_in_burst(c, i);
            const std::uint32_t size = writer_.size();
            writer_.write(to, size, number, c.next, recorder_ == nullptr);
            // Before it is sent: the answer may come out of send() on a transport that polls there.
            const std::int64_t sent = now();
            const Request before =
                std::exchange(request, {Request::State::waiting, size, c.next, due < 0 ? sent : due, sent});
            if (!lane_.send(number, size, i + 1 < count)) {
                request = before;
                return stopped_in_burst(c, i);
            }
            now_ = sent;
            if (in_flight_ == 0 && !lost_since_) heard_ = sent;
            ++c.next, ++c.in_flight, ++in_flight_;
            count_down(1);
            if (recorder_ != nullptr) recorder_->sent(size);
        }
        c.partial = 0;
        return true;
    }
    // The rest of the burst is sent when there is room again.
    static bool stopped_in_burst(Connection& c, std::uint64_t sent) noexcept {
        c.partial += static_cast<unsigned>(sent);
        return false;
    }

    void take(const Arrival& arrival) override {
        now_ = now();
        const Header header = read_header(arrival.message.data());
        if (!writer_.ours(header, arrival.message.size(), arrival.connection, recorder_ == nullptr)) return;
        Connection& c = connections_[arrival.connection];
        Request& request = c.request(header.sequence);
        if (header.sequence >= c.next || request.sequence != header.sequence ||
            request.state == Request::State::answered) {
            if (recorder_ != nullptr) recorder_->duplicate();
            return;
        }
        heard_ = now_;
        lost_since_ = false;
        if (request.state == Request::State::lost) {
            if (recorder_ != nullptr) recorder_->late();
            request.state = Request::State::answered;
            return;
        }
        request.state = Request::State::answered;
        --c.in_flight, --in_flight_;
        if (recorder_ == nullptr) return;
        recorder_->received(arrival.message.size());
        recorder_->round_trip(
            {header.sequence, header.connection, header.length, request.due, request.sent, now_});
        if (header.sequence < c.answered)
            recorder_->reordered();
        else
            c.answered = header.sequence + 1;
        if (params_.verify && !has_pattern(arrival.message)) recorder_->corrupt();
    }

    void give_up_lost() {
        looked_ = now_;
        for (Connection& c : connections_) {
            for (; c.oldest < c.next; ++c.oldest) {
                Request& request = c.request(c.oldest);
                if (request.sequence != c.oldest || request.state != Request::State::waiting) continue;
                if (now_ - request.sent < lost_after_ns_) break;
                request.state = Request::State::lost;
                lost_since_ = true;
                --c.in_flight, --in_flight_;
                if (recorder_ != nullptr) recorder_->lost();
            }
        }
    }

    const std::int64_t lost_after_ns_, timeout_ns_;
    std::uint64_t window_;
    std::vector<Connection> connections_;
    std::uint64_t in_flight_ = 0;
    unsigned turn_ = 0;        // connection whose burst is due
    std::int64_t heard_ = 0;   // when an answer came, or none was missing
    bool lost_since_ = false;  // requests were lost since the last answer
    std::int64_t looked_ = 0;  // for lost ones
};

}  // namespace

std::unique_ptr<Load> make_pingpong(Lane& lane, const Params& params, const Work& work) {
    return std::make_unique<PingPong>(lane, params, work);
}

}  // namespace vma_perf
