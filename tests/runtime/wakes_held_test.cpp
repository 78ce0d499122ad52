// SPDX-License-Identifier: BSD-2-Clause
// Wake-ups wait until the thread that causes them has no lock any more.
#include "libvma/runtime/wakes_held.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <optional>
#include <thread>

#include "libvma/runtime/wake_fd.h"

namespace vma {
namespace {

bool awake(const WakeFd& event) {
    pollfd asked{event.get(), POLLIN, 0};
    return poll(&asked, 1, 0) == 1;
}

TEST(WakesHeld, WithoutAHolderAWakeUpComesAtOnce) {
    const WakeFd event = WakeFd::make();
    EXPECT_FALSE(awake(event));
    WakesHeld::wake(event.get());
    EXPECT_TRUE(awake(event));
}

TEST(WakesHeld, TheOutermostOneDecides) {
    const WakeFd event = WakeFd::make();
    std::optional<WakesHeld> outer(std::in_place);
    {
        const WakesHeld inner;
        WakesHeld::wake(event.get());
    }
    EXPECT_FALSE(awake(event));
    outer.reset();
    EXPECT_TRUE(awake(event));
    event.clear();
    WakesHeld::wake(event.get());
    EXPECT_TRUE(awake(event)) << "the holder is gone";
}

TEST(WakesHeld, ManyAreWokenOnce) {
    std::array<WakeFd, 40> events;
    for (WakeFd& event : events) event = WakeFd::make();
    {
        const WakesHeld held;
        for (const WakeFd& event : events) WakesHeld::wake(event.get());
    }
    for (const WakeFd& event : events) {
        EXPECT_TRUE(awake(event));
        std::uint64_t count = 0;
        EXPECT_EQ(read(event.get(), &count, sizeof count), 8);
        EXPECT_EQ(count, 1u);
    }
}

TEST(WakesHeld, OtherThreadsWakeAtOnce) {
    const WakeFd event = WakeFd::make();
    const WakesHeld held;
    std::thread([&] { WakesHeld::wake(event.get()); }).join();
    EXPECT_TRUE(awake(event));
}

}  // namespace
}  // namespace vma
