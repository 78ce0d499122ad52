// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_trace/work_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace {

using namespace vma_trace;

constexpr Completion done(std::uint64_t wr_id, std::uint8_t status = IBV_WC_SUCCESS,
                          std::uint32_t bytes = 0) {
    return {wr_id, bytes, status, false, 0};
}

void post(WorkQueue& queue, std::uint64_t now, std::uint64_t wr_id, bool signalled = true,
          std::uint32_t bytes = 100) {
    queue.prepare(wr_id, bytes, IBV_WR_SEND, signalled);
    queue.publish(now);
}

std::vector<Record> records(const WorkQueue& queue) {
    std::vector<Record> all;
    queue.each_record([&](const Record& r) { all.push_back(r); });
    return all;
}

TEST(TraceWorkQueue, TimesARequest) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    post(*queue, 1000, 7, true, 64);
    EXPECT_EQ(queue->outstanding(), 1u);
    EXPECT_TRUE(queue->complete(done(7), 1250));
    const auto all = records(*queue);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].wr_id, 7u);
    EXPECT_EQ(all[0].posted, 1000u);
    EXPECT_EQ(all[0].completed, 1250u);
    EXPECT_EQ(all[0].bytes, 64u);
    EXPECT_EQ(queue->totals().latency.max(), 250u);
    EXPECT_EQ(queue->totals().gap.count(), 0u);
    EXPECT_EQ(queue->outstanding(), 0u);
}

TEST(TraceWorkQueue, UnsignalledRequestsCompleteWithTheNextSignalledOne) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 4; i++) post(*queue, 100 + i, i, i == 3);
    post(*queue, 104, 4, false);
    EXPECT_TRUE(queue->complete(done(3), 200));
    const auto all = records(*queue);
    ASSERT_EQ(all.size(), 4u);
    for (std::uint64_t i = 0; i < 4; i++) {
        EXPECT_EQ(all[i].wr_id, i);
        EXPECT_EQ(all[i].completed, 200u);
        EXPECT_EQ(all[i].signalled, i == 3);
    }
    EXPECT_EQ(queue->outstanding(), 1u);
    EXPECT_EQ(queue->totals().completions, 1u);
    EXPECT_EQ(queue->totals().completed, 4u);
}

TEST(TraceWorkQueue, EqualNumbersAreTakenInOrder) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 4; i++) post(*queue, 100 + i, 0, i % 2 == 1);
    EXPECT_TRUE(queue->complete(done(0), 200));
    EXPECT_EQ(queue->outstanding(), 2u);
    EXPECT_TRUE(queue->complete(done(0), 300));
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_EQ(records(*queue)[2].completed, 300u);
    EXPECT_EQ(queue->totals().gap.max(), 100u);
}

TEST(TraceWorkQueue, AFailedUnsignalledRequestHasACompletion) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 3; i++) post(*queue, 100, i, false, 10);
    EXPECT_TRUE(queue->complete(done(1, IBV_WC_RETRY_EXC_ERR), 200));
    EXPECT_TRUE(queue->complete(done(2, IBV_WC_WR_FLUSH_ERR), 201));
    const auto all = records(*queue);
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0].status, IBV_WC_SUCCESS);
    EXPECT_EQ(all[1].status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(queue->totals().errors, 2u);
    EXPECT_EQ(queue->totals().bytes, 10u);
}

TEST(TraceWorkQueue, RefusedRequestsAreTakenBack) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 3; i++) queue->prepare(i, 1, IBV_WR_SEND, true);
    queue->publish(100);
    queue->retract(1);
    EXPECT_EQ(queue->outstanding(), 1u);
    EXPECT_EQ(queue->totals().posted, 1u);
    post(*queue, 110, 9);
    EXPECT_TRUE(queue->complete(done(0), 200));
    EXPECT_TRUE(queue->complete(done(9), 201));
    EXPECT_FALSE(queue->complete(done(1), 202));
    EXPECT_EQ(queue->totals().unmatched, 1u);
}

TEST(TraceWorkQueue, ReceivesMayCompleteInAnyOrder) {
    const auto queue = WorkQueue::create(Side::receive, 8, 8);
    for (std::uint64_t i = 0; i < 4; i++) post(*queue, 100, i);
    for (const std::uint64_t i : {2, 0, 3, 1})
        EXPECT_TRUE(queue->complete(done(i, IBV_WC_SUCCESS, 50), 200 + i));
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_EQ(queue->totals().bytes, 200u);
    EXPECT_FALSE(queue->complete(done(2), 300));
}

TEST(TraceWorkQueue, AFullQueueForgetsTheOldest) {
    const auto queue = WorkQueue::create(Side::send, 8, 0);
    for (std::uint64_t i = 0; i < 1000; i++) post(*queue, i, i, false);
    EXPECT_LE(queue->outstanding(), 8u);
    EXPECT_EQ(queue->totals().posted, 1000u);
    EXPECT_EQ(queue->totals().forgotten + queue->outstanding(), 1000u);
    post(*queue, 1000, 1000, true);
    EXPECT_TRUE(queue->complete(done(1000), 1001));
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_EQ(queue->totals().completed + queue->totals().forgotten, 1001u);
}

TEST(TraceWorkQueue, AListLongerThanTheQueueIsCounted) {
    const auto queue = WorkQueue::create(Side::send, 4, 0);
    for (std::uint64_t i = 0; i < 20; i++) queue->prepare(i, 1, IBV_WR_SEND, true);
    queue->publish(1);
    EXPECT_EQ(queue->totals().posted, 20u);
    EXPECT_EQ(queue->outstanding() + queue->totals().forgotten, 20u);
}

TEST(TraceWorkQueue, AResetEndsWhatIsUnderWay) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 3; i++) post(*queue, 1, i);
    queue->forget_outstanding();
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_EQ(queue->totals().forgotten, 3u);
    post(*queue, 2, 0);
    EXPECT_TRUE(queue->complete(done(0), 5));
    EXPECT_EQ(queue->totals().latency.max(), 3u);
}

TEST(TraceWorkQueue, KeepsTheLastRecords) {
    const auto queue = WorkQueue::create(Side::send, 8, 4);
    for (std::uint64_t i = 0; i < 10; i++) {
        post(*queue, i, i);
        queue->complete(done(i), i + 1);
    }
    const auto all = records(*queue);
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(all.front().wr_id, 6u);
    EXPECT_EQ(all.back().wr_id, 9u);
}

TEST(TraceWorkQueue, TellsTheDevicesTimeApart) {
    const auto queue = WorkQueue::create(Side::send, 8, 8);
    for (std::uint64_t i = 0; i < 3; i++) post(*queue, 1, i);
    for (std::uint64_t i = 0; i < 3; i++)
        queue->complete({i, 0, IBV_WC_SUCCESS, true, 5000 + i * i * 10}, 10 + i);
    EXPECT_EQ(queue->totals().hardware_gap.count(), 2u);
    EXPECT_EQ(queue->totals().hardware_gap.min(), 10u);
    EXPECT_EQ(queue->totals().hardware_gap.max(), 30u);
}

TEST(TraceWorkQueue, PostingAndPollingMayBeTwoThreads) {
    constexpr std::uint64_t kRequests = 200'000;
    const auto queue = WorkQueue::create(Side::send, 1024, 16);
    std::atomic<std::uint64_t> posted{0}, taken{0};
    std::thread poller([&] {
        for (std::uint64_t i = 3; i < kRequests; i += 4) {
            while (posted.load(std::memory_order_acquire) <= i) std::this_thread::yield();
            ASSERT_TRUE(queue->complete(done(i), i + 10));
            taken.store(i + 1, std::memory_order_release);
        }
    });
    for (std::uint64_t i = 0; i < kRequests; i++) {
        while (i - taken.load(std::memory_order_acquire) >= 1000) std::this_thread::yield();
        post(*queue, i, i, i % 4 == 3);
        posted.store(i + 1, std::memory_order_release);
    }
    poller.join();
    EXPECT_EQ(queue->totals().completed, kRequests);
    EXPECT_EQ(queue->totals().unmatched, 0u);
    EXPECT_EQ(queue->totals().forgotten, 0u);
}

}  // namespace
