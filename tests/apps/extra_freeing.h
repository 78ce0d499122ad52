// SPDX-License-Identifier: BSD-2-Clause
// Packets that one thread keeps and two others give back in random order.
#pragma once

#include <sched.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "extra_api.h"

namespace extra {

template <class Kept>
class FreedByTwo {
  public:
    // `give_back` runs in both threads. Until finish(), `least` packets stay; keep() waits at `most`.
    FreedByTwo(std::size_t least, std::size_t most, std::function<void(Kept&)> give_back)
        : least_(least),
          most_(most),
          give_back_(std::move(give_back)),
          one_([this] { run(1); }),
          two_([this] { run(2); }) {}

    void keep(const Kept& packet) {
        while (!added(packet)) sched_yield();
        held_++;
    }

    // Gives everything back; the number of packets that were kept.
    long finish() {
        over_ = true;
        one_.join();
        two_.join();
        CHECK(freed_ == held_);
        return held_;
    }

    long held() const { return held_; }

  private:
    bool added(const Kept& packet) {
        const std::lock_guard guard(lock_);
        if (kept_.size() >= most_) return false;
        kept_.push_back(packet);
        return true;
    }

    bool taken(std::mt19937& random, Kept& packet) {
        const std::lock_guard guard(lock_);
        if (kept_.size() <= (over_ ? 0 : least_)) return false;
        std::swap(kept_[random() % kept_.size()], kept_.back());
        packet = kept_.back();
        kept_.pop_back();
        return true;
    }

    void run(unsigned seed) {
        std::mt19937 random(seed);
        for (;;) {
            const bool last = over_;
            Kept packet;
            if (taken(random, packet)) {
                give_back_(packet);
                freed_++;
            } else if (last) {
                return;
            } else {
                sched_yield();
            }
        }
    }

    const std::size_t least_, most_;
    const std::function<void(Kept&)> give_back_;
    std::mutex lock_;
    std::vector<Kept> kept_;
    std::atomic<bool> over_{false};
    std::atomic<long> freed_{0};
    long held_ = 0;
    std::thread one_, two_;  // last: they use all the others
};

// Asks the peer for a datagram and for a piece of the stream in turn, 8,000 in all. `receive(fd, wanted)`
// keeps one packet and returns its bytes; `wanted` is the content of a datagram, and nothing for a stream.
template <class Receive>
void receive_in_turn(int datagrams, int stream, Receive&& receive) {
    for (std::uint32_t i = 0; i < 8000; i++) {
        const bool datagram = i % 2 == 0;
        const int from = datagram ? datagrams : stream;
        const std::size_t length = 1 + i % 1400;
        request(from, length, i);
        const std::string wanted_bytes = datagram ? made(length, i) : std::string();
        for (std::size_t got = 0; got < length;) got += receive(from, wanted_bytes);
    }
}

}  // namespace extra
