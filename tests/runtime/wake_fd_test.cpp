// SPDX-License-Identifier: BSD-2-Clause
// A WakeFd is readable between wake() and clear(), and neither call touches errno; nor does a scope with an
// ErrnoKept. Wake-ups that are held wait until the thread that causes them has no lock any more.
#include "libvma/runtime/wake_fd.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/wakes_held.h"

namespace vma {
namespace {

bool readable(const WakeFd& fd) {
    pollfd p{fd.get(), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

TEST(WakeFd, IsReadableUntilCleared) {
    WakeFd fd = WakeFd::make();
    ASSERT_TRUE(fd);
    EXPECT_TRUE(InternalFd::is_internal(fd.get()));
    EXPECT_FALSE(readable(fd));
    EXPECT_TRUE(fd.wake());
    EXPECT_TRUE(fd.wake());
    EXPECT_TRUE(readable(fd));
    const WakeFd moved = std::move(fd);
    EXPECT_TRUE(readable(moved));
    moved.clear();
    EXPECT_FALSE(readable(moved));
}

TEST(WakeFd, BeginsAwake) { EXPECT_TRUE(readable(WakeFd::make(true))); }

TEST(WakeFd, KeepsErrno) {
    const WakeFd none, some = WakeFd::make();
    errno = E2BIG;
    EXPECT_FALSE(none.wake());
    none.clear();
    some.clear();
    EXPECT_EQ(errno, E2BIG);
}

TEST(WakesHeld, WithoutAHolderAWakeUpComesAtOnce) {
    const WakeFd event = WakeFd::make();
    EXPECT_FALSE(readable(event));
    WakesHeld::wake(event.get());
    EXPECT_TRUE(readable(event));
}

TEST(WakesHeld, TheOutermostOneDecides) {
    const WakeFd event = WakeFd::make();
    std::optional<WakesHeld> outer(std::in_place);
    {
        const WakesHeld inner;
        WakesHeld::wake(event.get());
    }
    EXPECT_FALSE(readable(event));
    outer.reset();
    EXPECT_TRUE(readable(event));
    event.clear();
    WakesHeld::wake(event.get());
    EXPECT_TRUE(readable(event)) << "the holder is gone";
}

TEST(WakesHeld, ManyAreWokenOnce) {
    std::array<WakeFd, 40> events;
    for (WakeFd& event : events) event = WakeFd::make();
    {
        const WakesHeld held;
        for (const WakeFd& event : events) WakesHeld::wake(event.get());
    }
    for (const WakeFd& event : events) {
        EXPECT_TRUE(readable(event));
        std::uint64_t count = 0;
        EXPECT_EQ(read(event.get(), &count, sizeof count), 8);
        EXPECT_EQ(count, 1u);
    }
}

TEST(WakesHeld, OtherThreadsWakeAtOnce) {
    const WakeFd event = WakeFd::make();
    const WakesHeld held;
    std::thread([&] { WakesHeld::wake(event.get()); }).join();
    EXPECT_TRUE(readable(event));
}

TEST(ErrnoKept, PutsItBack) {
    errno = E2BIG;
    {
        const ErrnoKept kept;
        errno = ENOENT;
    }
    EXPECT_EQ(errno, E2BIG);
}

}  // namespace
}  // namespace vma
