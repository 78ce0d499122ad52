// SPDX-License-Identifier: BSD-2-Clause
// Who polls and who sleeps, with invented times.
#include "libvma/runtime/spinners.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "libvma/os/raw_syscall.h"

namespace vma {
namespace {

using Table = SpinnerTable;

class Spinners : public testing::Test {
  protected:
    Spinners() {
        CPU_ZERO(&two);
        CPU_SET(0, &two);
        CPU_SET(1, &two);
    }
    Table::Entry& polls(std::uint64_t since, std::uint32_t cpu = 0) { return enter(since, cpu); }
    Table::Entry& sleeps(std::uint64_t at) {
        Table::Entry& entry = enter(at, 0);
        entry.since = Table::kAsleep;
        return entry;
    }
    Table::Entry& enter(std::uint64_t at, std::uint32_t cpu) {
        Table::Entry* entry = table->claim(++owner, 0);
        entry->since = at;
        entry->beat = at;
        entry->cpu = cpu;
        return *entry;
    }
    SpinAdvice advice(const Table::Entry& mine, std::uint64_t now) {
        return table->advice(mine, clock::Ticks(now), two);
    }

    std::unique_ptr<Table> table = std::make_unique<Table>();
    std::uint64_t owner = 0;
    const std::uint64_t msec = clock::to_ticks(std::chrono::milliseconds(1)).count();
    const std::uint64_t start = 1000 * msec;
    cpu_set_t two;
};

TEST_F(Spinners, AsManyAsThereAreProcessorsGoOn) {
    auto& first = polls(start);
    EXPECT_EQ(advice(first, start + 10), SpinAdvice::go_on);
    auto& second = polls(start + 5);
    EXPECT_EQ(advice(first, start + 10), SpinAdvice::go_on);
    EXPECT_EQ(advice(second, start + 10), SpinAdvice::go_on);
}

TEST_F(Spinners, OneMoreThanThereAreProcessorsTakesTurns) {
    auto& first = polls(start);
    auto& second = polls(start + 5);
    auto& third = polls(start + 9);
    for (auto* entry : {&first, &second, &third}) EXPECT_EQ(advice(*entry, start + 10), SpinAdvice::yield);
    table->release(first, 1);
    EXPECT_EQ(advice(second, start + 10), SpinAdvice::go_on);
}

TEST_F(Spinners, OfACrowdAsManyAsThereAreProcessorsStayAwake) {
    std::vector<Table::Entry*> all;
    for (unsigned i = 0; i < Table::kTurns * 2; i++) all.push_back(&polls(start + i));
    for (auto* entry : all) EXPECT_EQ(advice(*entry, start + 20), SpinAdvice::yield);
    all.push_back(&polls(start + 19));
    for (auto* entry : all) {
        const bool late = entry == all.back() || entry == all[all.size() - 2];
        EXPECT_EQ(advice(*entry, start + 20), late ? SpinAdvice::yield : SpinAdvice::sleep);
    }
}

TEST_F(Spinners, SleepersWantAProcessorSoonOrNotForLong) {
    auto& mine = polls(start);
    sleeps(start);
    sleeps(start);
    EXPECT_EQ(advice(mine, start + 10), SpinAdvice::yield);
    EXPECT_EQ(advice(mine, start + 11 * msec), SpinAdvice::go_on) << "they sleep for longer now";
}

TEST_F(Spinners, WhatIsOldOrElsewhereDoesNotCount) {
    auto& mine = polls(start);
    for (int i = 0; i < 8; i++) polls(start + 5, 7);
    EXPECT_EQ(advice(mine, start + 10), SpinAdvice::go_on) << "on other processors";
    for (int i = 0; i < 8; i++) polls(start + 5);
    EXPECT_EQ(advice(mine, start + 10), SpinAdvice::sleep);
    EXPECT_EQ(advice(mine, start + 30 * msec), SpinAdvice::go_on)
        << "left behind by threads that are no more";
}

// A program's own work keeps the processor for a time slice. A thread that yields to it looks once in each.
TEST_F(Spinners, WhoGetsItsTurnLateSleepsForAWhile) {
    Turns turns;
    EXPECT_FALSE(turns.long_at(clock::Ticks(start)));
    turns.gave(clock::Ticks(start), clock::Ticks(start + msec / 2));
    EXPECT_FALSE(turns.long_at(clock::Ticks(start + msec / 2))) << "threads that poll took it";
    turns.gave(clock::Ticks(start), clock::Ticks(start + 3 * msec));
    EXPECT_TRUE(turns.long_at(clock::Ticks(start + 3 * msec)));
    EXPECT_TRUE(turns.long_at(clock::Ticks(start + 22 * msec)));
    EXPECT_FALSE(turns.long_at(clock::Ticks(start + 24 * msec)));
}

TEST_F(Spinners, GarbageIsHarmless) {
    auto& mine = polls(start);
    for (int i = 0; i < 300; i++) {
        Table::Entry* entry = table->claim(i + 1000, static_cast<std::size_t>(i));
        if (entry == nullptr) break;
        entry->since = UINT64_MAX - static_cast<std::uint64_t>(i);
        entry->beat = UINT64_MAX;
        entry->cpu = UINT32_MAX - static_cast<std::uint32_t>(i);
    }
    EXPECT_EQ(table->claim(5000, 17), nullptr) << "full";
    EXPECT_EQ(advice(mine, start + 10), SpinAdvice::go_on);
    table->release(mine, 4711);
    EXPECT_EQ(mine.owner.load(), 1u) << "only the owner frees an entry";
}

TEST_F(Spinners, EntriesOfThreadsThatAreNoMoreAreFreed) {
    std::uint64_t gone = 0;
    std::thread([&] {
        gone = static_cast<std::uint64_t>(getpid()) << 32 |
               static_cast<std::uint32_t>(os::raw_syscall(SYS_gettid));
    }).join();
    Table::Entry* dead = table->claim(gone, 0);
    const std::uint64_t me =
        static_cast<std::uint64_t>(getpid()) << 32 | static_cast<std::uint32_t>(os::raw_syscall(SYS_gettid));
    Table::Entry* alive = table->claim(me, 0);
    for (int i = 0; i < 100 && dead->owner != 0; i++) {
        table->sweep();
        usleep(1000);  // the kernel forgets a thread a moment after join()
    }
    EXPECT_EQ(dead->owner.load(), 0u);
    EXPECT_EQ(alive->owner.load(), me);
}

// As many threads as poll at once: each of them leaves the table as it found it.
TEST_F(Spinners, ThreadsComeAndGo) {
    std::vector<std::thread> threads;
    for (std::uint64_t t = 1; t <= 8; t++)
        threads.emplace_back([this, t] {
            for (int i = 0; i < 20'000; i++) {
                Table::Entry* entry = table->claim(t, t);
                ASSERT_NE(entry, nullptr);
                entry->since = clock::Ticks::now().count();
                entry->beat = entry->since.load();
                (void)table->advice(*entry, clock::Ticks::now(), two);
                ASSERT_EQ(entry->owner.load(), t);
                table->release(*entry, t);
            }
        });
    for (std::thread& thread : threads) thread.join();
    auto& mine = polls(start);
    EXPECT_EQ(advice(mine, start + 10), SpinAdvice::go_on);
}

}  // namespace
}  // namespace vma
