// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/lock.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace {

using vma::Lock;

using vma::LockMode;

std::string mode_name(LockMode mode) {
    constexpr const char* kNames[] = {"single", "spin", "mutex", "yield"};
    return kNames[static_cast<int>(mode)];
}

// Each way of waiting (VMA_THREAD_MODE); the default afterwards.
class LockModes : public ::testing::TestWithParam<LockMode> {
  protected:
    void SetUp() override { Lock::set_mode(GetParam()); }
    void TearDown() override { Lock::set_mode(LockMode::spin); }
};
INSTANTIATE_TEST_SUITE_P(All, LockModes,
                         ::testing::Values(LockMode::single, LockMode::spin, LockMode::mutex,
                                           LockMode::yield),
                         [](const auto& info) { return mode_name(info.param); });

TEST_P(LockModes, KnowsItsOwner) {
    Lock lock;
    EXPECT_FALSE(lock.owned_by_me());
    lock.lock();
    EXPECT_TRUE(lock.owned_by_me());
    EXPECT_FALSE(lock.try_lock());
    std::thread([&] {
        EXPECT_FALSE(lock.owned_by_me());
        EXPECT_FALSE(lock.try_lock());
    }).join();
    lock.unlock();
    EXPECT_FALSE(lock.owned_by_me());
    EXPECT_TRUE(lock.try_lock());
    EXPECT_TRUE(lock.owned_by_me());
    lock.unlock();
}

TEST_P(LockModes, OwnedAfterWaiting) {
    Lock lock;
    lock.lock();
    std::thread waiter([&] {
        errno = 55;
        lock.lock();
        EXPECT_TRUE(lock.owned_by_me());
        EXPECT_EQ(errno, 55);
        lock.unlock();
    });
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // lets it reach the futex; either way is right
    lock.unlock();
    waiter.join();
    EXPECT_TRUE(lock.try_lock());
    lock.unlock();
}

TEST_P(LockModes, ExcludesUnderContention) {
    Lock lock;
    long counter = 0;
    constexpr int kThreads = 8, kRounds = 20000;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < kRounds; i++) {
                if (i % 3 == 0) {
                    while (!lock.try_lock()) std::this_thread::yield();
                } else {
                    lock.lock();
                }
                counter = counter + 1;
                lock.unlock();
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(counter, long{kThreads} * kRounds);
}

// The favourite thread of mode `single` against others, in the order that would let both in without a
// barrier.
TEST_P(LockModes, TheFirstThreadAndOthersExcludeEachOther) {
    Lock lock;
    std::atomic<bool> end{false};
    std::atomic<int> inside{0};
    bool together = false;
    std::atomic<long> others{0};
    std::thread other([&] {
        while (!end) {
            lock.lock();
            if (inside.fetch_add(1) != 0) together = true;
            others++;
            inside.fetch_sub(1);
            lock.unlock();
        }
    });
    // Beside busy programs each change of hands can take a time slice; then it is fewer of them.
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(4);
    for (int i = 0, rounds = 300'000; i < rounds || others < 100; i++) {
        if (i % 256 == 0 && std::chrono::steady_clock::now() > late) rounds = i;
        lock.lock();
        if (inside.fetch_add(1, std::memory_order_relaxed) != 0) together = true;
        inside.fetch_sub(1, std::memory_order_relaxed);
        lock.unlock();
    }
    end = true;
    other.join();
    EXPECT_FALSE(together);
}

// What a waiter does meanwhile: it uses its core in one mode, and sleeps in others.
TEST(LockWaiting, SleepsOrSpins) {
    // How often the waiting thread gave up the processor to sleep; sched_yield() does not count as such.
    auto sleeps_of_waiter = [](LockMode mode) {
        Lock::set_mode(mode);
        Lock lock;
        lock.lock();
        long sleeps = 0;
        std::thread waiter([&] {
            rusage before{}, after{};
            getrusage(RUSAGE_THREAD, &before);
            lock.lock();
            getrusage(RUSAGE_THREAD, &after);
            sleeps = after.ru_nvcsw - before.ru_nvcsw;
            lock.unlock();
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        lock.unlock();
        waiter.join();
        Lock::set_mode(LockMode::spin);
        return sleeps;
    };
    EXPECT_GT(sleeps_of_waiter(LockMode::spin), 0);
    EXPECT_GT(sleeps_of_waiter(LockMode::mutex), 0);
    EXPECT_EQ(sleeps_of_waiter(LockMode::yield), 0);
    EXPECT_EQ(sleeps_of_waiter(LockMode::single), 0);
}

TEST(Lock, ThreadNumbersDiffer) {
    auto mine = vma::thread_number();
    EXPECT_NE(mine, 0u);
    EXPECT_EQ(mine, vma::thread_number());
    std::uint32_t other = 0;
    std::thread([&] { other = vma::thread_number(); }).join();
    EXPECT_NE(other, 0u);
    EXPECT_NE(other, mine);
}

}  // namespace
