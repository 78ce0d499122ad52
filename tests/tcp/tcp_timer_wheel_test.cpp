// SPDX-License-Identifier: BSD-2-Clause
// The timing wheel against a clock made of numbers, against a naive model, and with threads. No test measures
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "libvma/tcp/timers/timer_wheel.h"

namespace {

using vma::tcp::Nsec;
using vma::tcp::Time;
using vma::tcp::Timer;
using vma::tcp::TimerWheel;

constexpr Nsec kMs{1'000'000}, kHour = 3'600'000 * kMs;
constexpr Time kStart{10'000'000 * kMs};  // a clock is not at 0 when a connection begins

struct Probe {
    Timer timer{&Probe::fire};
    int id = 0;
    int fired = 0;
    void (*then)(Probe&) = nullptr;
    TimerWheel* wheel = nullptr;
    std::vector<int>* order = nullptr;

    static void fire(Timer& timer) {
        Probe& probe = *reinterpret_cast<Probe*>(&timer);
        probe.fired++;
        if (probe.order != nullptr) probe.order->push_back(probe.id);
        if (probe.then != nullptr) probe.then(probe);
    }
};
static_assert(offsetof(Probe, timer) == 0);

// A wheel that counts how often it wakes its sleeper.
struct CountedWheel {
    int wakes = 0;
    TimerWheel wheel{[](void* count) { ++*static_cast<int*>(count); }, &wakes};
};

TEST(TcpTimerWheel, FiresAtTheMillisecondNotBefore) {
    TimerWheel wheel;
    Probe probe;
    wheel.expire(kStart);
    wheel.arm(probe.timer, kStart + 5 * kMs + Nsec(1));
    EXPECT_TRUE(probe.timer.armed());
    EXPECT_EQ(wheel.expire(kStart + 5 * kMs), 0u);
    EXPECT_EQ(wheel.expire(kStart + 5 * kMs + Nsec(1)), 0u) << "rounded up, never early";
    EXPECT_EQ(wheel.expire(kStart + 6 * kMs), 1u);
    EXPECT_FALSE(probe.timer.armed());
    EXPECT_EQ(wheel.expire(kStart + kHour), 0u);
    EXPECT_EQ(probe.fired, 1);
}

TEST(TcpTimerWheel, EveryDistanceUpToDays) {
    for (std::uint64_t distance = 1; distance < 10 * 24 * kHour / kMs; distance = distance * 3 / 2 + 1) {
        TimerWheel wheel;
        Probe probe;
        wheel.expire(kStart + distance * kMs / 7);
        const Time base =
            std::chrono::floor<std::chrono::duration<std::uint64_t, std::milli>>(kStart + distance * kMs / 7);
        wheel.arm(probe.timer, base + distance * kMs);
        EXPECT_EQ(wheel.expire(base + (distance - 1) * kMs), 0u) << distance;
        EXPECT_EQ(wheel.expire(base + distance * kMs), 1u) << distance;
    }
}

TEST(TcpTimerWheel, SleeperFindsADistantDeadlineInFewSteps) {
    TimerWheel wheel;
    Probe probe;
    wheel.expire(kStart);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
    wheel.arm(probe.timer, kStart + 2 * kHour);
    Time now = kStart;
    int looks = 0;
    while (probe.fired == 0) {
        const Time next = wheel.next_deadline();
        ASSERT_NE(next, TimerWheel::kNever);
        ASSERT_GT(next, now);
        ASSERT_LE(next, kStart + 2 * kHour);
        now = next;
        wheel.expire(now);
        looks++;
    }
    EXPECT_EQ(now, kStart + 2 * kHour);
    EXPECT_LE(looks, 7) << "one look for each level";
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
}

TEST(TcpTimerWheel, MovesLaterAndEarlier) {
    TimerWheel wheel;
    Probe probe;
    wheel.expire(kStart);
    wheel.arm(probe.timer, kStart + 10 * kMs);
    wheel.arm(probe.timer, kStart + 300 * kMs);
    EXPECT_EQ(wheel.expire(kStart + 299 * kMs), 0u);
    wheel.arm(probe.timer, kStart + 5000 * kMs);
    wheel.arm(probe.timer, kStart + 301 * kMs);
    EXPECT_EQ(wheel.expire(kStart + 301 * kMs), 1u);
    // By more than the lag that the word holds.
    wheel.arm(probe.timer, kStart + 302 * kMs);
    wheel.arm(probe.timer, kStart + 2 * kHour);
    EXPECT_EQ(wheel.expire(kStart + 2 * kHour - kMs), 0u);
    EXPECT_EQ(wheel.expire(kStart + 2 * kHour), 1u);
}

TEST(TcpTimerWheel, MovingLaterWhileLinkedNeitherWakesNorRelinks) {
    CountedWheel counted;
    auto& [wakes, wheel] = counted;
    Probe probe;
    wheel.expire(kStart);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
    wheel.arm(probe.timer, kStart + 200 * kMs);
    EXPECT_EQ(wakes, 1);
    const Time look = wheel.next_deadline();
    for (std::uint64_t i = 1; i <= 100; i++) {
        wheel.arm(probe.timer, kStart + (200 + i) * kMs);
        wheel.disarm(probe.timer);
        wheel.arm(probe.timer, kStart + (200 + i) * kMs);
    }
    EXPECT_EQ(wakes, 1);
    EXPECT_GE(wheel.next_deadline(), look);
    EXPECT_EQ(wheel.expire(kStart + 299 * kMs), 0u);
    EXPECT_EQ(wheel.expire(kStart + 300 * kMs), 1u);
}

TEST(TcpTimerWheel, WakesOnlyForEarlierThanTheSleeperWaitsFor) {
    CountedWheel counted;
    auto& [wakes, wheel] = counted;
    Probe a, b, c, d;
    wheel.expire(kStart);
    wheel.arm(a.timer, kStart + 50 * kMs);
    EXPECT_EQ(wakes, 0) << "nobody sleeps yet";
    wheel.next_deadline();
    wheel.arm(b.timer, kStart + 80 * kMs);
    EXPECT_EQ(wakes, 0);
    wheel.arm(c.timer, kStart + 1 * kMs);
    EXPECT_EQ(wakes, 1);
    wheel.arm(d.timer, kStart + 2 * kMs);
    EXPECT_EQ(wakes, 1) << "woken already";
    for (Probe* probe : {&a, &b, &c, &d}) wheel.cancel(probe->timer);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
}

TEST(TcpTimerWheel, DisarmedAndCancelledDoNotFire) {
    TimerWheel wheel;
    Probe a, b, c;
    wheel.expire(kStart);
    wheel.arm(a.timer, kStart + 10 * kMs);
    wheel.arm(b.timer, kStart + 10 * kMs);
    wheel.arm(c.timer, kStart + 10 * kMs);
    wheel.disarm(a.timer);
    EXPECT_FALSE(a.timer.armed());
    wheel.cancel(b.timer);
    wheel.cancel(b.timer);
    EXPECT_EQ(wheel.expire(kStart + 20 * kMs), 1u);
    EXPECT_EQ(a.fired + b.fired, 0);
    EXPECT_EQ(c.fired, 1);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever) << "a disarmed timer costs one look";
    wheel.disarm(a.timer);
    wheel.arm(a.timer, kStart + 25 * kMs);
    EXPECT_EQ(wheel.expire(kStart + 25 * kMs), 1u);
}

TEST(TcpTimerWheel, NobodyWakesForWhatIsDisarmedOrMoved) {
    CountedWheel counted;
    auto& [wakes, wheel] = counted;
    Probe a, b, c;
    wheel.expire(kStart);
    wheel.arm(a.timer, kStart + 1 * kMs);
    wheel.arm(b.timer, kStart + 2 * kMs);
    wheel.arm(c.timer, kStart + 2 * kMs);
    wheel.disarm(a.timer);
    wheel.disarm(b.timer);
    wheel.arm(c.timer, kStart + 7 * kMs);
    EXPECT_EQ(wheel.next_deadline(), kStart + 7 * kMs);
    EXPECT_EQ(wakes, 0);
    wheel.arm(a.timer, kStart + 5 * kMs);
    EXPECT_EQ(wakes, 1);
    EXPECT_EQ(wheel.next_deadline(), kStart + 5 * kMs);
    EXPECT_EQ(wheel.expire(kStart + 7 * kMs), 2u);
    EXPECT_EQ(a.fired + c.fired, 2);
    wheel.arm(b.timer, kStart + 9 * kMs);
    wheel.disarm(b.timer);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
}

// A callback may ask how long to sleep: what else is due in its millisecond fires none the less.
TEST(TcpTimerWheel, ACallbackThatAsksLosesNoTimer) {
    TimerWheel wheel;
    Probe asks, disarmed, due;
    asks.wheel = &wheel;
    asks.then = [](Probe& probe) { probe.wheel->next_deadline(); };
    wheel.expire(kStart);
    for (Probe* probe : {&asks, &disarmed, &due}) wheel.arm(probe->timer, kStart + 3 * kMs);
    wheel.disarm(disarmed.timer);
    EXPECT_EQ(wheel.expire(kStart + 3 * kMs), 2u);
    EXPECT_EQ(due.fired, 1);
    EXPECT_EQ(disarmed.fired, 0);
}

TEST(TcpTimerWheel, PastDeadlineFiresInTheNextExpire) {
    TimerWheel wheel;
    Probe probe;
    wheel.expire(kStart);
    wheel.arm(probe.timer, kStart - 500 * kMs);
    EXPECT_EQ(wheel.expire(kStart + kMs), 1u);
    wheel.arm(probe.timer, Time());
    EXPECT_EQ(wheel.expire(kStart + 2 * kMs), 1u);
}

TEST(TcpTimerWheel, DeadlineBeyondEverythingDoesNotWrap) {
    TimerWheel wheel;
    Probe probe;
    wheel.expire(kStart);
    wheel.arm(probe.timer, Time::max());
    EXPECT_EQ(wheel.expire(kStart + 1000 * kHour), 0u);
    wheel.arm(probe.timer, kStart + 1001 * kHour);
    EXPECT_EQ(wheel.expire(kStart + 1001 * kHour), 1u);
}

TEST(TcpTimerWheel, CallbackThatArmsForNowDoesNotHang) {
    TimerWheel wheel;
    Probe probe;
    probe.wheel = &wheel;
    probe.then = [](Probe& p) { p.wheel->arm(p.timer, Time(Nsec(1))); };
    wheel.expire(kStart);
    wheel.arm(probe.timer, kStart + kMs);
    EXPECT_EQ(wheel.expire(kStart + 1000 * kMs), 1u);
    EXPECT_EQ(wheel.expire(kStart + 1001 * kMs), 1u);
    wheel.cancel(probe.timer);
}

TEST(TcpTimerWheel, CallbackMayCancelItselfOthersAndFree) {
    static TimerWheel wheel;
    static Probe victim;
    static bool freed;
    struct Owner {
        Timer timer{[](Timer& timer) {
            wheel.cancel(victim.timer);
            wheel.cancel(timer);
            EXPECT_EQ(wheel.expire(kStart + kHour), 0u) << "from a callback";
            delete reinterpret_cast<Owner*>(&timer);
        }};
        ~Owner() { freed = true; }
    };
    wheel.expire(kStart);
    auto* owner = new Owner;
    wheel.arm(owner->timer, kStart + 3 * kMs);
    wheel.arm(victim.timer, kStart + 3 * kMs);
    EXPECT_EQ(wheel.expire(kStart + 3 * kMs), 1u);
    EXPECT_TRUE(freed);
    EXPECT_EQ(victim.fired, 0);
}

TEST(TcpTimerWheel, FiresInOrderOfMilliseconds) {
    TimerWheel wheel;
    std::vector<int> order;
    std::vector<std::unique_ptr<Probe>> probes;
    std::mt19937 random(7);
    wheel.expire(kStart);
    for (int i = 0; i < 2000; i++) {
        auto& probe = *probes.emplace_back(std::make_unique<Probe>());
        probe.id = static_cast<int>(random() % 10000) + 1;
        probe.order = &order;
        wheel.arm(probe.timer, kStart + static_cast<std::uint64_t>(probe.id) * kMs);
    }
    EXPECT_EQ(wheel.expire(kStart + 20000 * kMs), 2000u);
    EXPECT_TRUE(std::ranges::is_sorted(order));
}

// Random arming, moving, disarming and cancelling: after each expire() exactly those have fired that a list
// of deadlines says.
TEST(TcpTimerWheel, AgreesWithAListOfDeadlines) {
    for (unsigned seed = 0; seed < 20; seed++) {
        std::mt19937_64 random(seed);
        TimerWheel wheel;
        constexpr int kTimers = 60;
        std::vector<std::unique_ptr<Probe>> probes;
        std::vector<std::uint64_t> due(kTimers, 0);  // ms; 0: not armed
        std::vector<int> fired(kTimers, 0);
        for (int i = 0; i < kTimers; i++) probes.push_back(std::make_unique<Probe>());
        std::uint64_t now = kStart.time_since_epoch() / kMs + random() % 100'000;
        wheel.expire(Time(now * kMs));
        for (int step = 0; step < 4000; step++) {
            const std::size_t i = random() % kTimers;
            switch (random() % 6) {
                case 0:
                case 1: {
                    const std::uint64_t reach = std::uint64_t{1} << random() % 26;
                    due[i] = now + 1 + random() % reach;
                    wheel.arm(probes[i]->timer, Time(due[i] * kMs));
                    break;
                }
                case 2:
                    wheel.disarm(probes[i]->timer);
                    due[i] = 0;
                    break;
                case 3:
                    wheel.cancel(probes[i]->timer);
                    due[i] = 0;
                    break;
                case 4: {  // as the sleeper does
                    const Time next = wheel.next_deadline();
                    for (const std::uint64_t when : due) {
                        if (when != 0) {
                            ASSERT_LE(next, Time(when * kMs)) << "would be slept through";
                        }
                    }
                    if (next != TimerWheel::kNever && next.time_since_epoch() / kMs - now < 100'000)
                        now = std::max<std::uint64_t>(now, next.time_since_epoch() / kMs);
                    break;
                }
                default:
                    now += random() % (std::uint64_t{1} << random() % 18);
            }
            wheel.expire(Time(now * kMs + Nsec(random() % kMs.count())));
            for (int t = 0; t < kTimers; t++) {
                if (due[t] != 0 && due[t] <= now) {
                    due[t] = 0;
                    fired[t]++;
                }
                ASSERT_EQ(probes[t]->fired, fired[t]) << "seed " << seed << " step " << step;
                ASSERT_EQ(probes[t]->timer.armed(), due[t] != 0);
            }
        }
        for (auto& probe : probes) wheel.cancel(probe->timer);
        EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
    }
}

TEST(TcpTimerWheel, ForkedChildStartsEmpty) {
    TimerWheel wheel;
    Probe probe;
    wheel.arm(probe.timer, kStart);
    wheel.reset_in_child();
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
    EXPECT_EQ(wheel.expire(kStart + kHour), 0u);
    new (&probe) Probe;
    wheel.arm(probe.timer, kStart + 2 * kHour);
    EXPECT_EQ(wheel.expire(kStart + 2 * kHour), 1u);
}

// Threads arm, move, disarm, cancel and free while one expires. What is freed must not fire afterwards: the
// sanitizers see it, and so does the counter that lies beside the timer.
TEST(TcpTimerWheel, ThreadsArmCancelAndFree) {
    struct Connection {
        Timer timer{[](Timer& timer) {
            auto& self = *reinterpret_cast<Connection*>(&timer);
            EXPECT_TRUE(self.alive.load(std::memory_order_relaxed));
            self.plain++;
            self.fires.fetch_add(1, std::memory_order_relaxed);
        }};
        std::atomic<bool> alive{true};
        int plain = 0;  // written in the callback, read after cancel(): ordered by cancel() alone
        std::atomic<int> fires{0};
    };
    TimerWheel wheel;
    std::atomic<Time> now{kStart};  // written by one thread
    std::atomic<bool> stop{false};
    std::atomic<long> total{0};
    wheel.expire(kStart);
    std::thread clock([&] {
        while (!stop.load()) {
            now = now.load() + kMs / 4;
            wheel.expire(now.load());
            wheel.next_deadline();
        }
    });
    std::vector<std::thread> users;
    for (unsigned u = 0; u < 3; u++)
        users.emplace_back([&, u] {
            std::mt19937 random(u);
            for (int round = 0; round < 400; round++) {
                auto connection = std::make_unique<Connection>();
                for (int i = 0; i < 20; i++) {
                    wheel.arm(connection->timer, now.load() + random() % 8 * kMs);
                    if (random() % 3 == 0) wheel.disarm(connection->timer);
                    if (random() % 16 == 0) std::this_thread::yield();
                }
                wheel.cancel(connection->timer);
                EXPECT_EQ(connection->plain, connection->fires.load(std::memory_order_relaxed));
                total += connection->plain;
                connection->alive = false;
            }
        });
    // One timer armed by several threads at once never gets lost.
    Connection shared;
    for (unsigned u = 0; u < 2; u++)
        users.emplace_back([&] {
            for (int i = 0; i < 3000; i++)
                wheel.arm(shared.timer, now.load() + static_cast<std::uint64_t>(i % 5) * kMs);
        });
    for (auto& user : users) user.join();
    const int before = shared.fires.load();
    wheel.arm(shared.timer, now.load() + 2 * kMs);
    while (shared.fires.load() == before) std::this_thread::yield();
    stop = true;
    clock.join();
    wheel.cancel(shared.timer);
    EXPECT_EQ(wheel.next_deadline(), TimerWheel::kNever);
    EXPECT_GT(total.load() + shared.plain, 0);
}

}  // namespace
