// SPDX-License-Identifier: BSD-2-Clause
// Which of the threads that sleep on a ring watches its channel, and that one always does.
#include "libvma/sockets/ring_watch.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/ring/ring_hosts.h"

namespace {

using namespace vma::ring::ring_hosts;
using vma::sockets::RingWatch;
using vma::sockets::Waiter;

struct RingWatchTest : testing::Test {
    RingWatchTest() : host(wire, "198.18.0.1"), ring(host.ring.get()) {}
    // What ppoll() would be told now: how many channels.
    unsigned watched(RingWatch& watch) { return watch.arm(channels); }
    static short wakened(Waiter* waiter) {
        pollfd p{waiter->fd(), POLLIN, 0};
        return poll(&p, 1, 0) == 1 ? p.revents : short{0};
    }
    Wire wire;
    Host host;
    vma::ring::Ring* ring;
    pollfd channels[RingWatch::kMost];
};

// Another thread's waiter, which stays its own until the end.
class OtherThread {
  public:
    OtherThread() {
        thread_ = std::thread([this] {
            waiter_.store(Waiter::mine());
            waiter_.notify_all();
            end_.wait(false);
        });
        waiter_.wait(nullptr);
    }
    ~OtherThread() {
        end_.store(true);
        end_.notify_all();
        thread_.join();
    }
    Waiter* waiter() { return waiter_.load(); }

  private:
    std::atomic<Waiter*> waiter_{nullptr};
    std::atomic<bool> end_{false};
    std::thread thread_;
};

TEST_F(RingWatchTest, WhoIsAloneWatchesAndGoesBackToPoll) {
    RingWatch alone(Waiter::mine(), &ring, 1);
    EXPECT_EQ(watched(alone), 1u);
    EXPECT_FALSE(alone.sleeps_on(0));
}

TEST_F(RingWatchTest, WhoHasNoWaiterWatches) {
    RingWatch first(Waiter::mine(), &ring, 1), second(nullptr, &ring, 1);
    EXPECT_EQ(watched(second), 1u);
    EXPECT_FALSE(second.sleeps_on(0));
}

TEST_F(RingWatchTest, OneWatchesAndTheNextIsAppointed) {
    OtherThread second, third;
    auto leader = std::make_unique<RingWatch>(Waiter::mine(), &ring, 1);
    auto follower = std::make_unique<RingWatch>(second.waiter(), &ring, 1);
    auto last = std::make_unique<RingWatch>(third.waiter(), &ring, 1);
    EXPECT_EQ(watched(*leader), 1u);
    EXPECT_EQ(watched(*follower), 0u);
    EXPECT_EQ(watched(*last), 0u);
    EXPECT_TRUE(leader->sleeps_on(0)) << "frames of others";
    follower.reset();  // who only followed leaves nothing behind
    EXPECT_EQ(wakened(third.waiter()), 0);
    leader.reset();
    EXPECT_EQ(watched(*last), 1u);
    EXPECT_EQ(wakened(third.waiter()), POLLIN);
    EXPECT_TRUE(last->sleeps_on(POLLIN)) << "an appointment alone";
    EXPECT_EQ(wakened(third.waiter()), 0);
}

// Both at once: the signal counts.
TEST_F(RingWatchTest, ASignalIsNotTakenForAnAppointment) {
    OtherThread second;
    auto leader = std::make_unique<RingWatch>(Waiter::mine(), &ring, 1);
    RingWatch follower(second.waiter(), &ring, 1);
    second.waiter()->clear();
    second.waiter()->signal();
    leader.reset();
    EXPECT_EQ(watched(follower), 1u);
    EXPECT_FALSE(follower.sleeps_on(POLLIN));
}

// Whoever leaves, in whatever order: as long as somebody sleeps, the channel is watched by exactly one in the
// end.
TEST_F(RingWatchTest, ThreadsComeAndGo) {
    constexpr int kThreads = 8, kSleeps = 500;
    std::atomic<int> inside{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            Waiter* waiter = Waiter::mine();
            for (int i = 0; i < kSleeps; i++) {
                waiter->clear();
                RingWatch watch(waiter, &ring, 1);
                inside.fetch_add(1);
                pollfd fds[1 + RingWatch::kMost] = {{waiter->fd(), POLLIN, 0}};
                const unsigned n = watch.arm(fds + 1);
                ASSERT_LE(n, 1u);
                poll(fds, n + 1, (t + i) % 7 == 0 ? 1 : 0);
                (void)watch.sleeps_on(fds[0].revents);
                inside.fetch_sub(1);
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(inside.load(), 0);
    RingWatch next(Waiter::mine(), &ring, 1);
    EXPECT_EQ(watched(next), 1u) << "nobody who has gone is the leader";
}

}  // namespace
