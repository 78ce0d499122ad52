// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/lock.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace {

using vma::Lock;

TEST(Lock, KnowsItsOwner) {
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

TEST(Lock, OwnedAfterWaiting) {
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

TEST(Lock, ExcludesUnderContention) {
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
