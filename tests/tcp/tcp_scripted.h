// SPDX-License-Identifier: BSD-2-Clause
// A Connection whose peer says exactly what a test tells it to.
#pragma once

#include <random>

#include "libvma/tcp/lwip/memory.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {

using Random = std::mt19937;
inline std::uint32_t below(Random& random, std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random);
}

// Bytes of lwIP's blocks in use.
inline std::int64_t memory_used() { return static_cast<std::int64_t>(lwip::memory_use().used); }

// A Connection of ours on host a, and a scripted peer on host b.
struct Scripted {
    explicit Scripted(verbs::wire::WireConfig config = {}) : w(1, config) {}

    World w;
    Peer peer{w, *w.b, kTheirs, *w.a, kMine};
    Connection* c = nullptr;

    void start() {
        c = Connection::create(*w.a, {{w.a->address, htons(kMine)}, {w.b->address, htons(kTheirs)}},
                               w.options);
        w.opened.push_back(c);
        ASSERT_EQ(c->connect(), 0);
    }
    void establish(const std::string& options = option::mss(1460) + option::sack_allowed() +
                                                option::scale(7) + option::stamps(100, 0)) {
        ASSERT_NO_FATAL_FAILURE(start());
        ASSERT_NO_FATAL_FAILURE(peer.answer(options));
        ASSERT_EQ(c->state(), State::established);
    }
    // Still in order? Data goes through both ways.
    void expect_alive() {
        ASSERT_EQ(c->state(), State::established);
        (void)peer.hear();
        ASSERT_EQ(send(c, "ping"), 4);
        auto heard = peer.hear();
        ASSERT_FALSE(heard.empty());
        EXPECT_EQ(heard.back().payload, "ping");
        peer.stamp++;
        peer.say(kAck | kPsh, "pong");
        EXPECT_EQ(receive(c), "pong");
    }
};

}  // namespace vma::tcp::test
