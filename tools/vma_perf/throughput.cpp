// SPDX-License-Identifier: BSD-2-Clause
// One way: messages without answers; see load.h. The server reports what arrived.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "tools/vma_perf/load.h"

namespace vma_perf {
namespace {

// The clock is looked at for so many nanoseconds' worth of messages: a look costs a tenth of a small message.
constexpr double kLookNs = 20'000;
constexpr unsigned kLookAtMost = 64;
constexpr std::int64_t kSpinNs = 200'000;  // before something is due we do not sleep

class Throughput final : public Load {
  public:
    Throughput(Lane& lane, const Params& params, const Work& work)
        : Load(lane, params, work), next_(lane.connections()) {}
    std::vector<std::uint64_t> sent() const override { return next_; }

  private:
    Span part() override {
        std::fill(next_.begin(), next_.end(), 0);
        const std::int64_t begin = now_;
        unsigned turn = 0;
        double count = 0, look_at = 1;
        while (left_ > 0 && !stopped()) {
            if (schedule_.active()) {
                sleep_until(std::min(schedule_.due(), end_));
                schedule_.next();
            }
            if (now_ >= end_) break;
            const auto burst = static_cast<unsigned>(std::min<std::uint64_t>(params_.burst, left_));
            for (unsigned i = 0; i < burst; ++i)
                if (!send_one(turn, i + 1 < burst)) return {begin, now_};
            count_down(burst);
            turn = turn + 1 == next_.size() ? 0 : turn + 1;
            count += burst;
            if (count < look_at && !schedule_.active()) continue;
            const std::int64_t before = now_;
            now_ = now();
            look_at =
                std::clamp(kLookNs * count / static_cast<double>(std::max<std::int64_t>(now_ - before, 1)),
                           1.0, static_cast<double>(kLookAtMost));
            count = 0;
        }
        lane_.receive(*this, false);  // starts what the transport has collected
        now_ = now();
        return {begin, now_};
    }

    // Tries until it is sent. False: the run was stopped.
    bool send_one(unsigned connection, bool more) {
        const std::uint32_t size = writer_.size();
        bool tried = false;
        while (true) {
            if (std::byte* const to = lane_.prepare(connection); to != nullptr) {
                writer_.write(to, size, connection, next_[connection], recorder_ == nullptr);
                if (lane_.send(connection, size, more)) break;
            }
            now_ = now();
            if (stopped()) return false;
            if (!tried) moved_ = now_;
            tried = true;
            if (now_ - moved_ > static_cast<std::int64_t>(params_.timeout * 1e9))
                throw Failure(kPeerEnded, fmt::format("stalled: no message could be sent for {:g} seconds",
                                                      params_.timeout));
            lane_.receive(*this, false);
        }
        ++next_[connection];
        if (recorder_ != nullptr) recorder_->sent(size);
        return true;
    }

    void sleep_until(std::int64_t due) {
        for (now_ = now(); now_ < due && !stopped(); now_ = now()) {
            const std::int64_t left = std::min(due - now_ - kSpinNs, std::chrono::nanoseconds(kTick).count());
            if (left <= 0) continue;
            const timespec pause{0, static_cast<long>(left)};
            nanosleep(&pause, nullptr);
        }
    }

    void take(const Arrival&) override {}  // nothing is answered

    std::vector<std::uint64_t> next_;  // number of the next message of each connection
    std::int64_t moved_ = 0;           // when a send that did not work was tried first
};

}  // namespace

std::unique_ptr<Load> make_throughput(Lane& lane, const Params& params, const Work& work) {
    return std::make_unique<Throughput>(lane, params, work);
}

}  // namespace vma_perf
